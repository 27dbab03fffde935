"""Goodput: how fast a job makes progress at a global batch, and at which one it is fastest.

A larger batch is processed faster, but its samples are worth less. Goodput is throughput times efficiency, both as in
Pollux (Qiao et al., OSDI 2021, §3). Efficiency is the gain of AdaScale (Johnson et al., 2020, §3) over the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.fit import Fit
from elastic_launcher.adaptive.observations import Configuration
from elastic_launcher.adaptive.throughput import ThroughputModel
from elastic_launcher.events import significant


def gain(variance: float, square: float, scale: float) -> float:
    """Returns how many steps of the base batch one step is worth: AdaScale's r = (σ² + μ²) / (σ²/S + μ²).

    It is exactly 1 for the base batch, and between 1 and the scale for any other. It is 1 if both numbers are 0.

    Args:
        variance: σ², the trace of the covariance of the gradient of one base batch. Below 0, where unbiased estimates
            can be, it counts as 0.
        square: μ², the squared norm of the true gradient; the same holds for it.
        scale: S, the batch size over the base batch's.

    Raises:
        ValueError: If a number is not finite, or the scale is not above 0.
    """
    for name, value in (("variance", variance), ("square", square), ("scale", scale)):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}; it must be a finite number")
    if scale <= 0:
        raise ValueError(f"scale is {scale!r}; it must be above 0")
    variance, square = max(0.0, variance), max(0.0, square)
    largest = max(variance, square)
    if scale == 1 or largest == 0:
        return 1.0
    noise, signal = variance / largest, square / largest  # their sum is finite
    return min(max((noise + signal) / (noise / scale + signal), min(1.0, scale)), max(1.0, scale))


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """How much the gradient of a batch differs from the true gradient.

    Attributes:
        variance: Trace of the covariance of the gradient of one base batch; below 0 counts as 0.
        square: Squared norm of the true gradient; below 0 counts as 0.

    Raises:
        ValueError: If one is not finite.
    """

    variance: float
    square: float

    def __post_init__(self) -> None:
        for name in ("variance", "square"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}; it must be a finite number")
            object.__setattr__(self, name, max(0.0, value))

    def noise_scale(self, base_batch_size: int) -> float:
        """Returns the batch size whose gradient is half noise, in samples; infinite if gradients are all noise."""
        if self.square == 0:
            return math.inf if self.variance else 0.0
        return base_batch_size * (self.variance / self.square)


DIGITS = 5  # significant ones in documents: what a speed varies by from report to report is noise
LEAST_IMPROVEMENT = 0.05  # of goodput, for which a batch is changed

NO_NOISE = GradientNoise(0.0, 1.0)
"""A larger batch gains nothing: what is assumed before the noise is known, and for a fixed batch."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A batch size on a number of ranks.

    Attributes:
        batch_size: The global batch.
        scale: The global batch over the base batch.
        micro_batch: Samples of the largest micro-batch of rank 0, which has the most samples.
        accumulation: Micro-batches of rank 0.
        samples_per_second: Throughput, over whole epochs.
        gain: How many steps of the base batch one step is worth.
    """

    batch_size: int
    scale: float
    micro_batch: int
    accumulation: int
    samples_per_second: float
    gain: float

    @property
    def efficiency(self) -> float:
        """What a sample is worth, over a sample of the base batch."""
        return self.gain / self.scale

    @property
    def goodput(self) -> float:
        """Samples per second, each counted for as much as it is worth."""
        return self.samples_per_second * self.efficiency


def choice(
    batch_size: int, model: ThroughputModel, noise: GradientNoise, bounds: Bounds, machines: int, ranks: int
) -> Choice:
    """Returns what a batch size amounts to on a number of ranks.

    Raises:
        ValueError: If a number is not a whole one of 1 or more, or batch norm can't take its statistics.
    """
    micro_batches = bounds.micro_batches(batch_size, ranks)
    largest, count = max(micro_batches), len(micro_batches)
    rate = _rate(batch_size, model.step_seconds(machines, ranks, largest, count), model, bounds, machines, ranks)
    scale = batch_size / bounds.base_batch_size
    return Choice(batch_size, scale, largest, count, rate, gain(noise.variance, noise.square, scale))


def _rate(batch_size: int, seconds: float, model: ThroughputModel, bounds: Bounds, machines: int, ranks: int) -> float:
    """Returns the samples per second over an epoch, whose last step may take nearly as long as a full one.

    ``seconds`` are those of a full step.
    """
    full, left = divmod(bounds.epoch_samples, batch_size)
    if not full or not left:
        return batch_size / seconds
    last = bounds.micro_batches(left, ranks)
    return bounds.epoch_samples / (full * seconds + model.step_seconds(machines, ranks, max(last), len(last)))


def best(model: ThroughputModel, noise: GradientNoise, bounds: Bounds, machines: int, ranks: int) -> Choice:
    """Returns the batch size with the highest goodput; of equal ones the smallest."""
    found = [choice(one, model, noise, bounds, machines, ranks) for one in bounds.candidates(ranks)]
    return max(found, key=lambda one: one.goodput)


class Basis(StrEnum):
    """What a goodput is known from."""

    MEASURED = "measured"
    """Steps of this configuration were timed."""
    MODELLED = "modelled"
    """The model says so."""
    BOUNDED = "bounded"
    """It is that of twice the most ranks that were tried: beyond, the model promises nothing."""


@dataclass(frozen=True, slots=True)
class SizeGoodput:
    """The goodput of a job on a number of ranks.

    Attributes:
        machines: Machines that the ranks are on.
        ranks: World size.
        choice: The best batch size.
        samples_per_second: Throughput: measured where it was, else the model's.
        basis: What it is known from.
    """

    machines: int
    ranks: int
    choice: Choice
    samples_per_second: float
    basis: Basis

    @property
    def goodput(self) -> float:
        """Samples per second, each counted as much as it is worth."""
        return self.samples_per_second * self.choice.efficiency

    def document(self) -> dict[str, float]:
        """Returns it as documents have it."""
        found = self.choice
        return {
            "ranks": self.ranks,
            "batch": found.batch_size,
            "micro_batch": found.micro_batch,
            "accumulation": found.accumulation,
            "samples_per_second": significant(self.samples_per_second, DIGITS),
            "efficiency": significant(found.efficiency, DIGITS),
            "goodput": significant(self.goodput, DIGITS),
            "measured": self.basis is Basis.MEASURED,
        }


def goodput_by_size(
    fit: Fit, noise: GradientNoise, bounds: Bounds, sizes: Iterable[tuple[int, int]], used: Iterable[int] = ()
) -> list[SizeGoodput]:
    """Returns the goodput on several numbers of ranks, for the quota controller. For a fixed batch it is throughput.

    Args:
        fit: The fitted throughput model.
        noise: The gradients' noise.
        bounds: Which batch sizes there are (`Bounds.fixed` for one that stays the same).
        sizes: Machines and ranks.
        used: Batch sizes that the job has had. One that was timed on a number of ranks stands for them, where no other
            is so much better that the job would leave it.
    """
    known = tuple(used)
    return [_at_size(fit, noise, bounds, machines, ranks, known) for machines, ranks in sizes]


def _at_size(
    fit: Fit, noise: GradientNoise, bounds: Bounds, machines: int, ranks: int, used: Iterable[int]
) -> SizeGoodput:
    rate = partial(_rate, model=fit.model, bounds=bounds, machines=machines, ranks=ranks)
    found = best(fit.model, noise, bounds, machines, ranks)
    others = (choice(one, fit.model, noise, bounds, machines, ranks) for one in used if bounds.contain(one, ranks))
    close = (one for one in others if one.goodput * (1 + LEAST_IMPROVEMENT) >= found.goodput)
    timed = [
        SizeGoodput(machines, ranks, one, rate(one.batch_size, seconds), Basis.MEASURED)
        for one in (found, *close)
        if (seconds := fit.measured.get(Configuration(machines, ranks, one.micro_batch, one.accumulation)))
    ]
    if timed:
        return max(timed, key=lambda one: one.goodput)
    if ranks <= fit.most_ranks:
        return SizeGoodput(machines, ranks, found, found.samples_per_second, Basis.MODELLED)
    fewer_machines = -(-machines * fit.most_ranks // ranks)
    bounded = best(fit.model, noise, bounds, fewer_machines, fit.most_ranks)
    return SizeGoodput(machines, ranks, bounded, bounded.samples_per_second, Basis.BOUNDED)
