"""Paths that a launch can't look at, or that would never be read to their end."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_launcher.cli.run import read
from elastic_launcher.options import ConfigError

LONG = "n" * 300
"""A name that no file can have: of an option that was meant to be a text, such as a script without a line break."""


@pytest.mark.parametrize(
    ("texts", "script"),
    [
        ({}, f"{LONG}.py"),
        ({"data": LONG}, "train.py"),
        ({"work_dir": LONG, "hints": "hints.json"}, "train.py"),
    ],
)
def test_a_name_that_is_too_long_is_bad_usage(tmp_path: Path, texts: dict[str, str], script: str) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(ConfigError, match=f"{LONG}.*: File name too long"):
        read(texts, [script], tmp_path)


def test_a_disk_that_is_away_for_now_is_not_bad_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "is_file", away)
    with pytest.raises(OSError, match="Input/output error"):
        read({}, ["train.py"], tmp_path)


@pytest.mark.parametrize("required", [False, True])
def test_hints_in_a_pipe_that_nobody_writes_are_not_waited_for(tmp_path: Path, required: bool) -> None:
    (tmp_path / "train.py").touch()
    os.mkfifo(tmp_path / "hints")
    look = (
        "import sys; from pathlib import Path; from elastic_launcher.cli.run import read\n"
        f"read({{'hints': 'hints', 'require_hints': {required}}}, ['train.py'], Path.cwd())"
    )
    done = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, timeout=10)
    assert (done.returncode != 0) == required
    assert ("it is not a regular file; --require-hints asks for them" in done.stderr) == required
