"""What jobs have to do: work that follows Amdahl's law, and trainings of applications that were profiled."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elastic_launcher.quota.simulation.physics import Spread

Rows = NDArray[np.float64]
Values = NDArray[np.float64]


@dataclass(slots=True)
class Steady:
    """A training whose speed depends on its GPUs alone."""

    course: Amdahl | FixedBatch
    done: float = 0.0
    model: None = None

    @property
    def steps_left(self) -> float:
        """Steps that it has still to do."""
        return max(self.course.steps - self.done, 0.0)

    def train(self, spread: Spread, seconds: float) -> float:
        """Trains for some seconds; returns the steps per second."""
        rate = self.course.rate(spread)
        self.done += seconds * rate
        return rate

    def seconds_left(self, spread: Spread) -> float:
        """Returns how long it has still to train, all of that on the same GPUs."""
        return self.steps_left / self.course.rate(spread)

    def copy(self) -> Steady:
        """Returns one that has come as far."""
        return Steady(self.course, self.done)


@dataclass(frozen=True, slots=True)
class Amdahl:
    """Work of which a part is not faster on more GPUs; machines make no difference.

    Attributes:
        seconds: What all of it takes on one GPU.
        serial: The share that is not divided, 0 to 1.
    """

    seconds: float
    serial: float = 0.0

    @property
    def steps(self) -> float:
        """Optimizer steps: one for each second on one GPU."""
        return self.seconds

    def rate(self, spread: Spread) -> float:
        """Returns the steps per second on GPUs that are spread over machines."""
        return 1.0 / (self.serial + (1.0 - self.serial) / sum(spread))

    def begin(self) -> Steady:
        """Returns a training that has done nothing yet."""
        return Steady(self)


@dataclass(frozen=True)
class Application:
    """An application as it was profiled.

    Attributes:
        times: For each spread of GPUs over up to some machines: rows of micro-batch, seconds of a step, and of its
            synchronization.
        larger: The same by machines and GPUs, for all numbers of machines.
        epochs: For each batch size and epoch: rows of the progress at its end, and the squared norm and the variance
            of the gradient.
        most: The largest micro-batch of a GPU.
    """

    times: Mapping[Spread, Rows]
    larger: Mapping[tuple[int, int], Rows]
    epochs: Mapping[int, Rows]
    most: int

    @property
    def least(self) -> int:
        """The smallest micro-batch that was measured."""
        return int(min(rows[0, 0] for rows in self.times.values()))

    @property
    def gpus(self) -> int:
        """The most GPUs that were measured."""
        return max(gpus for _, gpus in self.larger)

    def steps(self, batch: int) -> float:
        """Returns the steps of the whole training at a batch size.

        Progress counts steps at the smallest batch size. A larger step makes up for several of those, which is its
        gain (AdaScale: Johnson et al., 2020).
        """
        return float((np.diff(self.ends, prepend=0.0) / self.gains(batch)).sum())

    @property
    def base(self) -> int:
        """The smallest batch size."""
        return min(self.epochs)

    @cached_property
    def ends(self) -> Values:
        """The progress at the end of each epoch, in steps at the smallest batch size."""
        ends: Values = self._table[:, :, 0].min(axis=0)
        return ends

    def noise(self, batch: int) -> tuple[Values, Values]:
        """Returns the variance of the gradient at a batch size, and its squared norm, by epoch."""
        row = _across(batch, self._sizes, self._table)
        return row[:, 2], row[:, 1]

    def gains(self, batch: int) -> Values:
        """Returns by epoch how many steps at the smallest batch size a step is worth."""
        variances, squares = self.noise(batch)
        gains: Values = (variances + squares) / (variances * self.base / batch + squares)
        return gains

    @cached_property
    def _sizes(self) -> list[int]:
        return sorted(self.epochs)

    @cached_property
    def _table(self) -> Rows:
        return np.array([self.epochs[size] for size in self._sizes])  # by batch size, epoch and column

    def step_seconds(self, spread: Spread, batch: int) -> float:
        """Returns the seconds of a step of a global batch, the micro-batches of a GPU one after another."""
        micro_batch, micro_batches = self.micro_batches(batch, sum(spread))
        step, synchronization = self.measured(spread, micro_batch)
        return step + (micro_batches - 1) * (step - synchronization)

    def micro_batches(self, batch: int, gpus: int) -> tuple[int, int]:
        """Returns the samples of a micro-batch, and how many of those a GPU has in a step.

        One GPU divides a batch above the smallest in two at least, as the simulator of Pollux has it.
        """
        share = math.ceil(batch / gpus)
        count = math.ceil(share / self.most)
        if gpus == 1 and batch > self.base:
            count = max(count, 2)
        return math.ceil(share / count), count

    def measured(self, spread: Spread, micro_batch: int) -> tuple[float, float]:
        """Returns the seconds of a step of one micro-batch, and of its synchronization."""
        if spread in self.times:
            return _at(self.times[spread], micro_batch)
        planes = sorted({machines for machines, _ in self.larger})
        machines = min(len(spread), planes[-1])
        low = max(count for count in planes if count <= machines)
        high = min(count for count in planes if count >= machines)
        part = (machines - low) / (high - low) if high > low else 0.0
        step, synchronization = (
            (1 - part) * one + part * other
            for one, other in zip(
                *(self._plane(count, sum(spread) / len(spread), micro_batch) for count in (low, high)), strict=True
            )
        )
        return step, synchronization

    def _plane(self, machines: int, gpus_each: float, micro_batch: int) -> tuple[float, float]:
        """Returns the same for a number of machines that was measured, with so many GPUs on each."""
        counts = sorted(gpus for count, gpus in self.larger if count == machines)
        values = np.array([_at(self.larger[machines, gpus], micro_batch) for gpus in counts])
        wanted = gpus_each * machines
        return float(np.interp(wanted, counts, values[:, 0])), float(np.interp(wanted, counts, values[:, 1]))


@dataclass(frozen=True)
class FixedBatch:
    """A training of an application at one batch size.

    Attributes:
        application: What it trains.
        batch: Samples of a step.
    """

    application: Application
    batch: int
    _rates: dict[Spread, float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def steps(self) -> float:
        """Optimizer steps of the whole training."""
        return self.application.steps(self.batch)

    def rate(self, spread: Spread) -> float:
        """Returns the steps per second on GPUs that are spread over machines."""
        if spread not in self._rates:
            self._rates[spread] = 1.0 / self.application.step_seconds(spread, self.batch)
        return self._rates[spread]

    def begin(self) -> Steady:
        """Returns a training that has done nothing yet."""
        return Steady(self)


def _at(rows: Rows, micro_batch: int) -> tuple[float, float]:
    """Returns the second and third column at a micro-batch; beyond what was measured, at the nearest."""
    return float(np.interp(micro_batch, rows[:, 0], rows[:, 1])), float(np.interp(micro_batch, rows[:, 0], rows[:, 2]))


def _across(batch: int, sizes: list[int], table: Rows) -> Values:
    """Returns the row of a table at a batch size between its sizes; beyond them, the nearest."""
    above = min(max(bisect_left(sizes, batch), 1), len(sizes) - 1)
    low, high = sizes[above - 1], sizes[above]
    part = min(max((batch - low) / (high - low), 0.0), 1.0)
    row: Values = table[above - 1] + part * (table[above] - table[above - 1])
    return row
