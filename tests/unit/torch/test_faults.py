"""Moments at which a test hits a rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


def reach(moments: str, faults: str) -> subprocess.CompletedProcess[str]:
    """Lets member 2 come to some moments."""
    code = (
        f"from elastic_launcher.torch.faults import point\nfor name, step in {moments}: point(name, step)\nprint('on')"
    )
    environment = os.environ | {"ELASTIC_FAULT": faults, "ELASTIC_MEMBER": "2"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("faults", "ends"), [("b@9:3,a@5:2", True), ("b@10:2,a@5:3", False)])
def test_a_member_ends_at_its_moment_and_no_other(faults: str, ends: bool) -> None:
    found = reach("[('b', 9), ('a', 5)]", faults)
    assert (found.returncode, found.stdout) == ((-signal.SIGKILL, "") if ends else (0, "on\n"))


def test_a_group_breaks_once() -> None:
    found = reach("[('a', 5)]", "break=a@5:2")
    assert "GroupError: the test breaks the group at a of step 5" in found.stderr
