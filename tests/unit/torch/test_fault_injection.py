"""Moments at which a test hits a rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.launches import until


def reach(moments: str, faults: str) -> subprocess.CompletedProcess[str]:
    """Lets member 2 come to some moments."""
    begin = "from elastic_launcher.torch.fault_injection import point"
    code = f"{begin}\nfor name, step in {moments}: point(name, step)\nprint('on')"
    environment = os.environ | {"ELASTIC_FAULT": faults, "ELASTIC_MEMBER": "2"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("faults", "ends"), [("b@9:3,a@5:2", True), ("b@10:2,a@5:3", False)])
def test_a_member_ends_at_its_moment_and_no_other(faults: str, ends: bool) -> None:
    found = reach("[('b', 9), ('a', 5)]", faults)
    assert (found.returncode, found.stdout) == ((-signal.SIGKILL, "") if ends else (0, "on\n"))


@pytest.mark.thorough
def test_a_member_stands_still_until_it_may_go_on() -> None:
    code = "from elastic_launcher.torch.fault_injection import point; point('a', 5); print('on')"
    environment = os.environ | {"ELASTIC_FAULT": "freeze=a@5:2", "ELASTIC_MEMBER": "2"}
    rank = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert os.WIFSTOPPED(os.waitpid(rank.pid, os.WUNTRACED)[1])
    rank.send_signal(signal.SIGCONT)
    assert rank.communicate()[0] == "on\n"


@pytest.mark.thorough
def test_a_group_breaks_once() -> None:
    found = reach("[('a', 5)]", "break=a@5:2")
    assert "GroupError: the test breaks the group at a of step 5" in found.stderr


@pytest.mark.thorough
def test_a_frozen_member_goes_on_when_it_is_thawed() -> None:
    begin = "from elastic_launcher.torch.fault_injection import arm, point"
    code = f"{begin}\narm('freeze=a@5:2'); point('a', 5); point('a', 6)"
    environment = os.environ | {"ELASTIC_MEMBER": "2"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it is frozen")
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 0


def test_a_fault_that_nobody_knows_is_named() -> None:
    assert (
        "'melt=a@5:2' is none of kill, freeze, break, launcher=MOMENT@STEP:MEMBER" in reach("[]", "melt=a@5:2").stderr
    )
