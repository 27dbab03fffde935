"""Counts how often in a row a job began anew from its newest checkpoint, or lost its nodes, without a step forward."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MOST_FALLS = 3  # at the same place: then it would go on like that for ever


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """What is known of the times before.

    Attributes:
        step: The furthest step that the job had done when it fell; -1 if it never did.
        times: How often it fell without having done more than that.
    """

    step: int = -1
    times: int = 0

    def once_more(self, step: int) -> RestartBudget:
        """Returns what is known after a job has fallen that had done ``step`` steps."""
        return RestartBudget(step, 1) if step > self.step else RestartBudget(self.step, self.times + 1)

    @property
    def too_often(self) -> bool:
        """Whether the job is not to begin anew any more."""
        return self.times >= MOST_FALLS


@dataclass(frozen=True, slots=True)
class Taken:
    """What is known of nodes that were taken from outside before they had trained.

    Attributes:
        step: The steps that the job had done by then.
        times: How often that happened without another step in between; nodes that go together count once.
        at: When it did last.
    """

    step: int = -1
    times: int = 0
    at: float = -math.inf

    def once_more(self, step: int, started_at: float, now: float) -> Taken:
        """Returns what is known after another node was taken.

        Args:
            step: Steps that the job has done.
            started_at: When the node was asked for.
            now: Monotonic seconds.
        """
        if step > self.step:
            return Taken(step, 1, now)
        return self if started_at < self.at else Taken(self.step, self.times + 1, now)

    def at_most(self, step: int) -> Taken:
        """Returns the same of a job that begins again after ``step`` steps."""
        return replace(self, step=min(self.step, step))
