"""Named moments at which a test can end this process, or have its group break: ``ELASTIC_FAULT="reduction@7:2"``.

That is: member 2 kills itself when it comes to the moment ``reduction`` in step 7 or later; with ``break=`` before it,
its group breaks there instead. Several are separated by commas. Without the variable a moment costs one look.
"""

from __future__ import annotations

import os
import signal

from elastic_launcher.torch.group import GroupError

VARIABLE = "ELASTIC_FAULT"


def _read(text: str, member: str) -> dict[str, tuple[int, bool]]:
    """Returns what this member is to do: the step, and whether it only breaks its group, by the moment."""
    found = {}
    for fault in filter(None, text.split(",")):
        moment, _, where = fault.removeprefix("break=").partition("@")
        step, _, who = where.partition(":")
        if who == member:
            found[moment] = (int(step), fault.startswith("break="))
    return found


_faults = _read(os.environ.get(VARIABLE, ""), os.environ.get("ELASTIC_MEMBER", ""))


def point(moment: str, step: int) -> None:
    """Says that this process is at a moment of a step.

    Raises:
        GroupError: If a test has its group break here.
    """
    if _faults and moment in _faults and step >= _faults[moment][0]:
        if not _faults.pop(moment)[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        raise GroupError(f"the test breaks the group at {moment} of step {step}")
