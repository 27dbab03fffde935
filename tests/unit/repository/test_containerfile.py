"""The project's image: what its Containerfile copies and runs is there, and its places are for any user."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.cluster.machine.image import NOBODY, fill_test_image
from tests.support.places import ROOT

TEXT = (ROOT / "Containerfile").read_text()
COMMANDS = [line for line in TEXT.splitlines() if not line.startswith("#")]


def test_what_is_copied_is_there() -> None:
    copied = [line.split()[1:-1] for line in COMMANDS if line.startswith("COPY ") and "--from=" not in line]
    sources = [source for sources in copied for source in sources]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


@pytest.mark.parametrize("script", sorted((ROOT / "container").iterdir()), ids=lambda path: path.name)
def test_each_step_is_run_and_may_be(script: Path) -> None:
    assert re.search(rf"^RUN .*/container/{script.name} ", TEXT, re.MULTILINE)
    assert os.access(script, os.X_OK)
    subprocess.run(["sh", "-n", script], check=True)


def test_the_extras_that_it_installs_exist() -> None:
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)", TEXT, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_it_ends_as_nobody() -> None:
    users = [line.split()[1] for line in COMMANDS if line.startswith("USER ")]
    assert users[-1] == f"{NOBODY}:{NOBODY}"


def test_any_user_may_write_to_the_places_of_an_image(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill_test_image(root)
    modes = {place: stat.S_IMODE((root / place).stat().st_mode) for place in ("tmp", "home/elastic")}
    assert modes == {"tmp": 0o1777, "home/elastic": 0o1777}
