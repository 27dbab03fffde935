"""Counts restarts from the last checkpoint, and losses of nodes, without a step of progress in between."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MOST_RESTARTS = 3  # at the same step: then it would repeat for ever


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """The count of restarts from the last checkpoint without progress.

    Attributes:
        step: The furthest step that the job had done at a restart; -1 before the first.
        times: How often it restarted without having done more than that.
    """

    step: int = -1
    times: int = 0

    def once_more(self, step: int) -> RestartBudget:
        """Returns the count after another restart of a job that had done ``step`` steps."""
        return RestartBudget(step, 1) if step > self.step else RestartBudget(self.step, self.times + 1)

    @property
    def too_often(self) -> bool:
        """Whether the job may not restart any more."""
        return self.times >= MOST_RESTARTS


@dataclass(frozen=True, slots=True)
class Taken:
    """The count of nodes that were taken from outside before they had trained.

    Attributes:
        step: The steps that the job had done by then.
        times: How often that happened without another step in between; nodes that go together count once.
        at: When it did last.
    """

    step: int = -1
    times: int = 0
    at: float = -math.inf

    def once_more(self, step: int, started_at: float, now: float) -> Taken:
        """Returns the count after another node was taken, which was asked for at ``started_at``."""
        if step > self.step:
            return Taken(step, 1, now)
        return self if started_at < self.at else Taken(self.step, self.times + 1, now)

    def at_most(self, step: int) -> Taken:
        """Returns the count for a job that restarts after ``step`` steps."""
        return replace(self, step=min(self.step, step))
