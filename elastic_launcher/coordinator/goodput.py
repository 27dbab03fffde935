"""How much of a job's time went into steps that counted."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Goodput:
    """Adds up a job's time, in monotonic seconds.

    Time counts from the end of the first step to that of the training loop, but for the pauses of resizes, in which a
    broken step and its repetition lie.

    Attributes:
        started: When the job began.
        training: When its first step was completed.
        over: When its training loop was over.
        paused: Seconds of pauses in between.
        halted: Since when nothing has trained, for want of quota; None while something does.
    """

    started: float
    training: float | None = None
    over: float | None = None
    paused: float = 0.0
    halted: float | None = None

    def formed(self, now: float, pause_seconds: float) -> Goodput:
        """A generation formed, after a pause."""
        if self.training is None:
            return replace(self, training=now, halted=None)
        waited = 0.0 if self.halted is None else now - self.halted
        return replace(self, paused=self.paused + pause_seconds + waited, halted=None)

    def halt(self, now: float) -> Goodput:
        """Nothing trains until another generation has formed."""
        return self if self.halted is not None else replace(self, halted=now)

    def begun_anew(self, now: float) -> Goodput:
        """A training loop that was over begins anew from a checkpoint."""
        return self if self.over is None else replace(self, over=None, paused=self.paused + now - self.over)

    def ended(self, now: float) -> Goodput:
        """The training loop is over."""
        return self if self.over is not None else replace(self, over=now)

    def value(self, now: float) -> float:
        """Returns the share of the time until ``now``, from 0 to 1."""
        if self.training is None or now <= self.started:
            return 0.0
        until = min(one for one in (now, self.over, self.halted) if one is not None)
        good = until - self.training - self.paused
        return max(0.0, min(1.0, good / (now - self.started)))
