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
BEYOND = 1e-3  # what each further GPU adds to the speed: enough to take what nobody else can use


def candidate(job: Job, sizes: tuple[int, ...], now: float) -> Candidate:
    """Returns a job as the allocation sees it.

    Args:
        job: Its report.
        sizes: The counts that it may have, ascending.
        now: Seconds since the epoch.
    """
    measured = MeasuredSpeeds.by_size(job.speeds, MACHINE_GPUS)
    speeds = _Believed(measured, max(job.minimum, GROWTH * max(job.speeds, default=0)))
    work = None
    if job.speeds and job.steps_left is not None:
        work = job.steps_left / measured.steps_per_second(1, 1)
    return Candidate(
        name=job.id,
        limit=sizes[-1],
        request=job.minimum,
        profiled=sizes[-1],
        age=max(0.0, now - job.submitted_at),
        changes=job.changes,
        service=job.service,
        delay=START_SECONDS if job.start_seconds is None else job.start_seconds,
        work=work,
        submitted=job.submitted_at,
        speeds=speeds,
        minimum=job.minimum,
        sizes=sizes,
    )


@dataclass(frozen=True, slots=True)
class _Believed:
    """Speeds that hardly rise beyond a size, so that no job takes GPUs from others by a speed that nobody measured."""

    measured: MeasuredSpeeds
    most: int

    def curve(self, counts: Counts) -> Values:
        """Returns the speeds on numbers of GPUs, each on the fewest machines, over one GPU."""
        return self.measured.curve(np.minimum(counts, self.most)) * (1 + BEYOND * np.maximum(0, counts - self.most))

    def at(self, machines: int, gpus: int) -> float:
        """Returns the speed on GPUs of a number of machines, over one GPU."""
        return self.measured.at(machines, min(gpus, self.most)) * (1 + BEYOND * max(0, gpus - self.most))
