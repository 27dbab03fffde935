"""Trainings of profiled applications whose global batch adapts, as `adaptive` decides it: by goodput.

A job measures its step times and its gradients' noise without error, on the GPUs that it has. What it knows of others
is a fitted model. Progress counts steps at the smallest batch size; a larger step makes up for several of those.

Invariant: how far a training is does not depend on how often it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.fit import fit
from elastic_launcher.adaptive.goodput import LEAST_IMPROVEMENT
from elastic_launcher.adaptive.observations import Configuration, Observation, Observations
from elastic_launcher.adaptive.throughput import ThroughputModel
from elastic_launcher.quota.allocation.worth import Counts
from elastic_launcher.quota.simulation.courses import Application, Values
from elastic_launcher.quota.simulation.physics import Spread

DECISION_SECONDS = 30.0  # from one choice of a batch to the next

Times = tuple[tuple[Configuration, tuple[float, float]], ...]
"""Seconds of a step and of a micro-batch, by configuration, in the order in which they were measured."""


class AdaptiveBatch:
    """A training of an application at the batch sizes with the highest goodput.

    Jobs of the same application share one, so that what several of them measured is fitted once.

    Args:
        application: What it trains.
    """

    def __init__(self, application: Application) -> None:
        self.application = application
        self.bounds = Bounds(
            application.base, max(application.epochs), application.most, min(application.least, application.most)
        )
        self._fitted: dict[frozenset[tuple[Configuration, tuple[float, float]]], ThroughputModel] = {}
        self._batches: dict[int, tuple[Counts, Counts, Counts]] = {}
        self._rates: dict[Spread, float] = {}

    @cached_property
    def steps(self) -> float:
        """Steps of the whole training at the smallest batch size."""
        return float(self.application.ends[-1])

    @property
    def limit(self) -> int:
        """The most GPUs that it can use."""
        return min(self.application.gpus, max(self.application.epochs) // self.application.least)

    def rate(self, spread: Spread) -> float:
        """Returns the mean steps per second on GPUs that are spread over machines, at the best batch in each epoch."""
        if spread not in self._rates:
            batches = self.batches(sum(spread))[0].tolist()
            rates = [self.application.gains(one) / self.application.step_seconds(spread, one) for one in batches]
            progress = np.diff(self.application.ends, prepend=0.0)
            self._rates[spread] = self.steps / float((progress / np.max(rates, axis=0)).sum())
        return self._rates[spread]

    def begin(self) -> Adapting:
        """Returns a training that has done nothing yet."""
        return Adapting(self)

    def batches(self, gpus: int) -> tuple[Counts, Counts, Counts]:
        """Returns the batch sizes that are compared, ascending, with their micro-batches and how many a GPU has."""
        if gpus not in self._batches:
            sizes = self.bounds.candidates(gpus)
            parts = np.array([self.application.micro_batches(one, gpus) for one in sizes], dtype=np.int64)
            self._batches[gpus] = np.array(sizes, dtype=np.int64), parts[:, 0], parts[:, 1]
        return self._batches[gpus]

    def fitted(self, times: Times) -> ThroughputModel:
        """Returns the throughput model that explains what a job measured."""
        key = frozenset(times)
        if key not in self._fitted:
            found = Observations(Observation(*one, *seconds) for one, seconds in sorted(times))
            self._fitted[key] = fit(found).model
        return self._fitted[key]


@dataclass(slots=True)
class Adapting:
    """An adaptive training under way.

    Attributes:
        course: What it does.
        epoch: Its epoch.
        done: Steps at the smallest batch size that it made up for.
        spread: The GPUs that it trained on last.
        batch: Its global batch; 0 before the first.
        times: The step times that it has measured.
        model: What it knows of its goodput.
        chosen_by: What it knew when it chose the batch.
        rest: Seconds of training until it may choose again.
    """

    course: AdaptiveBatch
    epoch: int = 0
    done: float = 0.0
    spread: Spread = ()
    batch: int = 0
    times: Times = ()
    model: GoodputModel | None = None
    chosen_by: GoodputModel | None = None
    rest: float = 0.0

    @property
    def steps_left(self) -> float:
        """Steps at the smallest batch size that it has still to make up for."""
        return max(self.course.steps - self.done, 0.0)

    def train(self, spread: Spread, seconds: float) -> float:
        """Trains for some seconds on GPUs that are spread over machines; returns the last steps per second."""
        rate, _ = self._train(spread, seconds)
        return rate

    def seconds_left(self, spread: Spread) -> float:
        """Returns how long it has still to train, all of that on the same GPUs."""
        return self.copy()._train(spread, math.inf)[1]

    def copy(self) -> Adapting:
        """Returns one that has come as far."""
        return replace(self)

    def _train(self, spread: Spread, seconds: float) -> tuple[float, float]:
        """Trains for so many seconds at most; returns the last steps per second, and the seconds that it trained."""
        ends = self.course.application.ends
        if spread != self.spread:
            self.spread = spread
            self._choose()
        rate, trained = 0.0, 0.0
        while self.epoch < len(ends):
            rate = self._measure()
            epoch = max(float(ends[self.epoch]) - self.done, 0.0) / rate
            choice = math.inf if self.model is self.chosen_by else self.rest
            span = min(epoch, choice, seconds - trained)
            trained, self.rest = trained + span, max(self.rest - span, 0.0)
            self.done = self.done + rate * span if span < epoch else float(ends[self.epoch])
            if span == epoch:
                self.epoch += 1
            elif span == choice:
                self._choose()
            else:
                break
        return rate, trained

    def _measure(self) -> float:
        """Returns the steps per second in this epoch, and learns from them."""
        application, gpus = self.course.application, sum(self.spread)
        micro_batch, count = application.micro_batches(self.batch, gpus)
        step, synchronization = application.measured(self.spread, micro_batch)
        alone = step - synchronization
        seconds = step + (count - 1) * alone
        configuration = Configuration(len(self.spread), gpus, micro_batch, count)
        if all(one != configuration for one, _ in self.times):
            self.times = (*self.times, (configuration, (seconds, alone)))
        variances, squares = application.noise(self.batch)
        variance, square = float(variances[self.epoch]), float(squares[self.epoch])
        known = GoodputModel(self.course, self.course.fitted(self.times), variance, square)
        if known != self.model:
            self.model = known
        return float(application.gains(self.batch)[self.epoch]) / seconds

    def _choose(self) -> None:
        """Chooses the batch, as jobs do: a change has to pay."""
        self.chosen_by, self.rest = self.model, DECISION_SECONDS
        machines, gpus = len(self.spread), sum(self.spread)
        sizes = self.course.batches(gpus)[0]
        if self.model is None:
            self.batch = int(sizes[0])
            return
        goodputs = self.model.goodputs(machines, gpus)
        best = int(goodputs.argmax())
        if self.batch in sizes:
            present = goodputs[int(np.searchsorted(sizes, self.batch))]
            if goodputs[best] < (1 + LEAST_IMPROVEMENT) * present:
                return
        self.batch = int(sizes[best])


@dataclass(frozen=True)
class GoodputModel:
    """What a job knows of its goodput.

    Attributes:
        course: What it does.
        throughput: How long a step takes.
        variance: The variance of the gradient of the smallest batch.
        square: Its squared norm.
    """

    course: AdaptiveBatch
    throughput: ThroughputModel
    variance: float
    square: float
    _speeds: dict[int, GoodputSpeeds] = field(default_factory=dict, repr=False, compare=False)

    def goodputs(self, machines: int, gpus: int) -> Values:
        """Returns the steps at the smallest batch size per second, for each batch size that is compared."""
        sizes, micro_batch, count = self.course.batches(gpus)
        gain = (self.variance + self.square) / (self.variance * self.course.application.base / sizes + self.square)
        found: Values = gain / step_seconds(self.throughput, machines, gpus, micro_batch, count)
        return found

    def speeds(self, machine_gpus: int) -> GoodputSpeeds:
        """Returns its speeds at the best batch, on machines of so many GPUs."""
        if machine_gpus not in self._speeds:
            self._speeds[machine_gpus] = GoodputSpeeds(self, machine_gpus)
        return self._speeds[machine_gpus]


class GoodputSpeeds:
    """The speeds of a job at the batch that is best on each number of GPUs, over one GPU.

    Args:
        model: What the job knows.
        machine_gpus: GPUs of a machine.
    """

    def __init__(self, model: GoodputModel, machine_gpus: int) -> None:
        self._model = model
        self._machine_gpus = machine_gpus
        self._known: dict[tuple[int, int], float] = {}

    @cached_property
    def one_gpu(self) -> float:
        """Steps at the smallest batch size per second on one GPU."""
        return self._goodput(1, 1)

    @cached_property
    def _curve(self) -> Values:
        """The speed on each number of GPUs on the fewest machines; more GPUs are never slower."""
        counts = range(1, self._model.course.limit + 1)
        best: Sequence[float] = [self._goodput(-(-gpus // self._machine_gpus), gpus) for gpus in counts]
        return np.maximum.accumulate(np.array(best)) / self.one_gpu

    def curve(self, counts: Counts) -> Values:
        """Returns the speeds on numbers of GPUs, each on the fewest machines that hold them."""
        found: Values = self._curve[counts - 1]
        return found

    def at(self, machines: int, gpus: int) -> float:
        """Returns the speed on GPUs of a number of machines."""
        return self._goodput(machines, gpus) / self.one_gpu

    def _goodput(self, machines: int, gpus: int) -> float:
        if (machines, gpus) not in self._known:
            self._known[machines, gpus] = float(self._model.goodputs(machines, gpus).max())
        return self._known[machines, gpus]


def step_seconds(
    model: ThroughputModel, machines: int, ranks: int, micro_batch: NDArray[np.int64], accumulation: NDArray[np.int64]
) -> Values:
    """Returns what `ThroughputModel.step_seconds` says of several micro-batches at once."""
    compute = model.compute + model.compute_per_sample * micro_batch
    synchronization = model.synchronization_seconds(machines, ranks)
    longer, shorter = np.maximum(compute, synchronization), np.minimum(compute, synchronization)
    last = longer * (1 + (shorter / longer) ** model.overlap) ** (1 / model.overlap)
    seconds: Values = (accumulation - 1) * compute + last
    return seconds
