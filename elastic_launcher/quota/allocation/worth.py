"""What a number of GPUs is worth to a job, with the price of the change that leads to it.

The value of GPUs is log(1 + speed), the speed over one GPU. A change costs a share of the new speed: more for a job
that was changed often, is young or is nearly done. Staying has no price, so that small gains move nobody.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Values = NDArray[np.float64]

LESS = 1e-9  # of a value: a smaller difference is one of rounding
MANY = 16  # sizes up to which a division looks at each
_UNKNOWN_WORK = 1800.0  # seconds of work of a job that has not measured its speed
_UNDERSTATED = 0.3  # a job has at least this share of what it already received still to do


class Speeds(Protocol):
    """How fast a job is on several GPUs, over its speed on one."""

    def curve(self, counts: Counts) -> Values:
        """Returns the speeds on numbers of GPUs, each on the fewest machines that hold them."""

    def at(self, machines: int, gpus: int) -> float:
        """Returns the speed on GPUs of a number of machines."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that may be given GPUs.

    Attributes:
        name: Its unique name.
        limit: The most GPUs that its owner allows.
        request: GPUs that it may start on.
        profiled: The most GPUs that it has ever run on.
        age: Seconds since it was submitted.
        changes: Changes of its GPUs so far.
        service: GPU-seconds that it has held.
        delay: Seconds from an order until new ranks train.
        work: Seconds that it still needs on one GPU; None before it has measured its speed.
        submitted: When it was submitted, in seconds on any clock.
        speeds: Its speed on several GPUs.
        minimum: The fewest GPUs that it runs on.
        sizes: Legal numbers of GPUs, ascending; empty if each from the minimum to the limit is legal.
        node_gpus: GPUs of a node, which is never divided between machines.
        priority: Of jobs to which a GPU is worth the same, the one with the highest gets it.
    """

    name: str
    limit: int
    request: int
    profiled: int
    age: float
    changes: int
    service: float
    delay: float
    work: float | None
    submitted: float
    speeds: Speeds
    minimum: int = 1
    sizes: tuple[int, ...] = ()
    node_gpus: int = 1
    priority: int = 0

    def is_legal(self, gpus: int) -> bool:
        """Returns whether the job can run on so many GPUs."""
        within = self.minimum <= gpus <= self.limit and gpus % self.node_gpus == 0
        return within and (not self.sizes or gpus in self.sizes)

    def considered(self) -> list[int]:
        """Returns the legal numbers of GPUs among which a division chooses, ascending.

        Of many, these are a few: see `thinned`. Where each number is legal, they are the minimum, the limit, and 1, 2,
        3, 4, 6, 8, 12 and so on nodes.
        """
        if self.sizes:
            return [size for size in thinned(self.sizes) if self.is_legal(size)]
        node, sizes = self.node_gpus, {-(-self.minimum // self.node_gpus), self.limit // self.node_gpus}
        step = 1
        while step * node <= self.limit:
            sizes |= {step, step + step // 2}
            step *= 2
        return [size * node for size in sorted(sizes) if self.is_legal(size * node)]


@dataclass(frozen=True, slots=True)
class Settings:
    """How jobs are weighed, and what a change costs.

    Attributes:
        in_process: Whether ranks that stay go on through a change; otherwise each change restarts the job.
        exponent: How much more weight a job with less work gets; 1 makes all weights equal.
        gap: Seconds of training that pay off a change, for each change so far.
        warm_up: Seconds added to a job's age, so that the first changes of a young job are not forbidden.
        most_lost: The largest share of the new speed that a change costs.
        growth: A job may grow to so many times the most GPUs that it has run on.
        fairness: From 0, where jobs with less work come first, so that jobs end soon on average, to 1, where all weigh
            the same.
    """

    in_process: bool = True
    exponent: float = 3.0
    gap: float = 180.0
    warm_up: float = 600.0
    most_lost: float = 0.9
    growth: int = 4
    fairness: float = 0.0


@dataclass(slots=True)
class Options:
    """What a job may be given.

    Attributes:
        values: Numbers of GPUs, ascending, and what each is worth.
        staying: What it is worth that nothing changes; None if the job holds nothing.
        held: GPUs that it holds.
    """

    values: dict[int, float]
    staying: float | None
    held: int


def weights(candidates: Collection[Candidate], settings: Settings) -> dict[str, float]:
    """Returns the jobs' weights, which add up to 1: the less work a job has left, the more.

    They are those of heSRPT (Berg et al., 2020), weighted shortest remaining processing time for parallel jobs. Jobs of
    unknown work share what they have together equally: none of them is known to end before another. For fairness, a
    part of all weights is shared equally.
    """
    order = sorted(candidates, key=lambda one: (-_size(one), one.submitted, one.name))
    shares = np.diff((np.arange(len(order) + 1) / max(len(order), 1)) ** settings.exponent)
    unknown = [place for place, one in enumerate(order) if one.work is None]
    if unknown:
        shares[unknown] = shares[unknown].mean()
    shares = (1 - settings.fairness) * shares + settings.fairness / max(len(order), 1)
    return {one.name: share for one, share in zip(order, shares.tolist(), strict=True)}


def _size(candidate: Candidate) -> float:
    """Returns the seconds of work by which jobs are ranked.

    Service is rounded down to a power of two, so that two equal jobs do not change places in each round.
    """
    received = 2.0 ** math.floor(math.log2(max(candidate.service, 1.0)))
    if candidate.work is None:
        return max(_UNKNOWN_WORK, received)
    return max(candidate.work, _UNDERSTATED * received)


def thinned(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes that a division looks at: of many, the 1st, 2nd, 3rd, 4th, 6th, 8th, 12th and so on."""
    if len(sizes) <= MANY:
        return sizes
    chosen, step = {0, len(sizes) - 1}, 1
    while step <= len(sizes):
        chosen |= {step - 1, min(step + step // 2, len(sizes)) - 1}
        step *= 2
    return tuple(sizes[place] for place in sorted(chosen))


def options(
    candidate: Candidate, held: int, speed: float, total: int, floor: int, settings: Settings, more: Iterable[int] = ()
) -> Options:
    """Returns what a job may be given.

    Args:
        candidate: The job.
        held: GPUs that it holds.
        speed: Its speed on them, over one GPU.
        total: GPUs that there are.
        floor: GPUs that it gets at least.
        settings: The prices.
        more: Numbers of GPUs that are looked at beside the usual ones, as far as they are legal.

    Raises:
        ValueError: If no legal number of GPUs is between the floor and the total.
    """
    considered = candidate.considered()
    most = min(total, max([candidate.request, settings.growth * candidate.profiled, floor, *considered[:1]]))
    sizes = {size for size in considered if floor <= size <= most}
    sizes |= {size for size in more if floor <= size <= most and candidate.is_legal(size)}
    sizes |= {size for size in (held, floor) if floor <= size <= total and candidate.is_legal(size)}
    counts = np.array(sorted(sizes), dtype=np.int64)
    speeds = candidate.speeds.curve(counts)
    values = {} if floor else {0: stopping(candidate, speed, settings) if held else 0.0}
    if held:
        kept = np.where(counts >= held, speed, speeds) if settings.in_process else 0.0
        speeds = after(candidate, speeds, kept, settings)
    elif candidate.work is not None:  # it ran before, and coming back is a change too
        speeds = after(candidate, speeds, 0.0, settings)
    values |= dict(zip(counts.tolist(), np.log1p(speeds).tolist(), strict=True))
    if not values:
        raise ValueError(f"job {candidate.name}: no legal number of GPUs between its floor, {floor}, and {total}")
    staying = math.log1p(speed) if held else None
    if staying is not None and values.get(held, math.inf) < staying + LESS:
        values[held] = staying
    return Options(values, staying, held)


def stopping(candidate: Candidate, speed: float, settings: Settings) -> float:
    """Returns what it is worth to a job of some speed to be stopped."""
    return math.log1p(-_lost(candidate, np.array(speed), settings).item())


def after(candidate: Candidate, speed: Values, kept: Values | float, settings: Settings) -> Values:
    """Returns the speeds to which changes lead, less their price; ``kept`` is the speed that goes on meanwhile."""
    return speed - _lost(candidate, speed, settings) * np.maximum(speed - kept, 0.0)


def _lost(candidate: Candidate, speed: Values, settings: Settings) -> Values:
    """Returns the share of a new speed that a change costs."""
    often = settings.gap * (candidate.changes + 1) / (candidate.age + settings.warm_up)
    if candidate.work is None:
        return np.full_like(speed, min(often, settings.most_lost))
    ending = np.sqrt(candidate.delay * np.maximum(speed, 1e-6) / max(candidate.work, 1.0))
    return np.minimum(often + ending, settings.most_lost)
