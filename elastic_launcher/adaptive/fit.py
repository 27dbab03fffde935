"""Fits the throughput model to the step times that a job has measured.

The fit minimizes the squared error of the logarithms of times, so that fast and slow steps count alike. Large errors
count linearly (pseudo-Huber), so that a wrong time does not decide. What the measurements do not determine is
optimistic:

- Synchronization that was never measured costs nothing. If only ranks of one machine were seen, it costs 1.1 times as
  much across machines as within one.
- If micro-batches of one size only were seen, half of their time is the same for any size.
- Without evidence to the contrary nothing overlaps.

These are priors that weigh less than one measurement. Nothing is said about more ranks than twice the most that were
tried (`Fit.most_ranks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_launcher.adaptive.observations import Configuration, Observations
from elastic_launcher.adaptive.throughput import MOST_OVERLAP, NO_OVERLAP, ThroughputModel

GROWTH = 2  # the model is trusted up to so many times the most ranks that were tried
ACROSS = 1.1  # what synchronizing across machines costs at least, over synchronizing within one
FEW_STEPS = 3.0  # a time of so many steps weighs half of one of very many
LARGE_ERROR = 0.1  # in logarithms: errors far above it count linearly
MOST_CALLS = 100  # of the objective: fits take 20 to 60, and more where little is determined

_NOISE = 0.05  # the relative error of a measured time that the priors' weights assume
_SPLIT, _SYNCHRONIZATION, _OVERLAP = 0.1, (0.05, 0.5, 0.05, 0.5), 0.2  # weights of the priors, in measurements
_START = 0.02  # of the largest part: smaller ones begin there, as their logarithms need a beginning
_LEAST, _MOST = 1e-9, 1e9  # what a part can be, of a median step
_MOST_LOGARITHM = 20.0

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model.

    Attributes:
        model: The model.
        error: Root of the mean squared error of the times' logarithms: 0.05 means that times are off by about 5 %.
            Large errors count less, as in the fit.
        measured: Seconds of a step, by configuration, that the model was fitted to.
        most_ranks: Twice the most ranks that were tried. The model is not used beyond.
        assumptions: What was not measured, and what the model assumes instead; one sentence each.
    """

    model: ThroughputModel
    error: float
    measured: Mapping[Configuration, float]
    most_ranks: int
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Measurements as arrays, in units that make every parameter about 1.

    Attributes:
        micro_batch: Samples of micro-batches, over their mean.
        accumulation: Micro-batches of a step.
        synchronization: What multiplies the four parameters of synchronization.
        log_step: Logarithms of steps' seconds, over the median step.
        log_micro_batch: The same of micro-batches; 0 if unknown.
        weight: Weights of steps, which add up to 1 together with those of micro-batches.
        micro_batch_weight: Weights of micro-batches; 0 if unknown.
        prior: What one measurement of the assumed noise adds to the objective.
    """

    micro_batch: Values
    accumulation: Values
    synchronization: Values
    log_step: Values
    log_micro_batch: Values
    weight: Values
    micro_batch_weight: Values
    prior: float


def fit(observations: Observations) -> Fit:
    """Returns the model that explains the measured times best.

    Raises:
        ValueError: If no step has been measured.
        ImportError: If scipy is missing; the message names the extra.
    """
    if not observations:
        raise ValueError("no step has been timed yet")
    minimize, nnls = _scipy()
    known = list(observations)
    configurations = np.array([one.configuration for one in known], dtype=np.float64)
    seconds = np.array([one.seconds for one in known])
    machines, ranks, micro_batch, accumulation = configurations.T
    unit, mean_micro_batch, most_more = float(np.median(seconds)), float(micro_batch.mean()), max(ranks.max() - 2, 1.0)
    more = np.maximum(ranks - 2, 0.0) / most_more
    across, within = machines > 1, (machines == 1) & (ranks > 1)
    partial = np.array([one.micro_batch_seconds or math.nan for one in known])
    weight = np.array([one.count / (one.count + FEW_STEPS) for one in known])
    partial_weight = np.where(np.isnan(partial), 0.0, weight)
    total = float(weight.sum() + partial_weight.sum())
    rows = _Rows(
        micro_batch=micro_batch / mean_micro_batch,
        accumulation=accumulation,
        synchronization=np.column_stack([across, across * more, within, within * more]).astype(np.float64),
        log_step=_logarithms(seconds, unit),
        log_micro_batch=np.nan_to_num(_logarithms(partial, unit)),
        weight=weight / total,
        micro_batch_weight=partial_weight / total,
        prior=_NOISE**2 / total,
    )
    free = np.concatenate([[True, True], rows.synchronization.any(axis=0), [(across | within).any()]])
    found = _minimum(rows, free, minimize, nnls)
    scale = np.array([1, 1 / mean_micro_batch, 1, 1 / most_more, 1, 1 / most_more]) * unit
    parts = np.where(free, np.exp(found), 0.0)[:6] * scale
    if not across.any():
        parts[2:4] = ACROSS * parts[4:6]
    return Fit(
        _model(parts, math.exp(found[6])),
        math.sqrt(_objective(found, rows, priors=False)[0]),
        MappingProxyType(dict(zip((one.configuration for one in known), seconds.tolist(), strict=True))),
        GROWTH * observations.most_ranks,
        _assumptions([one.configuration for one in known]),
    )


def _model(parts: Values, overlap: float) -> ThroughputModel:
    compute, compute_per_sample, across, across_per_rank, within, within_per_rank = parts.tolist()
    overlap = min(max(overlap, NO_OVERLAP), MOST_OVERLAP)  # beside rounding it is
    return ThroughputModel(compute, compute_per_sample, across, across_per_rank, within, within_per_rank, overlap)


def _logarithms(seconds: Values, unit: float) -> Values:
    """Returns the logarithms of times over a unit; absurd ones are cut off before their exponentials overflow."""
    return np.clip(np.log(seconds) - math.log(unit), -_MOST_LOGARITHM, _MOST_LOGARITHM)


def _scipy() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from scipy.optimize import minimize, nnls
    except ImportError as error:
        raise ImportError("fitting a throughput model needs scipy: pip install 'elastic-launcher[adaptive]'") from error
    return minimize, nnls


def _minimum(rows: _Rows, free: NDArray[np.bool_], minimize: Callable[..., Any], nnls: Callable[..., Any]) -> Values:
    """Returns the logarithms of the parameters, in the units of the rows, with the smallest objective.

    It starts where the model is linear, without overlap, and the priors with it.
    """
    linear = np.column_stack([rows.accumulation, rows.accumulation * rows.micro_batch, rows.synchronization])
    relative = np.sqrt(rows.weight) / np.exp(rows.log_step)
    priors = np.sqrt(rows.prior * np.diag([_SPLIT, *_SYNCHRONIZATION]))
    priors = np.column_stack([priors[:, 0], -priors])
    wanted = np.append(np.sqrt(rows.weight), np.zeros(len(priors)))
    seconds = nnls(np.vstack([linear * relative[:, None], priors]), wanted)[0]
    lower = np.log([_LEAST] * 6 + [NO_OVERLAP])
    upper = np.where(free, np.log([_MOST] * 6 + [MOST_OVERLAP]), lower)
    start = np.clip(np.log(np.append(np.maximum(seconds, _START * seconds.max()), NO_OVERLAP)), lower, upper)
    # Not L-BFGS-B, which calls LAPACK: OpenBLAS wakes its threads for that, beside a training for 100 ms of CPU time.
    bounds, options = np.column_stack([lower, upper]), {"maxfun": MOST_CALLS}
    found = minimize(_objective, start, args=(rows,), jac=True, method="TNC", bounds=bounds, options=options)
    return np.clip(np.asarray(found.x, dtype=np.float64), lower, upper)


def _objective(logarithms: Values, rows: _Rows, priors: bool = True) -> tuple[float, Values]:
    """Returns the weighted error with its slope, by the logarithms of the parameters."""
    parameters = np.exp(logarithms)
    overlap = parameters[6]
    compute = parameters[0] + parameters[1] * rows.micro_batch
    synchronization = np.maximum(rows.synchronization @ parameters[2:6], _LEAST * compute)
    difference = np.log(synchronization) - np.log(compute)
    longer = np.logaddexp(0.0, overlap * difference) / overlap
    last = compute * np.exp(longer)
    share = 1 / (1 + np.exp(-overlap * difference))  # of the synchronization in (Cᵞ + Sᵞ)
    step = (rows.accumulation - 1) * compute + last
    value, slope = _robust(np.log(step) - rows.log_step, rows.weight)
    slope /= step
    by_compute = slope * ((rows.accumulation - 1) + last * (1 - share) / compute)
    by_synchronization = slope * last * share / synchronization
    by_overlap = float((slope * last * (share * difference - longer)).sum()) / overlap
    more, more_slope = _robust(np.log(compute) - rows.log_micro_batch, rows.micro_batch_weight)
    by_compute += more_slope / compute
    gradient = np.empty(7)
    gradient[0], gradient[1] = by_compute.sum(), by_compute @ rows.micro_batch
    gradient[2:6] = by_synchronization @ rows.synchronization
    gradient[6] = by_overlap
    value += more
    if priors:
        value += _priors(parameters, rows.prior, gradient)
    return value, gradient * parameters


def _robust(error: Values, weight: Values) -> tuple[float, Values]:
    """Returns the pseudo-Huber loss, error² if small and 2·`LARGE_ERROR`·|error| if large, with its slope."""
    root = np.sqrt(1 + (error / LARGE_ERROR) ** 2)
    return 2 * LARGE_ERROR**2 * float(weight @ (root - 1)), 2 * weight * error / root


def _priors(parameters: Values, prior: float, gradient: Values) -> float:
    """Returns what the priors add to the objective, and adds their slope to the gradient."""
    compute = parameters[0] + parameters[1]
    split = (parameters[0] - parameters[1]) / compute
    gradient[0] += prior * _SPLIT * 2 * split * (1 - split) / compute
    gradient[1] -= prior * _SPLIT * 2 * split * (1 + split) / compute
    weights = np.array(_SYNCHRONIZATION) * prior
    gradient[2:6] += 2 * weights * parameters[2:6]
    overlap = math.log(parameters[6])
    gradient[6] += 2 * prior * _OVERLAP * overlap / parameters[6]
    rest = weights @ parameters[2:6] ** 2 + prior * _OVERLAP * overlap**2
    return float(prior * _SPLIT * split**2 + rest)


def _assumptions(configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """Returns what was not measured, and what the model assumes instead."""
    sizes = {one.micro_batch for one in configurations}
    within = {one.ranks for one in configurations if one.machines == 1 and one.ranks > 1}
    across = {one.ranks for one in configurations if one.machines > 1}
    found = []
    if len(sizes) == 1:
        found.append(f"only micro-batches of {sizes.pop()} were timed: half of their time is for any size")
    if not within and not across:
        found.append("only one rank was timed: synchronization costs nothing")
    elif not within:
        found.append("several ranks on one machine were not timed: synchronization within it costs nothing")
    elif not across:
        found.append("several machines were not timed: synchronization costs 1.1 times as much as within one machine")
    for ranks, where in ((within, "one machine"), (across, "several machines")):
        if ranks == {2}:
            found.append(f"no more than 2 ranks on {where} were timed: further ranks cost nothing")
    return tuple(found)
