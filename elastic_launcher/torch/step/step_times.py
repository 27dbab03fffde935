"""Times the steps of a job on each rank, and reports from rank 0 what goodput by size is computed from.

Each rank times, so that any of them can decide and report when it becomes rank 0. Nothing is fitted here: who reads
the events does that.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from functools import lru_cache

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.goodput import GradientNoise
from elastic_launcher.adaptive.observations import Configuration, Observation
from elastic_launcher.control import messages
from elastic_launcher.events import significant
from elastic_launcher.torch.session import Session

FEWEST_STEPS = 5  # of a configuration before it is reported
FEWEST_ESTIMATES = 0.2  # of the weight of all, of the noise averages: fourteen estimates of the first batch
NEW_SECONDS = 1.0  # between two reports where another configuration was timed
INTERVAL, SHARE_OF_AGE = 5.0, 0.01  # seconds between two reports at first; later this share of the job's age
DIGITS = 6  # significant ones of a time


def time_step(session: Session, batch_size: int, samples: int, world_size: int) -> None:
    """Notes the time of a step that is complete; not of an epoch's last one, which may have fewer samples.

    Args:
        session: Of the job.
        batch_size: The global batch of that step.
        samples: Its samples.
        world_size: Ranks that had a part of it.
    """
    steady = session.pace.steady
    if steady is None or samples != batch_size:
        return
    most, statistics = session.shares.max_micro_batch, session.shares.normalizes is not None
    micro_batch, count = _shape(batch_size, most, world_size, statistics, session.virtual_ranks)
    seconds, own = steady
    # a GPU computes while this process seems to wait for its peers
    each = own / count if session.device.type == "cpu" else None
    session.times.add(Observation(machines_of(world_size), world_size, micro_batch, count, seconds, each))


@lru_cache(maxsize=64)
def _shape(batch_size: int, most: int, world_size: int, batch_statistics: bool, virtual_ranks: int) -> tuple[int, int]:
    """Returns the samples of rank 0's largest micro-batch, and how many it has."""
    bounds = Bounds.fixed(batch_size, most, batch_statistics=batch_statistics, virtual_ranks=virtual_ranks)
    micro_batches = bounds.micro_batches(batch_size, world_size)
    return max(micro_batches), len(micro_batches)


def machines_of(world_size: int) -> int:
    """Returns on how many nodes so many ranks are."""
    return -(-world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def known_bounds(session: Session) -> Bounds:
    """Returns which batch sizes there are, with what is known of the model since it trains."""
    statistics = session.shares.normalizes is not None
    if session.autoscaling is not None:
        bounds = session.autoscaling.bounds
        most = max(bounds.min_micro_batch, session.shares.max_micro_batch)
        return replace(bounds, max_micro_batch=most, batch_statistics=statistics)
    return Bounds.fixed(
        session.global_batch_size,
        session.shares.max_micro_batch,
        batch_statistics=statistics,
        virtual_ranks=session.virtual_ranks,
    )


def known_noise(session: Session) -> GradientNoise | None:
    """Returns the gradients' noise once it was measured for long enough; None before, and where it is not measured."""
    if session.autoscaling is None or session.noise is None:
        return None
    weights = [one.weight for one in session.noise.averages.groups if one.weight]
    return session.noise.noise if weights and min(weights) >= FEWEST_ESTIMATES else None


class TimeReports:
    """Reports step times from rank 0: those of configurations that were timed since the last report."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = self._last = self._looked = time.monotonic()
        self._counts: dict[Configuration, int] = {}

    def report(self, *, at_end: bool = False) -> None:
        """Reports, if it is this rank's turn, there is something new, and it is time."""
        session = self._session
        if session.member is None or session.membership is None or session.membership.rank != 0:
            return
        since = (now := time.monotonic()) - self._last
        due = since >= max(INTERVAL, (now - self._began) * SHARE_OF_AGE)
        if not at_end and not due and not self._has_another(now):
            return
        new = [
            one
            for one in session.times
            if one.count >= FEWEST_STEPS and one.count != self._counts.get(one.configuration)
        ]
        self._last = now
        if not new:
            return
        self._counts = {one.configuration: one.count for one in session.times if one.count >= FEWEST_STEPS}
        noise = known_noise(session)
        session.report(
            messages.StepTimes(
                step=session.position.step,
                batch=session.global_batch_size,
                times=tuple(_row(one) for one in new),
                bounds=asdict(known_bounds(session)),
                noise=None if noise is None else (noise.variance, noise.square),
            )
        )

    def _has_another(self, now: float) -> bool:
        """Returns whether a configuration has been timed that was never reported; looks once in a while."""
        if now - max(self._looked, self._last) < NEW_SECONDS:
            return False
        self._looked = now
        return any(one.count >= FEWEST_STEPS and one.configuration not in self._counts for one in self._session.times)


def _row(one: Observation) -> tuple[int, int, int, int, float, float | None, int]:
    each = None if one.micro_batch_seconds is None else significant(one.micro_batch_seconds, DIGITS)
    return (*one.configuration, significant(one.seconds, DIGITS), each, one.count)
