"""The speed of a job on any number of GPUs, from the steps per second that it measured on a few.

The model of a step's seconds is serial + parallel / GPUs, plus a constant where ranks talk within a machine and another
one where they talk across machines. It is fitted to the measurements and then bent so that it passes through them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_SERIAL_PRIOR = 0.02  # of a step's time before other sizes are known
_PRIOR_WEIGHT = 0.05  # of one measurement, so that few of them decide
_ACROSS = 1.1  # what talking across machines costs at least, over talking within one


class MeasuredSpeeds:
    """The speeds of one job.

    Args:
        steps_per_second: What it measured, by machines and GPUs. Nothing measured means a speed that is linear.
        machine_gpus: GPUs of a machine.
    """

    def __init__(self, steps_per_second: Mapping[tuple[int, int], float], machine_gpus: int) -> None:
        self._measured = dict(sorted(steps_per_second.items()))
        self._machine_gpus = machine_gpus
        self._known: dict[tuple[int, int], float] = {}

    @classmethod
    def by_size(cls, steps_per_second: Mapping[int, float], machine_gpus: int) -> MeasuredSpeeds:
        """Returns the speeds of a job that measured each size on the fewest machines."""
        return cls({(-(-gpus // machine_gpus), gpus): rate for gpus, rate in steps_per_second.items()}, machine_gpus)

    def curve(self, counts: NDArray[np.int64]) -> Values:
        """Returns the speeds on numbers of GPUs on the fewest machines, over one GPU; more GPUs are never slower."""
        if not self._measured:
            return counts.astype(np.float64)
        turns = [self._machine_gpus, *(gpus for _, gpus in self._measured)]  # a speed falls only after these
        gpus = np.union1d(counts, np.array(turns))
        rates = self._rates(-(-gpus // self._machine_gpus), gpus)
        best = np.maximum.accumulate(rates) / self.one_gpu
        return best[np.searchsorted(gpus, counts)]

    def at(self, machines: int, gpus: int) -> float:
        """Returns the speed on GPUs of a number of machines, over one GPU."""
        if not self._measured:
            return float(gpus)
        if (machines, gpus) not in self._known:
            self._known[machines, gpus] = self.steps_per_second(machines, gpus) / self.one_gpu
        return self._known[machines, gpus]

    @cached_property
    def one_gpu(self) -> float:
        """Steps per second on one GPU."""
        return self.steps_per_second(1, 1)

    def steps_per_second(self, machines: int, gpus: int) -> float:
        """Returns the steps per second on GPUs of a number of machines."""
        if (machines, gpus) in self._measured:
            return self._measured[machines, gpus]
        return float(self._rates(np.array([machines]), np.array([gpus]))[0])

    def _rates(self, machines: NDArray[np.int64], gpus: NDArray[np.int64]) -> Values:
        bend = np.interp(np.log(gpus), *self._bends)
        rates = np.exp(bend) / (_features(machines, gpus) @ self._seconds)
        for place, key in enumerate(zip(machines.tolist(), gpus.tolist(), strict=True)):
            rates[place] = self._measured.get(key, rates[place])
        return rates

    @cached_property
    def _seconds(self) -> Values:
        """The seconds of each part of a step."""
        keys = np.array(list(self._measured))
        times = 1 / np.array(list(self._measured.values()))
        rows = _features(keys[:, 0], keys[:, 1]) / times[:, None]
        prior = np.array([[1 - _SERIAL_PRIOR, -_SERIAL_PRIOR, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
        prior *= _PRIOR_WEIGHT / times.min()
        alone = not (keys[:, 0] > 1).any()
        inside = bool(((keys[:, 0] == 1) & (keys[:, 1] > 1)).any())
        free = [True, True, inside, not alone]
        seconds = _non_negative(np.vstack([rows, prior]), np.append(np.ones(len(rows)), np.zeros(len(prior))), free)
        if alone:
            seconds[3] = _ACROSS * seconds[2]
        return seconds

    @cached_property
    def _bends(self) -> tuple[Values, Values]:
        """Where the measurements leave the model, by the logarithm of the GPUs."""
        keys = np.array(list(self._measured))
        logs = np.log(np.array(list(self._measured.values())) * (_features(keys[:, 0], keys[:, 1]) @ self._seconds))
        errors: dict[int, list[float]] = {}
        for (_, gpus), error in zip(self._measured, logs.tolist(), strict=True):
            errors.setdefault(gpus, []).append(error)
        return np.log(np.array(sorted(errors))), np.array([np.mean(errors[gpus]) for gpus in sorted(errors)])


def _features(machines: NDArray[np.int64], gpus: NDArray[np.int64]) -> Values:
    inside, across = (machines == 1) & (gpus > 1), machines > 1
    return np.column_stack([np.ones(len(gpus)), 1 / gpus, inside, across])


def _non_negative(rows: Values, wanted: Values, free: list[bool]) -> Values:
    """Returns the least-squares solution without negative parts: the best of those over each set of free parts."""
    best, least = np.zeros(rows.shape[1]), np.inf
    places = [place for place, may in enumerate(free) if may]
    for count in range(len(places), 0, -1):
        for columns in itertools.combinations(places, count):
            found = np.linalg.lstsq(rows[:, columns], wanted, rcond=None)[0]
            error = float(((rows[:, columns] @ found - wanted) ** 2).sum())
            if (found >= 0).all() and error < least - 1e-12:
                best, least = np.zeros(rows.shape[1]), error
                best[list(columns)] = found
        if count == len(places) and least < np.inf:
            break  # no part has to be left out
    return best
