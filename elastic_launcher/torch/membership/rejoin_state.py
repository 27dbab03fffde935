"""Remembers what this member reports to a new coordinator in a takeover (see `Introduction`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from msgspec.structs import replace

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import (
    Active,
    BatchChanged,
    Done,
    Ended,
    Failed,
    Form,
    Halted,
    Left,
    MicroBatchLowered,
    PhaseStarted,
    Report,
    StepFailed,
    Warm,
)

STANDS = (Warm, Active, StepFailed, Left, Halted, Failed, Done, PhaseStarted, Ended, BatchChanged, MicroBatchLowered)
"""Reports that hold until the next of their kind."""


class RejoinState:
    """Keeps what was ordered and what was reported, as far as it still holds. Safe to use from several threads.

    Attributes:
        halting: Whether the job is to stop after a checkpoint.
    """

    def __init__(self) -> None:
        self.halting = False
        self._lock = threading.Lock()
        self._orders: dict[int, Form] = {}
        self._current: int | None = None
        self._standing: set[int] = set()
        self._highest = 0
        self._reports: dict[type[Report], Report] = {}
        self.where: Callable[[], Introduction] = lambda: Introduction(os.getpid())
        """Returns the progress of the training here, and nothing else of an introduction."""

    def note_report(self, report: Report) -> None:
        """Records a report."""
        kind = type(report)
        if kind not in STANDS or (isinstance(report, Warm) and not report.fingerprint):
            return  # a member that waits again has nothing new to report
        with self._lock:
            if isinstance(report, PhaseStarted):
                self._reports.pop(Done, None)
            self._reports.pop(kind, None)  # the order in which they hold is that of the last ones
            self._reports[kind] = report

    def note_order(self, form: Form) -> None:
        """Records the order of a formation."""
        with self._lock:
            self._orders[form.formation] = form
            self._highest = max(self._highest, form.formation)

    def note_standing(self, formation: int) -> None:
        """Records that the group of a formation is complete here."""
        with self._lock:
            self._standing.add(formation)

    def note_taken(self, formation: int) -> None:
        """Records that this member has changed to a formation, or has agreed with the others that it will."""
        with self._lock:
            self._current = formation
            self._orders = {number: form for number, form in self._orders.items() if number >= formation}
            self._reports.pop(StepFailed, None)

    def note_given_up(self, formation: int, *, left: bool = False) -> None:
        """Records that a formation is given up, and whether this member has left it, if it was its own."""
        with self._lock:
            self._standing.discard(formation)
            if formation != self._current or left:
                self._orders.pop(formation, None)

    def introduction(self) -> Introduction:
        """Returns this member's introduction."""
        with self._lock:
            current = None if self._current is None else self._orders.get(self._current)
            pending = tuple(form for number, form in sorted(self._orders.items()) if number != self._current)
            return replace(
                self.where(),
                current=current,
                pending=pending,
                standing=tuple(sorted(self._standing & {form.formation for form in pending})),
                highest=self._highest,
                reports=tuple(self._reports.values()),
                halting=self.halting,
            )
