"""Measures this rank's step times, and records what it does, for its requests for orders.

A rank's progress is judged only inside a step: from its first micro-batch to the reduction. Not in its first step of a
generation, nor with micro-batches of a size that it has not had before, nor while torch compiles: these take as long
as they take. What a script does between the reduction and its next micro-batch may be an evaluation.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from elastic_launcher.control.vitals import Vitals

USUAL_STEPS = 20  # recent steps whose median is the usual step time
LONG_WORK = 5.0  # seconds without progress after which it is worth a look at what the script does
OUTSIDE_THE_LOOP = "in its code outside the training loop"
OWN_COLLECTIVE = "in a collective operation of the script's own"


@dataclass
class StepTimer:
    """When steps were completed, on a monotonic clock, and what was done in between.

    Attributes:
        last: When the last step was completed.
        steady: Seconds of the last step from its beginning, and those of them without waits for other ranks; None where
            it was the first one of a generation.
    """

    last: float | None = None
    steady: tuple[float, float] | None = None
    _steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=USUAL_STEPS))
    _own: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=USUAL_STEPS))
    _waited: float = 0.0
    _waiting_since: float | None = None
    _pieces: int = 0
    _work: int = 0
    _work_since: float = 0.0
    _sizes: frozenset[int] = frozenset()
    _known_sizes: set[int] = field(default_factory=set)
    _settled: bool = False
    _outside: tuple[Any, float] = (None, 0.0)
    _turns: int = 0
    _turn: int = 0
    _meets: str = ""
    _doing: str = OUTSIDE_THE_LOOP
    _since: float = field(default_factory=lambda: time.monotonic())

    def tick(self, samples: int = 0) -> None:
        """Notes that a step was completed now, with so many samples of this rank."""
        now = time.monotonic()
        taken = now - self._work_since
        self.steady = (taken, max(taken - self._waited, 0.0)) if self._settled else None
        if self.last is not None:
            gap = now - self.last
            self._steps.append((gap, samples))
            if samples and self._settled:
                own = max(gap - self._waited, 0.0)
                self._own.append((own, own / samples))
        self._known_sizes |= self._sizes
        self.last, self._waited, self._settled, self._work = now, 0.0, True, 0

    def usual(self) -> float:
        """Returns how long recent steps took, in the median; 0 when there was none."""
        steps = list(self._steps)
        return statistics.median(gap for gap, _ in steps) if steps else 0.0

    def late(self) -> float:
        """Returns by how many seconds the last step took longer than one usually does.

        Where there were more samples for this rank than before, or fewer, a step is expected to take so much longer or
        shorter. 0 where there is nothing to compare with.
        """
        *before, (gap, samples) = self._steps or ((0.0, 0),)
        each = [seconds / own for seconds, own in before if own]
        if samples and each:
            return gap - samples * statistics.median(each)
        return gap - statistics.median(seconds for seconds, _ in before) if before else 0.0

    def renew(self) -> None:
        """Notes that this rank's part of the steps has changed: its next one is a first one."""
        self._settled, self._work = False, 0
        self._own.clear()

    def begin_work(self, sizes: Iterable[int], step: int = 0) -> None:
        """Notes that this rank begins its part of a step, in micro-batches of these sizes."""
        self._sizes = frozenset(sizes)
        self._pieces += 1
        self._work_since = time.monotonic()
        self._doing, self._since = f"in the loop body of step {step}", self._work_since
        self._work = self._pieces if self._settled and self._sizes <= self._known_sizes else 0

    def end_loop(self) -> None:
        """Notes that the script is outside the training loop now."""
        self._work = 0
        self._doing, self._since = OUTSIDE_THE_LOOP, time.monotonic()

    @contextlib.contextmanager
    def aside(self, what: str) -> Iterator[None]:
        """Notes that this rank does something else than its part of a step, named for messages."""
        self._work = 0
        before = self._doing
        self._doing, self._since = what, time.monotonic()
        try:
            yield
        finally:
            self._doing, self._since = before, time.monotonic()

    @contextlib.contextmanager
    def waiting(self, what: str, *, meets: str | None = "") -> Iterator[None]:
        """Takes the time for which this rank waits for its peers in an operation.

        They meet in an operation of the kind ``meets``, where they may call it otherwise; in any, if that is None.
        """
        with self.aside(what):
            self._turns += 1
            self._turn, self._meets = 0 if meets is None else self._turns, meets or ""
            since = self._waiting_since = time.monotonic()
            try:
                yield
            finally:
                self._waiting_since, self._turn, self._meets = None, 0, ""
                self._waited += time.monotonic() - since

    def vitals(self) -> Vitals:
        """Returns the vitals now; called by another thread than the training one."""
        now = time.monotonic()
        waiting, last, work = self._waiting_since, self.last, self._work
        turn, doing, meets, since = self._turn, self._doing, self._meets, self._since
        if work and now - self._work_since > LONG_WORK and compiles(sys._current_frames().values()):
            work = 0
        outside = self._time_outside(now)
        if outside:
            work = 0  # it waits for its peers, as in an operation of ours
            turn, doing, meets = self._turns, OWN_COLLECTIVE, ""
        own = list(self._own)
        return Vitals(
            waits=outside if waiting is None else now - waiting,
            outside=outside,
            work=work,
            since=0.0 if last is None else now - last,
            usual=self.usual(),
            own=statistics.median(seconds for seconds, _ in own) if own else 0.0,
            per_sample=statistics.median(each for _, each in own) if own else 0.0,
            steps=len(own),
            turn=turn,
            doing=doing,
            meets=meets,
            busy=now - since,
        )

    def _time_outside(self, now: float) -> float:
        """Returns for how long the script has been in one collective operation of its own, by the looks so far.

        Looks only where nothing has moved for long: a thread that runs may be about to take down what is looked at. No
        variable here holds all frames: this one is among them, and such a circle would keep the script's tensors.
        """
        idle = self._waiting_since is None and now - max(self._work_since, self.last or 0.0) >= LONG_WORK
        call = own_collective(sys._current_frames().get(threading.main_thread().ident or 0)) if idle else None
        if call is None:
            self._outside = None, now
            return 0.0
        where = call, self.last, self._pieces
        if self._outside[0] != where:
            self._outside = where, now
            self._turns += 1
        return now - self._outside[1]


def own_collective(innermost: FrameType | None) -> int | None:
    """Returns an identity of the collective operation of torch.distributed that a thread is in; None if in none."""
    for frame in _frames(innermost):
        code = frame.f_code
        if code.co_filename.endswith("distributed/distributed_c10d.py") and code.co_name != "<module>":
            return id(frame)
    return None


def compiles(threads: Iterable[FrameType]) -> bool:
    """Returns whether torch compiles something in one of these threads."""
    for innermost in threads:
        for frame in _frames(innermost):
            code = frame.f_code
            if code.co_filename.endswith("_dynamo/convert_frame.py") or code.co_name == "compile_fx_inner":
                return True
    return False


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    """Yields a thread's frames, outwards; Python 3.11 may link one that ends to what is no frame."""
    frame = innermost
    while isinstance(frame, FrameType):
        yield frame
        frame = frame.f_back
