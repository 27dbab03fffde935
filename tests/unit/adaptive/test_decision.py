"""A global batch changes when that pays, says why, and never changes back while the truth stays the same."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.decision import GROWTH, NOISE_ERROR, decide
from elastic_launcher.adaptive.fit import Fit, fit
from elastic_launcher.adaptive.goodput import LEAST_IMPROVEMENT, NO_NOISE, GradientNoise, best, choice
from elastic_launcher.adaptive.observations import Observation, Observations
from elastic_launcher.adaptive.throughput import ThroughputModel

MODEL = ThroughputModel(0.05, 0.002, across=0.3, across_per_rank=0.01, within=0.1, within_per_rank=0.005, overlap=1.5)
BOUNDS = Bounds(64, 8192, 128)
EXACT = Fit(MODEL, 0.0, {}, 128, ())
ranks_of = st.integers(1, 64)
batches = st.integers(64, 8192)
noises = st.builds(GradientNoise, st.floats(0.0, 1e4), st.floats(0.0, 1e2))
wrong = st.lists(st.floats(1 / NOISE_ERROR, NOISE_ERROR, exclude_min=True, exclude_max=True), min_size=1, max_size=12)


def test_a_change_has_its_reason_in_one_line() -> None:
    change = decide(256, EXACT, GradientNoise(48.0, 1.0), BOUNDS, 1, 4)
    assert change is not None
    assert (change.old, change.new, change.noise_scale) == (256, 512, 3072.0)
    assert change.reason == "global batch 256 → 512: goodput 1,041 → 1,285 samples/s (+24 %), noise scale 3,072"
    assert change.choice.gain == pytest.approx(49 / (48 / 8 + 1))
    before = choice(256, MODEL, GradientNoise(48.0, 1.0), BOUNDS, 1, 4).goodput
    assert change.improvement == pytest.approx(change.choice.goodput / before - 1)


def test_a_batch_grows_by_doublings_however_large_the_noise_seems() -> None:
    """The noise of a few small batches may seem to be without bound, and learning rates follow the batch."""
    visited = [64]
    while change := decide(visited[-1], EXACT, GradientNoise(1.0, 0.0), BOUNDS, 1, 4):
        visited.append(change.new)
    assert all(old < new <= GROWTH * old for old, new in itertools.pairwise(visited))
    assert len(visited) > 4


def test_gradients_that_are_all_noise_have_no_noise_scale() -> None:
    change = decide(64, EXACT, GradientNoise(1.0, 0.0), BOUNDS, 1, 4)
    assert change is not None and change.noise_scale == math.inf
    assert change.reason.endswith("noise scale without bound")


def test_without_noise_the_base_batch_stays() -> None:
    assert decide(64, EXACT, NO_NOISE, BOUNDS, 1, 4) is None


def test_less_noise_makes_the_batch_smaller() -> None:
    change = decide(4096, EXACT, GradientNoise(1.0, 1.0), BOUNDS, 1, 4)
    assert change is not None and change.new < 1000


@given(batches, noises, ranks_of)
def test_a_change_gains_enough_within_the_bounds(batch_size: int, noise: GradientNoise, ranks: int) -> None:
    change = decide(batch_size, EXACT, noise, BOUNDS, 1, ranks)
    before = choice(batch_size, MODEL, noise, BOUNDS, 1, ranks).goodput
    if change is not None:
        assert change.new != batch_size
        assert BOUNDS.contain(change.new, ranks)
        assert "\n" not in change.reason
        after = choice(change.new, MODEL, noise, BOUNDS, 1, ranks).goodput
        assert after >= before * (1 + LEAST_IMPROVEMENT) or not BOUNDS.contain(batch_size, ranks)
        assert change.new <= GROWTH * batch_size or not BOUNDS.contain(batch_size, ranks)


@given(batches, noises, ranks_of, wrong)
def test_no_batch_size_comes_back_while_estimates_are_wrong_by_as_much_as_is_allowed_for(
    batch_size: int, truth: GradientNoise, ranks: int, errors: list[float]
) -> None:
    visited = [batch_size]
    for error in errors:
        estimate = GradientNoise(truth.variance * error, truth.square)
        change = decide(visited[-1], EXACT, estimate, BOUNDS, 1, ranks)
        if change is not None:
            assert change.new not in visited
            visited.append(change.new)
    if all(BOUNDS.contain(one, ranks) for one in visited):
        goodputs = [choice(one, MODEL, truth, BOUNDS, 1, ranks).goodput for one in visited]
        assert goodputs == sorted(goodputs)


@pytest.mark.parametrize("seed", range(12))
def test_a_job_that_learns_from_noisy_times_settles_near_the_best_batch(seed: int) -> None:
    random = np.random.default_rng(seed)
    truth, ranks = GradientNoise(math.exp(random.uniform(0, 6)), 1.0), int(random.choice([1, 2, 4, 8]))
    observations, visited = Observations(), [64]
    for _ in range(15):
        micro_batches = BOUNDS.micro_batches(visited[-1], ranks)
        configuration = (1, ranks, micro_batches[0], len(micro_batches))
        for step, micro_batch in np.exp(random.normal(0, 0.1, (20, 2))).tolist():
            seconds = step * MODEL.step_seconds(*configuration)
            of_micro_batch = micro_batch * MODEL.micro_batch_seconds(micro_batches[0])
            observations.add(Observation(*configuration, seconds, of_micro_batch))
        estimate = GradientNoise(truth.variance * math.exp(random.normal(0, 0.1)), truth.square)
        change = decide(visited[-1], fit(observations), estimate, BOUNDS, 1, ranks)
        if change is not None:
            assert change.new not in visited
            visited.append(change.new)
    assert len(visited) <= 9
    found = choice(visited[-1], MODEL, truth, BOUNDS, 1, ranks)
    assert found.goodput > 0.95 * best(MODEL, truth, BOUNDS, 1, ranks).goodput


def test_a_model_that_is_wrong_by_more_than_a_change_gains_changes_nothing() -> None:
    noise = GradientNoise(48.0, 1.0)
    assert decide(256, Fit(MODEL, 0.1, {}, 128, ()), noise, BOUNDS, 1, 4) is not None
    assert decide(256, Fit(MODEL, 0.3, {}, 128, ()), noise, BOUNDS, 1, 4) is None


def test_a_batch_outside_the_bounds_changes_whatever_that_costs() -> None:
    bounds = Bounds(64, 8192, 128, accumulation=False)
    change = decide(2048, EXACT, GradientNoise(1.0, 0.0), bounds, 1, 4)
    assert change is not None and change.new == 512 and change.improvement < 0
    assert (
        change.reason == "global batch 2,048 → 512: 2,048 is outside the bounds on 4 ranks, noise scale without bound"
    )


def test_a_batch_above_the_largest_one_never_stays() -> None:
    change = decide(512, EXACT, GradientNoise(1.0, 0.0), Bounds(64, 256, 128, 100), 1, 64)
    assert change is not None and change.new == 64


def test_where_nothing_meets_the_conditions_a_batch_may_stay() -> None:
    assert decide(256, EXACT, GradientNoise(1e3, 1.0), Bounds(64, 256, 128, 100), 1, 64) is None
