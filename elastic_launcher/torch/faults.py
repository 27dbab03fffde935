"""Named moments at which a test can end this process, stop it, or have its group break:
``ELASTIC_FAULT="reduction@7:2"``.

That is: member 2 kills itself when it comes to the moment ``reduction`` in step 7 or later; with ``freeze=`` before it,
it stops as by SIGSTOP, and with ``break=`` its group breaks there. Several are separated by commas. A script under test
can say later what is to happen (`arm`). Without any, a moment costs one look.
"""

from __future__ import annotations

import os
import signal

from elastic_launcher.torch.group import GroupError

VARIABLE = "ELASTIC_FAULT"
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
BREAK = "break"

_faults: dict[str, tuple[int, str]] = {}


def arm(faults: str) -> None:
    """Adds what is to happen to this member.

    Raises:
        ValueError: If a fault is unknown.
    """
    member = os.environ.get("ELASTIC_MEMBER", "")
    for fault in filter(None, faults.split(",")):
        kind, equals, rest = fault.partition("=")
        moment, _, where = (rest if equals else fault).partition("@")
        step, _, who = where.partition(":")
        kind = kind if equals else "kill"
        if kind not in (*SIGNALS, BREAK):
            raise ValueError(f"{VARIABLE}: {fault!r} is none of {', '.join((*SIGNALS, BREAK))}=MOMENT@STEP:MEMBER")
        if who == member:
            _faults[moment] = (int(step), kind)


def point(moment: str, step: int) -> None:
    """Says that this process is at a moment of a step.

    Raises:
        GroupError: If a test has its group break here.
    """
    if _faults and moment in _faults and step >= _faults[moment][0]:
        kind = _faults.pop(moment)[1]
        if kind == BREAK:
            raise GroupError(f"the test breaks the group at {moment} of step {step}")
        os.kill(os.getpid(), SIGNALS[kind])


arm(os.environ.get(VARIABLE, ""))
