"""The command line of the tests' cluster, called as a person would."""

from __future__ import annotations

import subprocess
import sys

from tests.cluster.machine.node import REPOSITORY


def act(*argv: str) -> None:
    """Does what the command line does, as a person would."""
    subprocess.run([sys.executable, "-m", "tests.cluster", *argv], cwd=REPOSITORY, check=True)
