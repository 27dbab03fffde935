"""Each benchmark runs as a module and as a file: then its folder comes first where Python looks for packages."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from tests.support.places import ROOT

FOLDER = ROOT / "benchmarks"
PEERS = {"torchft"}  # installed by whoever wants to compare with them


def test_no_file_hides_a_package() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert not names & (PEERS | packages_distributions().keys() | sys.stdlib_module_names)


@pytest.mark.parametrize("name", ["failure", "scale"])
def test_a_benchmark_runs_as_a_module_and_as_a_file(name: str) -> None:
    for way in (["-m", f"benchmarks.{name}"], [str(FOLDER / f"{name}.py")]):
        told = subprocess.run([sys.executable, *way, "--help"], cwd=FOLDER.parent, capture_output=True, text=True)
        assert told.returncode == 0 and "--runs" in told.stdout, told.stderr
