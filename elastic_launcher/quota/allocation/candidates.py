"""Makes of a job's report what the allocation weighs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elastic_launcher.quota.allocation.division import Candidate
from elastic_launcher.quota.allocation.speeds import MeasuredSpeeds
from elastic_launcher.quota.allocation.worth import Counts, Values
from elastic_launcher.quota.jobs import Job

START_SECONDS = 30.0  # until a job has reported how long its nodes take to start
MACHINE_GPUS = 8  # of a machine, while nothing says how many there are
GROWTH = 4  # a job's speed is believed up to so many times the size that it was measured on
BEYOND = 1e-3  # what twice the GPUs add to the speed beyond: enough to take what nobody else can use


def candidate(job: Job, sizes: tuple[int, ...], now: float) -> Candidate:
    """Returns a job as the allocation sees it.

    Args:
        job: Its report.
        sizes: The counts that it may have, ascending.
        now: Seconds since the epoch.
    """
    measured = MeasuredSpeeds.by_size(job.goodput or job.speeds, MACHINE_GPUS)
    speeds = _Believed(measured, max(job.minimum, _believed(job)))
    return Candidate(
        name=job.id,
        limit=sizes[-1],
        request=job.minimum,
        profiled=sizes[-1],
        age=max(0.0, now - job.submitted_at),
        changes=job.changes,
        service=job.service,
        delay=START_SECONDS if job.start_seconds is None else job.start_seconds,
        work=_work(job, measured),
        submitted=job.submitted_at,
        speeds=speeds,
        minimum=job.minimum,
        sizes=sizes,
        priority=job.priority,
    )


def _believed(job: Job) -> int:
    """Returns the size up to which a job's speed is believed; a goodput that it never passes is not believed again."""
    most = GROWTH * max(job.speeds, default=0)
    if job.goodput:
        highest = max(job.goodput.values())
        most = min(max(most, min(job.goodput)), min(size for size, one in job.goodput.items() if one == highest))
    return most


def _work(job: Job, speeds: MeasuredSpeeds) -> float | None:
    """Returns the seconds that a job still needs on one GPU.

    Its steps left are those of the batch that it has now, at the speed that it measured where it is, or last was.
    """
    if not job.speeds or job.steps_left is None:
        return None
    size = job.held if job.held in job.speeds else max(job.speeds)
    slower = speeds.steps_per_second(-(-size // MACHINE_GPUS), size) / speeds.one_gpu
    return job.steps_left / job.speeds[size] * slower


@dataclass(frozen=True, slots=True)
class _Believed:
    """Speeds that hardly rise beyond a size, so that no job takes GPUs from others by a speed that nobody measured.

    They rise less and less, so that equal jobs get equal parts of what only such jobs can use.
    """

    measured: MeasuredSpeeds
    most: int

    def curve(self, counts: Counts) -> Values:
        """Returns the speeds on numbers of GPUs, each on the fewest machines, over one GPU."""
        return self.measured.curve(np.minimum(counts, self.most)) * self._beyond(counts)

    def at(self, machines: int, gpus: int) -> float:
        """Returns the speed on GPUs of a number of machines, over one GPU."""
        return self.measured.at(machines, min(gpus, self.most)) * float(self._beyond(np.array([gpus]))[0])

    def _beyond(self, counts: Counts) -> Values:
        more: Values = 1 + BEYOND * np.log2(np.maximum(counts, self.most) / self.most)
        return more
