"""What a simulation came to: for each job, and over all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job. Times are seconds from the begin of the trace.

    Attributes:
        name: Its name.
        submitted: When it was submitted.
        started: When it first held GPUs.
        completed: When it was complete.
        changes: Changes of its GPUs, the first start excepted; a pause and its end are one.
        stopped: Changes for which its training was stopped for longer than a moment.
        service: GPU-seconds that it held.
        rho: Its time over the time that it would take on an equal part of the machines of its own (finish-time
            fairness: Mahajan et al., 2020).
    """

    name: str
    submitted: float
    started: float
    completed: float
    changes: int
    stopped: int
    service: float
    rho: float

    @property
    def completion_time(self) -> float:
        """Seconds from submission to completion."""
        return self.completed - self.submitted


@dataclass(frozen=True, slots=True)
class Results:
    """What a simulation came to.

    Attributes:
        outcomes: The jobs, in order of submission; at least one.
        rounds: How often the policy was asked.
    """

    outcomes: tuple[Outcome, ...]
    rounds: int

    @property
    def mean_completion_time(self) -> float:
        """Mean seconds from submission to completion."""
        return float(np.mean([one.completion_time for one in self.outcomes]))

    @property
    def p99_completion_time(self) -> float:
        """99th percentile of the seconds from submission to completion."""
        return float(np.percentile([one.completion_time for one in self.outcomes], 99))

    @property
    def makespan(self) -> float:
        """Seconds from the begin of the trace to the last completion."""
        return max(one.completed for one in self.outcomes)

    @property
    def worst_rho(self) -> float:
        """The largest unfairness."""
        return max(one.rho for one in self.outcomes)

    @property
    def mean_changes(self) -> float:
        """Mean changes of a job."""
        return float(np.mean([one.changes for one in self.outcomes]))

    @property
    def mean_stopped(self) -> float:
        """Mean changes for which a job's training was stopped."""
        return float(np.mean([one.stopped for one in self.outcomes]))

    @property
    def gpus_in_use(self) -> float:
        """GPUs that are held, on average from the first start to the last completion."""
        first = min(one.started for one in self.outcomes)
        return sum(one.service for one in self.outcomes) / (self.makespan - first)
