"""Quadratic trainings whose gradient noise is known, and what a sequence of averages says about it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn

from elastic_launcher.adaptive.noise import Average, Estimate, NoiseAverages

SAMPLES, BATCH, SIZES = 1000, 48, (5, 1, 7, 3)
"""An epoch ends with a tail of 40 samples."""
NUMEL = sum(SIZES)
SPREAD = torch.linspace(0.3, 2.0, NUMEL, dtype=torch.float64)
DATA = torch.randn(SAMPLES, NUMEL, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * SPREAD
START = torch.linspace(-0.5, 1.0, NUMEL, dtype=torch.float64)
GRADIENT = START - DATA.mean(0)
VARIANCES = DATA.var(0)
"""Without replacement, this is what the estimates of tr Σ are of, and those of |G|² are less by it over the samples."""


class Quadratic(nn.Module):
    """Half the square distance from a point: the gradient of a sample is the difference, whatever the weights."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(part.clone().to(dtype)) for part in START.split(SIZES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.cat(list(self.parts)) - x).square().sum(1).mean() / 2


def still(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups whose parameters alternate; no step moves anything."""
    parts = list(model.parameters())
    return torch.optim.SGD([{"params": parts[::2]}, {"params": parts[1::2]}], lr=0.0)


def elements(*numbers: int) -> torch.Tensor:
    """Returns which elements belong to some of the parameters."""
    chosen = torch.zeros(NUMEL, dtype=torch.bool)
    for number, part in enumerate(torch.arange(NUMEL).split(SIZES)):
        chosen[part] = number in numbers
    return chosen


EVERYTHING = elements(0, 1, 2, 3)


def estimates(found: Sequence[NoiseAverages], group: int | None) -> list[Estimate]:
    """Returns the estimate of each step, of a group or all, back from the averages before and after it."""
    values = []
    for before, after in itertools.pairwise(found):
        if not before.groups or before == after:
            continue
        parts = []
        for one, two in zip(before.groups, after.groups, strict=True):
            kept = (1 - two.weight) / (1 - one.weight)
            parts.append(_added(one, two, one.share(kept)) if kept < 1 else Estimate(0.0, 0.0))
        chosen = parts if group is None else [parts[group]]
        values.append(Estimate(sum(one.square for one in chosen), sum(one.trace for one in chosen)))
    return values


def _added(before: Average, after: Average, share: float) -> Estimate:
    """Returns the estimate that counts for a share of the averages after it."""
    old, new = before.mean or Estimate(0.0, 0.0), after.mean
    assert new is not None
    square, trace = new.square - (1 - share) * old.square, new.trace - (1 - share) * old.trace
    return Estimate(square / share, trace / share)


def assert_mean(values: Sequence[float], wanted: float) -> None:
    """Fails unless the mean is within four standard errors of what it should be."""
    numbers = torch.tensor(values, dtype=torch.float64)
    error = float(numbers.std()) / math.sqrt(len(values))
    assert abs(float(numbers.mean()) - wanted) < 4 * error, (float(numbers.mean()), wanted, error)


def assert_known(found: Sequence[NoiseAverages], group: int | None, chosen: torch.Tensor, fewest: int = 80) -> None:
    """Fails unless at least so many estimates agree with the closed form over the chosen elements."""
    values = estimates(found, group)
    assert len(values) >= fewest
    trace = float(VARIANCES[chosen].sum())
    assert_mean([one.trace for one in values], trace)
    assert_mean([one.square for one in values], float(GRADIENT[chosen].square().sum()) - trace / SAMPLES)
