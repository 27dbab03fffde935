"""Decides whether the global batch of a job changes.

A change needs `LEAST_IMPROVEMENT` more goodput, and must also pay if the noise scale is wrong by `NOISE_ERROR` either
way and the throughput model by its own error. It makes the batch at most `GROWTH` times as large: gradients of small
batches say little of the signal in them, and the next decision has those of the larger one.

Invariant: as long as estimates are within these errors of values that don't change, each change raises the true
goodput, so that no batch size comes back. The logarithm of the ratio of two batch sizes' efficiencies is monotonic in
the noise scale: what holds at both ends of a range holds within it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.fit import Fit
from elastic_launcher.adaptive.goodput import LEAST_IMPROVEMENT, Choice, GradientNoise, choice, gain

NOISE_ERROR = 1.25  # as a factor
GROWTH = 2  # what a decision multiplies the batch by at most


@dataclass(frozen=True, slots=True)
class BatchChange:
    """A change of the global batch.

    Attributes:
        old: The global batch so far.
        choice: What follows it.
        improvement: How much more goodput that is, as a share; negative where the old batch is outside the bounds.
        noise_scale: The noise scale in samples.
        reason: The change in one line.
    """

    old: int
    choice: Choice
    improvement: float
    noise_scale: float
    reason: str

    @property
    def new(self) -> int:
        """The global batch from now on."""
        return self.choice.batch_size


def decide(
    batch_size: int, fit: Fit, noise: GradientNoise, bounds: Bounds, machines: int, ranks: int
) -> BatchChange | None:
    """Returns the change of the global batch that pays now, or None.

    Args:
        batch_size: The global batch so far.
        fit: The fitted throughput model.
        noise: The gradients' noise.
        bounds: Which batch sizes there are.
        machines: Machines that the ranks are on.
        ranks: World size.
    """
    sizes = bounds.candidates(ranks)
    noise_scale = noise.noise_scale(bounds.base_batch_size)
    old = choice(batch_size, fit.model, noise, bounds, machines, ranks)
    options = [choice(one, fit.model, noise, bounds, machines, ranks) for one in sizes if one != batch_size]
    within = bounds.base_batch_size <= batch_size <= bounds.max_batch_size
    if not bounds.contain(batch_size, ranks) and (not within or bounds.contain(sizes[0], ranks)):
        new = max(options, key=lambda one: one.goodput)
        outside = f"{batch_size:,} is outside the bounds on {_ranks(ranks)}"
        reason = f"{_sizes(old, new)}: {outside}, {scale_in_words(noise_scale)}"
        return BatchChange(batch_size, new, new.goodput / old.goodput - 1, noise_scale, reason)
    near = [one for one in options if one.batch_size <= GROWTH * batch_size]
    paying = [one for one in near if _pays(old, one, fit.error, noise)]
    new = max(paying, key=lambda one: one.goodput, default=old)
    improvement = new.goodput / old.goodput - 1
    if improvement < LEAST_IMPROVEMENT:
        return None
    reason = (
        f"{_sizes(old, new)}: goodput {_number(old.goodput)} → {_number(new.goodput)} samples/s "
        f"(+{100 * improvement:.0f} %), {scale_in_words(noise_scale)}"
    )
    return BatchChange(batch_size, new, improvement, noise_scale, reason)


def _pays(old: Choice, new: Choice, model_error: float, noise: GradientNoise) -> bool:
    """Returns whether a change raises the goodput even if the estimates are wrong by as much as is allowed for."""
    faster = math.log(new.samples_per_second / old.samples_per_second)
    for variance in (noise.variance / NOISE_ERROR, noise.variance * NOISE_ERROR):
        worth = [gain(variance, noise.square, one.scale) / one.scale for one in (old, new)]
        if faster + math.log(worth[1] / worth[0]) <= model_error:
            return False
    return True


def _sizes(old: Choice, new: Choice) -> str:
    return f"global batch {old.batch_size:,} → {new.batch_size:,}"


def _ranks(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def scale_in_words(noise_scale: float) -> str:
    """Returns a noise scale, in samples, in words."""
    return f"noise scale {_number(noise_scale)}" if math.isfinite(noise_scale) else "noise scale without bound"


def _number(value: float) -> str:
    """Returns a number with three digits at least, and all those before the decimal point."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"
