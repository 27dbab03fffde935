"""Chooses one option for each job so that the summed value is largest within a number of GPUs.

Exact by dynamic programming while jobs × GPUs are few. Above that by the upper concave hulls of the jobs' options,
which is exact but for the last GPUs into which no step of a hull fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

EXACT_CELLS = 400_000  # jobs × GPUs up to which the dynamic program takes well below a second
_THRIFT = 1e-13  # value lost with each GPU: of equal options the smaller one wins, whatever rounding does
_LAST = 2.0  # that of the last job over that of the first one: of equal jobs the first one gets more


class Choices:
    """What one job may be given.

    Args:
        values: The value of each number of GPUs.
        weight: What a value counts.

    Raises:
        ValueError: If there is no option.
    """

    def __init__(self, values: Mapping[int, float], weight: float) -> None:
        if not values:
            raise ValueError("a job has no option; each needs at least one number of GPUs")
        self.gpus = sorted(values)
        self.values = [weight * values[gpus] for gpus in self.gpus]

    @cached_property
    def steps(self) -> list[tuple[float, int, int]]:
        """The steps of the upper concave hull: minus the value of each further GPU, GPUs before, GPUs after."""
        hull: list[tuple[int, float]] = []
        for point in zip(self.gpus, self.values, strict=True):
            if hull and point[1] <= hull[-1][1]:
                continue
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) < _slope(hull[-1], point):
                hull.pop()
            hull.append(point)
        return [(-_slope(one, other), one[0], other[0]) for one, other in zip(hull, hull[1:], strict=False)]


def choose(jobs: Sequence[Choices], total: int, *, fill: bool = False) -> list[int]:
    """Returns the GPUs of each job.

    Args:
        jobs: What each job may be given; its fewest GPUs are the least that it gets.
        total: GPUs that there are.
        fill: Whether as many GPUs as the options allow are used, also where fewer are worth more; up to
            ``EXACT_CELLS`` only.

    Raises:
        ValueError: If the jobs' fewest GPUs are more than there are.
    """
    least = sum(job.gpus[0] for job in jobs)
    if least > total:
        raise ValueError(f"the jobs need at least {least} GPUs, and there are {total}")
    if len(jobs) * total <= EXACT_CELLS:
        return _exact(jobs, total, fill)
    return _hulls(jobs, total)


def _exact(jobs: Sequence[Choices], total: int, fill: bool) -> list[int]:
    best = np.zeros(total + 1)  # by GPUs: the value of the jobs so far with at most so many, or to fill: just so many
    best[1:] = -np.inf if fill else 0.0
    taken: list[NDArray[np.int64]] = []
    for job, thrift in zip(jobs, np.linspace(_THRIFT, _LAST * _THRIFT, len(jobs)), strict=True):
        gpus = np.array(job.gpus)
        padded = np.concatenate([np.full(gpus[-1], -np.inf), best])
        reached = padded[np.arange(total + 1) + (gpus[-1] - gpus)[:, None]]
        reached += (np.array(job.values) - thrift * gpus)[:, None]
        option = reached.argmax(axis=0)
        best = np.take_along_axis(reached, option[None], axis=0)[0]
        taken.append(gpus[option])
    found, left = [], int(np.flatnonzero(best > -np.inf)[-1])
    for by_gpus in reversed(taken):
        found.append(int(by_gpus[left]))
        left -= found[-1]
    return found[::-1]


def _hulls(jobs: Sequence[Choices], total: int) -> list[int]:
    found = [job.gpus[0] for job in jobs]
    left = total - sum(found)
    steps = [(cost, place, before, after) for place, job in enumerate(jobs) for cost, before, after in job.steps]
    for _, place, before, after in sorted(steps):
        if found[place] == before and after - before <= left:
            found[place] = after
            left -= after - before
    return found


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])
