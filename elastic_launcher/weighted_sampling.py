"""Draws samples by weight, as torch's WeightedRandomSampler does, as a function of (seed, epoch, position).

Invariant: what is drawn at a position doesn't depend on the slice it is asked for in, nor on the machine: it takes only
additions, multiplications and divisions of float64 numbers, one after the other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_launcher import sampling
from elastic_launcher.batch import whole_number

_SQRT_HALF = 0.7071067811865476
_LOG_2 = 0.6931471805599453
_TERMS = 12  # of the series of the logarithm: s² is at most 0.03, so that the next one is below the last bit
EPOCHS_KEPT = 2  # orders without replacement: at an epoch's end the next one is loaded ahead


class WeightedSampling:
    """Which samples an epoch draws.

    Args:
        weights: How likely each sample is drawn, relative to the others; 0 for never.
        num_samples: Draws in an epoch; as many as there are samples by default.
        replacement: Whether a sample may be drawn again in an epoch.

    Attributes:
        weights: As float64.
        num_samples: Draws in an epoch.
        replacement: Whether a sample may be drawn again in an epoch.

    Raises:
        TypeError: If weights are no list of numbers.
        ValueError: If there is not one number for each sample, one is negative or not finite, all are 0, they add up to
            too much, or there are fewer than an epoch draws without replacement.
    """

    def __init__(self, weights: Any, num_samples: int | None = None, replacement: bool = True) -> None:
        try:
            self.weights: NDArray[np.float64] = np.array(weights, dtype=np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"weights is of type {type(weights).__name__}, of which no numbers can be made ({error}); give a list, "
                "an array or a tensor, with one number for each sample"
            ) from None
        if self.weights.ndim != 1 or not self.weights.size:
            raise ValueError(f"weights has the shape {list(self.weights.shape)}; give one number for each sample")
        odd = np.flatnonzero(~(np.isfinite(self.weights) & (self.weights >= 0)))
        if odd.size:
            raise ValueError(f"weights[{odd[0]}] is {self.weights[odd[0]]:g}; it must be 0 or more and finite")
        self.num_samples = whole_number("num_samples", len(self.weights) if num_samples is None else num_samples)
        self.replacement = replacement
        possible = int(np.count_nonzero(self.weights))
        if not possible:
            raise ValueError("all weights are 0; give one sample a weight above that")
        if not replacement and possible < self.num_samples:
            raise ValueError(
                f"num_samples is {self.num_samples}, and {possible} samples have a weight above 0; an epoch without "
                "replacement draws each once at most: lower num_samples, or leave replacement=False out"
            )
        with np.errstate(over="ignore"):
            self._ends = np.cumsum(self.weights)
        if not np.isfinite(self._ends[-1]):
            raise ValueError("weights add up to more than a float64 holds; divide them by the largest one")
        self._last = int(np.flatnonzero(self.weights)[-1])
        self._order = lru_cache(maxsize=EPOCHS_KEPT)(self._without_replacement)

    def indices(self, seed: int, epoch: int, start: int, stop: int) -> sampling.Indices:
        """Returns the samples that are drawn at the positions from ``start`` up to ``stop`` of an epoch."""
        if not self.replacement:
            return self._order(seed, epoch)[start:stop]
        drawn = sampling.uniform(seed, epoch, start, stop) * self._ends[-1]
        found: sampling.Indices = np.searchsorted(self._ends, drawn, side="right").astype(np.int64)
        return found.clip(max=self._last)

    def _without_replacement(self, seed: int, epoch: int) -> sampling.Indices:
        """Returns an epoch's draws: one after the other, each by the weights of what is left.

        That is the order of exponential random numbers divided by the weights (Efraimidis and Spirakis, 2006).
        """
        possible = np.flatnonzero(self.weights)
        exponential = _negative_log(1.0 - sampling.uniform(seed, epoch, 0, len(self.weights))[possible])
        with np.errstate(over="ignore"):  # a weight next to nothing comes last
            order = np.argsort(exponential / self.weights[possible], kind="stable")
        return possible[order[: self.num_samples]]


def _negative_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns -log of numbers above 0 and up to 1; numpy's own isn't bit-equal on all machines."""
    mantissa, exponent = np.frexp(values)
    low = mantissa < _SQRT_HALF
    mantissa, exponent = np.where(low, mantissa * 2.0, mantissa), exponent - low
    s = (mantissa - 1.0) / (mantissa + 1.0)  # log m = 2 (s + s³/3 + s⁵/5 + …)
    square, total = s * s, np.zeros_like(s)
    for term in range(_TERMS, -1, -1):
        total = total * square + 1.0 / (2 * term + 1)
    found: NDArray[np.float64] = -(exponent * _LOG_2 + 2.0 * s * total)
    return found
