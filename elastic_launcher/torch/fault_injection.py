"""Named moments at which a test can end this process, stop it, have its group break, or end the job's launcher.

``ELASTIC_FAULT="reduction@7:2"``: member 2 kills itself when it comes to the moment ``reduction`` in step 7 or later;
with ``freeze=`` before it, it is stopped there until it gets SIGCONT; with ``break=``, its group breaks; with
``launcher=``, the launcher is killed. Several are separated by commas. A script under test can say later what is to
happen (`arm`). Without any, a moment costs one look.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from elastic_launcher import variables
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.workdir import Layout

KINDS = ("kill", "freeze", "break", "launcher")

_faults: dict[str, list[tuple[int, str]]] = {}


def arm(faults: str) -> None:
    """Adds what is to happen to this member.

    Raises:
        ValueError: If a fault is unknown.
    """
    member = os.environ.get(variables.MEMBER, "")
    for fault in filter(None, faults.split(",")):
        kind, equals, rest = fault.partition("=")
        moment, _, where = (rest if equals else fault).partition("@")
        step, _, who = where.partition(":")
        kind = kind if equals else "kill"
        if kind not in KINDS:
            raise ValueError(f"{variables.FAULT}: {fault!r} is none of {', '.join(KINDS)}=MOMENT@STEP:MEMBER")
        if who == member:
            _faults.setdefault(moment, []).append((int(step), kind))


def point(moment: str, step: int) -> None:
    """Marks a named moment of a step in this process.

    Raises:
        GroupError: If a test has its group break here.
    """
    if not _faults or moment not in _faults:
        return
    for fault in [fault for fault in _faults[moment] if step >= fault[0]]:
        _faults[moment].remove(fault)
        match fault[1]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "launcher":
                os.kill(_launcher(), signal.SIGKILL)
            case _:
                raise GroupError(f"the test breaks the group at {moment} of step {step}")


def _launcher() -> int:
    lock = Layout(Path(os.environ[variables.WORK_DIR])).lock
    return int(json.loads(lock.read_text())["pid"])


arm(os.environ.get(variables.FAULT, ""))
