"""The gradient noise scale: how many samples it takes until a gradient is as much signal as noise.

Notation: G is the true gradient, Σ the covariance of one sample's gradient, ḡ the mean gradient of a step's B samples.
The noise scale is tr Σ / |G|² (McCandlish et al., 2018, "An empirical model of large-batch training", §2.2).

Two measurements of each step give both parts. The square norm of the mean gradient has the expectation

    E|ḡ|² = |G|² + tr Σ / B.

A step is made of parts anyway: what each rank has of it, or a rank's first micro-batch. Let the gradient g_j of part j
be the mean over its b_j samples, and let S = Σ_j c_j |g_j|² with Σ_j c_j = 1. Then

    E S = |G|² + h tr Σ,    with h = Σ_j c_j / b_j.

Both are linear in |G|² and tr Σ, so that with k = h B

    tr Σ = B (S - |ḡ|²) / (k - 1)    and    |G|² = (k |ḡ|² - S) / (k - 1)

are unbiased, whatever the shares, also where parts overlap. They need k > 1: parts smaller than the step.

- n disjoint parts, weighted by samples (c_j = b_j / B): h = n / B, so k = n. Then S - |ḡ|² is Σ_j c_j |g_j - ḡ|², the
  variance between the parts: it does not depend on G, it is never negative, and for normal gradients no other c_j has
  less variance. For equal parts this is the estimator of AdaptDL.
- One part of b samples out of the B (a rank alone, its first micro-batch): k = B / b. The smaller the part, the less
  variance, about (1 + b/B) / (1 - b/B) times that of two disjoint parts of any size, and 4 GᵀΣG b / (1 - b/B) on top.
- Two steps in a row of one rank, as if they were the two parts of one batch of B₁ + B₂ samples, for a rank that is
  alone and has one micro-batch a step. This one is biased, since the second gradient is that of other weights, which
  answer to the first. For SGD of rate η, the Hessian H and equal batches, tr Σ is too large by
  (η² |HG|² B + tr((2ηH + η²H²)Σ)) / 2, and |G|² too small by η GᵀHG + η tr(HΣ) / B.

Samples are drawn without replacement within an epoch of N. Then tr Σ is exact for that data set, and |G|² is less by
tr Σ / N. A sum of token losses counts a sample's tokens together; samples differ in weight then, which is neglected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

MEMORY = 0.999
"""What an average keeps of its past in a step of the base batch, as in AdaptDL; n base batches keep its n-th power."""

FEWEST = 8
"""Estimates that an average reaches over at least: however large the batch, one of them alone says little."""

YOUTH = 1.0
"""In a young average an estimate counts for so many times its share more than in a plain mean: the gradient is not what
it was at the beginning, and the later half of the estimates counts for three quarters."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The two parts of the noise scale, estimated from one step. Either may be negative: that is what unbiased takes.

    Attributes:
        square: |G|², the square norm of the true gradient.
        trace: tr Σ, the variance of one sample's gradient, summed over its elements.
    """

    square: float
    trace: float


def estimate(small: float, mean: float, *, parts: float, samples: float) -> Estimate:
    """Estimates both from a step (see the module).

    Args:
        small: S, the weighted mean of the square norms of the parts' gradients.
        mean: |ḡ|², the square norm of the mean gradient.
        parts: k, above 1: the number of disjoint parts weighted by samples, or B / b for one part of b samples.
        samples: B.

    Raises:
        ValueError: If ``parts`` is not above 1, or ``samples`` not above 0.
    """
    if not parts > 1 or not samples > 0:
        raise ValueError(f"parts is {parts}, which must be above 1, and samples is {samples}, which must be above 0")
    return Estimate(square=(parts * mean - small) / (parts - 1), trace=samples * (small - mean) / (parts - 1))


def memory(samples: float, base_batch_size: int) -> float:
    """Returns what an average keeps of its past when so many samples are added."""
    return max(float(MEMORY ** (samples / base_batch_size)), 1 - 1 / FEWEST)


@dataclass(frozen=True, slots=True)
class Average:
    """Exponential averages of one parameter group's estimates.

    Attributes:
        square: Of |G|², times the weight.
        trace: Of tr Σ, times the weight.
        weight: How much of what it can reach over an average has seen, from 0 to 1.
    """

    square: float = 0.0
    trace: float = 0.0
    weight: float = 0.0

    def add(self, new: Estimate, kept: float) -> Average:
        """Returns the averages with another estimate, which keep this part of their past once they are not young."""
        weight, share = kept * self.weight + (1 - kept), self.share(kept)
        past = (1 - share) * weight / self.weight if self.weight else 0.0
        return Average(
            past * self.square + share * weight * new.square, past * self.trace + share * weight * new.trace, weight
        )

    def share(self, kept: float) -> float:
        """Returns what another estimate counts in the means, from 0 to 1."""
        weight = kept * self.weight + (1 - kept)
        return min(1.0, (1 - kept) / weight * (1 + YOUTH * (1 - weight))) if weight else 1.0

    @property
    def mean(self) -> Estimate | None:
        """The bias-corrected averages; None before the first estimate."""
        return Estimate(self.square / self.weight, self.trace / self.weight) if self.weight else None


@dataclass(frozen=True, slots=True)
class NoiseAverages:
    """The averages of all parameter groups, over all optimizers in their order.

    Invariant: equal estimates in the same order give equal averages, bit by bit, also through `to_numbers`.
    """

    groups: tuple[Average, ...] = ()

    def resized(self, count: int) -> NoiseAverages:
        """Returns the averages of so many groups: new ones have none, and the last ones go."""
        return NoiseAverages((*self.groups[:count], *(Average() for _ in range(count - len(self.groups)))))

    def rearranged(self, came_from: Sequence[int | None]) -> NoiseAverages:
        """Returns the averages of groups that had other numbers before; None is a new group's."""
        known = self.groups
        return NoiseAverages(tuple(Average() if one is None or one >= len(known) else known[one] for one in came_from))

    def updated(self, estimates: Mapping[int, Estimate], kept: float) -> NoiseAverages:
        """Returns the averages after a step; the same ones if a gradient of it was not finite.

        Args:
            estimates: Of the groups that the step has measured, by number.
            kept: What stays of the past (see `memory`).
        """
        if not all(math.isfinite(one.square) and math.isfinite(one.trace) for one in estimates.values()):
            return self
        groups = list(self.groups)
        for number, new in estimates.items():
            groups[number] = groups[number].add(new, kept)
        return replace(self, groups=tuple(groups))

    def mean(self, group: int | None = None) -> Estimate | None:
        """Returns the averages of a group, or of all parameters together; None if nothing was measured.

        Square norms and variances of groups add up, since groups are parts of one gradient.
        """
        chosen = self.groups if group is None else (self.groups[group],)
        known = [mean for one in chosen if (mean := one.mean) is not None]
        if not known:
            return None
        return Estimate(math.fsum(one.square for one in known), math.fsum(one.trace for one in known))

    def noise_scale(self, group: int | None = None) -> float | None:
        """Returns the noise scale, in samples, of a group or of all parameters together; None if nothing was measured.

        An average below 0 counts as 0. Without any signal it is infinite: no batch is large enough.
        """
        mean = self.mean(group)
        if mean is None:
            return None
        square, trace = max(0.0, mean.square), max(0.0, mean.trace)
        if square == 0:
            return math.inf if trace else 0.0
        return trace / square

    def to_numbers(self) -> list[float]:
        """Returns what a checkpoint or a joiner needs."""
        return [number for one in self.groups for number in (one.square, one.trace, one.weight)]

    @staticmethod
    def from_numbers(numbers: Sequence[float]) -> NoiseAverages:
        """Returns the averages that `to_numbers` wrote.

        Raises:
            ValueError: If they are something else.
        """
        whole = len(numbers) % 3 == 0 and all(map(math.isfinite, numbers))
        if not whole or not all(0 <= weight <= 1 for weight in numbers[2::3]):
            raise ValueError("the averages of the gradient noise are not three finite numbers for each parameter group")
        triples = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        return NoiseAverages(tuple(Average(*map(float, three)) for three in triples))
