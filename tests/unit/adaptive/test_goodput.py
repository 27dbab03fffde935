"""Gain, efficiency and goodput, and the batch size at which a job is fastest."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.fit import Fit, fit
from elastic_launcher.adaptive.goodput import NO_NOISE, Basis, GradientNoise, best, choice, gain, goodput_by_size
from elastic_launcher.adaptive.observations import Configuration, Observation, Observations
from elastic_launcher.adaptive.throughput import ThroughputModel
from elastic_launcher.batch import plan_step

MODEL = ThroughputModel(0.05, 0.002, across=0.3, across_per_rank=0.01, within=0.1, within_per_rank=0.005, overlap=1.5)
BOUNDS = Bounds(64, 8192, 128)
numbers = st.floats(0.0, 1e12)
scales = st.floats(1.0, 1e6)
noises = st.builds(GradientNoise, st.floats(0.0, 1e6), st.floats(0.0, 1e6))
ranks_of = st.integers(1, 64)


@given(numbers, numbers, scales)
def test_the_gain_is_between_1_and_the_scale(variance: float, square: float, scale: float) -> None:
    assert 1.0 <= gain(variance, square, scale) <= scale


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_the_gain_of_the_base_batch_is_exactly_1(variance: float, square: float) -> None:
    assert gain(variance, square, 1.0) == 1.0


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_the_gain_is_that_of_exact_arithmetic(variance: int, square: int, scale: int) -> None:
    exact = Fraction(variance + square) / (Fraction(variance, scale) + square)
    assert gain(variance, square, scale) == pytest.approx(float(exact), rel=1e-12)


@given(numbers, st.floats(1e-6, 1e12), scales, st.floats(1.0, 10.0))
def test_the_gain_grows_with_noise_and_scale_and_efficiency_falls(
    variance: float, square: float, scale: float, factor: float
) -> None:
    found = gain(variance, square, scale)
    assert gain(variance * factor, square, scale) >= found * (1 - 1e-12)
    assert gain(variance, square, scale * factor) >= found * (1 - 1e-12)
    assert gain(variance, square, scale * factor) / (scale * factor) <= found / scale * (1 + 1e-12)


@pytest.mark.parametrize(
    ("variance", "square", "expected"),
    [(0.0, 0.0, 1.0), (-1.0, 1.0, 1.0), (1.0, -1.0, 8.0), (-1.0, -1.0, 1.0), (1e308, 1e308, 16 / 9)],
)
def test_estimates_at_the_edge_have_a_gain_too(variance: float, square: float, expected: float) -> None:
    assert gain(variance, square, 8.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.nan, 1.0, 2.0), "variance is nan"),
        ((1.0, math.inf, 2.0), "square is inf"),
        ((1.0, 1.0, math.nan), "scale is nan"),
        ((1.0, 1.0, 0.0), "scale is 0.0; it must be above 0"),
        ((1.0, 1.0, -2.0), "scale is -2.0; it must be above 0"),
    ],
)
def test_numbers_that_have_no_gain_are_refused(arguments: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gain(*arguments)


def test_the_noise_scale_is_the_batch_whose_gradient_is_half_noise() -> None:
    assert GradientNoise(3.0, 2.0).noise_scale(64) == 96.0
    assert GradientNoise(3.0, -2.0).noise_scale(64) == math.inf
    assert GradientNoise(-3.0, 0.0).noise_scale(64) == 0.0
    with pytest.raises(ValueError, match="square is nan"):
        GradientNoise(3.0, math.nan)


def test_goodput_is_throughput_times_efficiency() -> None:
    found = choice(256, MODEL, GradientNoise(3.0, 1.0), BOUNDS, 1, 2)
    assert (found.micro_batch, found.accumulation, found.scale) == (128, 1, 4.0)
    assert found.samples_per_second == pytest.approx(256 / MODEL.step_seconds(1, 2, 128, 1))
    assert found.gain == pytest.approx(16 / 7)
    assert found.efficiency == pytest.approx(4 / 7)
    assert found.goodput == pytest.approx(found.samples_per_second * 4 / 7)


@given(noises, ranks_of, st.integers(1, 8), st.booleans(), st.booleans())
def test_no_batch_size_within_the_bounds_is_much_better_than_the_best(
    noise: GradientNoise, ranks: int, machines: int, accumulation: bool, batch_statistics: bool
) -> None:
    bounds = Bounds(64, 2000, 50, 4, accumulation, batch_statistics)
    machines = min(machines, ranks)
    found = best(MODEL, noise, bounds, machines, ranks)
    plan = plan_step(found.batch_size, bounds.max_micro_batch, ranks, batch_statistics=batch_statistics)
    assert found.accumulation == plan.accumulation
    assert found.micro_batch == max(max(one.micro_batches, default=0) for one in plan.shares)
    legal = [one for one in range(64, 2001, 7) if bounds.contain(one, ranks)]
    assert bounds.contain(found.batch_size, ranks) or (found.batch_size == 64 and not legal)
    for one in legal:
        assert choice(one, MODEL, noise, bounds, machines, ranks).goodput <= found.goodput * 1.02


def test_an_epochs_last_step_counts_for_the_time_that_it_takes() -> None:
    """One of 1,000 samples has 10 steps of 100, and 9 of 112, of which the last one has 104."""
    bounds = replace(BOUNDS, epoch_samples=1000)
    full = MODEL.step_seconds(1, 1, 100, 1)
    assert choice(100, MODEL, NO_NOISE, bounds, 1, 1).samples_per_second == pytest.approx(1000 / (10 * full))
    most, last = MODEL.step_seconds(1, 1, 112, 1), MODEL.step_seconds(1, 1, 104, 1)
    assert choice(112, MODEL, NO_NOISE, bounds, 1, 1).samples_per_second == pytest.approx(1000 / (8 * most + last))
    known = Fit(MODEL, 0.0, {Configuration(1, 1, 112, 1): 2 * most}, 1, ())
    (measured,) = goodput_by_size(known, NO_NOISE, replace(bounds, base_batch_size=112, max_batch_size=112), [(1, 1)])
    assert measured.basis is Basis.MEASURED
    assert measured.samples_per_second == pytest.approx(1000 / (16 * most + last))


def test_no_step_of_few_samples_is_left_over_where_steps_cost_the_same_whatever_they_have() -> None:
    """Gradients are nearly all noise: what counts is how many steps an epoch has."""
    constant, bounds = ThroughputModel(1.0, 1e-6), Bounds(64, 999, 999, epoch_samples=1000)
    found = best(constant, GradientNoise(1e3, 1.0), bounds, 1, 1)
    assert found.batch_size == 500
    assert found.goodput >= max(
        choice(one, constant, GradientNoise(1e3, 1.0), bounds, 1, 1).goodput for one in range(64, 1000)
    )


@given(st.floats(0.0, 1e6), st.floats(1e-3, 1e3), st.floats(1.0, 10.0), ranks_of)
def test_noisier_gradients_never_ask_for_a_smaller_batch(
    variance: float, square: float, factor: float, ranks: int
) -> None:
    small, large = (best(MODEL, GradientNoise(one, square), BOUNDS, 1, ranks) for one in (variance, variance * factor))
    assert large.batch_size >= small.batch_size


def test_without_noise_the_base_batch_is_best_and_with_nothing_else_the_largest() -> None:
    assert best(MODEL, NO_NOISE, BOUNDS, 1, 4).batch_size == 64
    assert best(MODEL, GradientNoise(1.0, 0.0), BOUNDS, 1, 4).batch_size == 8192


@pytest.fixture
def fitted() -> Fit:
    sizes = [(1, 1, 64, 1), (1, 2, 32, 1), (1, 4, 16, 1), (1, 4, 128, 2)]
    return fit(Observations(Observation(*one, MODEL.step_seconds(*one)) for one in sizes))


def test_sizes_say_whether_they_were_measured(fitted: Fit) -> None:
    sizes = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 8), (2, 16)]
    found = goodput_by_size(fitted, NO_NOISE, Bounds.fixed(64, 128), sizes)
    assert [(one.machines, one.ranks) for one in found] == sizes
    assert [one.basis for one in found] == [
        Basis.MEASURED,
        Basis.MEASURED,
        Basis.MODELLED,
        Basis.MEASURED,
        Basis.MODELLED,
        Basis.BOUNDED,
    ]
    assert found[1].samples_per_second == pytest.approx(64 / MODEL.step_seconds(1, 2, 32, 1))


def test_more_ranks_than_twice_the_most_tried_promise_nothing(fitted: Fit) -> None:
    bounded, most = goodput_by_size(fitted, GradientNoise(50.0, 1.0), BOUNDS, [(2, 32), (1, 8)])
    assert bounded.basis == Basis.BOUNDED
    assert (bounded.choice, bounded.goodput) == (most.choice, most.goodput)


@given(st.integers(1, 500), st.integers(1, 40), st.lists(ranks_of, min_size=1, max_size=5))
def test_for_a_fixed_batch_goodput_is_throughput(batch_size: int, max_micro_batch: int, ranks: list[int]) -> None:
    known = Fit(MODEL, 0.0, {}, 128, ())
    for one in goodput_by_size(known, NO_NOISE, Bounds.fixed(batch_size, max_micro_batch), [(1, one) for one in ranks]):
        plan = plan_step(batch_size, max_micro_batch, one.ranks)
        micro_batch = max(plan.shares[0].micro_batches)
        seconds = MODEL.step_seconds(1, one.ranks, micro_batch, plan.accumulation)
        assert one.goodput == pytest.approx(batch_size / seconds)


def test_with_an_adaptive_batch_no_size_is_slower_than_with_the_base_batch(fitted: Fit) -> None:
    sizes = [(1, ranks) for ranks in range(1, 9)]
    adaptive = goodput_by_size(fitted, GradientNoise(20.0, 1.0), BOUNDS, sizes)
    for one in adaptive:
        base = choice(64, fitted.model, NO_NOISE, BOUNDS, one.machines, one.ranks)
        assert one.choice.goodput >= base.goodput
    assert adaptive[-1].choice.batch_size > adaptive[0].choice.batch_size
