"""The introduction of a member to a new coordinator in a takeover: all that the one before knew of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from elastic_launcher.control.messages import Form, Report


class Introduction(Struct, frozen=True):
    """The state of a member.

    Attributes:
        epoch: Where they are, within their phase.
        samples: Samples that they used.
        current: The formation that it changed to last; None before its first, and where that one was given up.
        pending: Later ones that were ordered, and not given up.
        standing: Numbers of those of them whose group is complete.
        highest: The highest number of a formation that it has ever seen.
        reports: What it has reported of itself that still holds, in order.
        halting: Whether it was ordered to stop after a checkpoint.
        phase: Which `job.epochs` of the script they are in, from 0.
        sums: What sums over ranks came to, for those that begin with the script's first line.
    """

    pid: int
    step: int = 0
    epoch: int = 0
    samples: int = 0
    current: Form | None = None
    pending: tuple[Form, ...] = ()
    standing: tuple[int, ...] = ()
    highest: int = 0
    reports: tuple[Report, ...] = ()
    halting: bool = False
    phase: int = 0
    sums: Mapping[str, Any] = {}
