"""The estimates of the gradient noise are unbiased, and their averages travel bit by bit."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from elastic_launcher.adaptive.noise import FEWEST, YOUTH, Average, Estimate, NoiseAverages, estimate, memory

TRUE = np.array([0.3, -0.7, 0.0, 1.1, 0.2, -0.4])
VARIANCES = np.array([4.0, 1.0, 0.5, 9.0, 2.0, 0.1])
SQUARE, TRACE = float(TRUE @ TRUE), float(VARIANCES.sum())
TRIALS = 40_000


def gradients(sizes: Sequence[int], true: np.ndarray = TRUE, seed: int = 0) -> np.ndarray:
    """Returns the mean gradients of parts of so many samples, drawn many times: trials, parts, elements."""
    generator = np.random.default_rng(seed)
    drawn = generator.standard_normal((TRIALS, len(sizes), len(true)))
    return true + drawn * np.sqrt(VARIANCES / np.array(sizes)[:, None])


def measured(sizes: Sequence[int], true: np.ndarray = TRUE) -> tuple[np.ndarray, np.ndarray]:
    """Returns S and the square norm of the mean of disjoint parts that are weighted by samples."""
    parts, shares = gradients(sizes, true), np.array(sizes) / sum(sizes)
    return (parts**2).sum(2) @ shares, ((parts * shares[:, None]).sum(1) ** 2).sum(1)


def estimates(small: np.ndarray, mean: np.ndarray, parts: float, samples: float) -> tuple[np.ndarray, np.ndarray]:
    found = [estimate(s, m, parts=parts, samples=samples) for s, m in zip(small.tolist(), mean.tolist(), strict=True)]
    return np.array([one.square for one in found]), np.array([one.trace for one in found])


def assert_mean(values: np.ndarray, wanted: float) -> None:
    """Fails unless a mean is within four standard errors of what it should be."""
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - wanted) < 4 * error, (values.mean(), wanted, error)


@pytest.mark.parametrize(
    "sizes", [(8, 8), (1, 1, 1, 1, 1), (24, 8), (5, 5, 4), (1, 31), (7, 2, 9, 3, 1, 1, 4, 5)], ids=str
)
def test_parts_weighted_by_samples_are_unbiased_whatever_the_shares(sizes: tuple[int, ...]) -> None:
    square, trace = estimates(*measured(sizes), parts=len(sizes), samples=sum(sizes))
    assert_mean(square, SQUARE)
    assert_mean(trace, TRACE)


@pytest.mark.parametrize("sizes", [(8, 8), (7, 2, 9)], ids=str)
def test_the_variance_between_disjoint_parts_does_not_depend_on_the_gradient(sizes: tuple[int, ...]) -> None:
    _, here = estimates(*measured(sizes), parts=len(sizes), samples=sum(sizes))
    _, there = estimates(*measured(sizes, TRUE + 100.0), parts=len(sizes), samples=sum(sizes))
    assert here == pytest.approx(there, rel=1e-6)
    assert here.min() >= 0


@pytest.mark.parametrize(("first", "samples"), [(6, 48), (24, 48), (1, 2), (40, 41)])
def test_one_part_of_the_step_is_unbiased(first: int, samples: int) -> None:
    parts = gradients((first, samples - first))
    whole = (first * parts[:, 0] + (samples - first) * parts[:, 1]) / samples
    small, mean = (parts[:, 0] ** 2).sum(1), (whole**2).sum(1)
    square, trace = estimates(small, mean, parts=samples / first, samples=samples)
    assert_mean(square, SQUARE)
    assert_mean(trace, TRACE)


@pytest.mark.parametrize("share", [0.125, 0.5, 0.75])
def test_the_smaller_the_one_part_the_less_variance(share: float) -> None:
    samples = 64
    first = int(share * samples)
    parts = gradients((first, samples - first))
    whole = share * parts[:, 0] + (1 - share) * parts[:, 1]
    _, trace = estimates((parts[:, 0] ** 2).sum(1), (whole**2).sum(1), parts=1 / share, samples=samples)
    of_two = 2 * float((VARIANCES**2).sum())
    of_gradient = 4 * float(TRUE @ (VARIANCES * TRUE)) * first / (1 - share)
    assert trace.var() == pytest.approx(of_two * (1 + share) / (1 - share) + of_gradient, rel=0.06)


def test_two_parts_have_the_variance_that_the_text_names() -> None:
    _, trace = estimates(*measured((50, 14)), parts=2, samples=64)
    assert trace.var() == pytest.approx(2 * float((VARIANCES**2).sum()), rel=0.06)


def test_steps_in_a_row_have_the_bias_that_the_text_names() -> None:
    curvature, rate, batch = np.array([2.0, 1.0, 0.5, 3.0, 1.5, 1.0]), 0.2, 16
    first = gradients((batch,), seed=1)[:, 0]
    drawn = gradients((batch,), np.zeros(len(TRUE)), seed=2)[:, 0]
    second = TRUE - rate * curvature * first + drawn
    both = (first + second) / 2
    small = ((first**2).sum(1) + (second**2).sum(1)) / 2
    square, trace = estimates(small, (both**2).sum(1), parts=2, samples=2 * batch)
    moved = rate * curvature
    assert_mean(square, SQUARE - float(TRUE @ (moved * TRUE)) - float((moved * VARIANCES).sum()) / batch)
    more = batch * float(((moved * TRUE) ** 2).sum()) + float(((2 * moved + moved**2) * VARIANCES).sum())
    assert_mean(trace, TRACE + more / 2)


@pytest.mark.parametrize(("parts", "samples"), [(1.0, 8.0), (0.0, 8.0), (math.nan, 8.0), (2.0, 0.0)])
def test_a_step_in_one_part_is_refused(parts: float, samples: float) -> None:
    with pytest.raises(ValueError, match="must be above"):
        estimate(1.0, 1.0, parts=parts, samples=samples)


def averaged(values: Sequence[Estimate | None], kept: float = 0.9) -> NoiseAverages:
    averages = NoiseAverages().resized(1)
    for value in values:
        averages = averages.updated({} if value is None else {0: value}, kept)
    return averages


def test_the_first_estimate_counts_fully() -> None:
    assert averaged([Estimate(2.0, 6.0)]).mean() == Estimate(pytest.approx(2.0), pytest.approx(6.0))
    assert averaged([]).mean() is None and averaged([]).noise_scale() is None


def shares(count: int, kept: float) -> list[float]:
    """Returns what each of so many estimates counts in their average, the first one first."""
    values = [[Estimate(float(at == one), 1.0) for at in range(count)] for one in range(count)]
    found = [averaged(one, kept).mean(0) for one in values]
    assert all(one is not None and one.trace == pytest.approx(1.0) for one in found)
    return [one.square for one in found if one is not None]


def test_while_an_average_is_young_its_later_half_counts_for_three_quarters() -> None:
    found = shares(40, 1 - 1e-9)
    assert found == sorted(found) and sum(found) == pytest.approx(1.0)
    assert sum(found[20:]) == pytest.approx(1 - (1 / 2) ** (1 + YOUTH), abs=0.03) == pytest.approx(0.75, abs=0.03)


def test_once_it_is_not_estimates_count_by_their_age() -> None:
    found = shares(200, 0.9)
    assert [one / two for one, two in itertools.pairwise(found[150:])] == pytest.approx([0.9] * 49)
    assert found[-1] == pytest.approx(0.1)


def test_n_base_batches_keep_as_much_as_n_steps_of_one() -> None:
    assert memory(96, 32) == pytest.approx(memory(32, 32) ** 3)
    assert memory(32, 32) == 0.999


def test_an_average_reaches_over_some_estimates_however_large_the_batch_is() -> None:
    assert memory(1e9, 32) == 1 - 1 / FEWEST


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    before = averaged([Estimate(1.0, 2.0)]).resized(2)
    assert before.updated({0: Estimate(bad, 1.0), 1: Estimate(1.0, 1.0)}, 0.9) is before
    assert before.updated({0: Estimate(1.0, 1.0), 1: Estimate(1.0, bad)}, 0.9) is before


@pytest.mark.parametrize(
    ("square", "trace", "scale"),
    [(2.0, 6.0, 3.0), (-1.0, 6.0, math.inf), (0.0, 6.0, math.inf), (2.0, -1.0, 0.0), (-1.0, -1.0, 0.0)],
)
def test_the_noise_scale_of_averages_below_zero_is_the_nearest_possible(
    square: float, trace: float, scale: float
) -> None:
    assert averaged([Estimate(square, trace)]).noise_scale() == pytest.approx(scale)


def test_groups_add_up_and_one_that_was_not_measured_counts_nothing() -> None:
    averages = NoiseAverages().resized(3).updated({0: Estimate(1.0, 4.0), 2: Estimate(3.0, 8.0)}, 0.9)
    assert averages.noise_scale() == pytest.approx(3.0)
    assert averages.noise_scale(0) == pytest.approx(4.0)
    assert averages.noise_scale(1) is None


def test_averages_go_through_json_bit_by_bit() -> None:
    averages = averaged([Estimate(0.1, 1 / 3), None, Estimate(1e-30, 7e20)]).resized(2)
    assert NoiseAverages.from_numbers(json.loads(json.dumps(averages.to_numbers()))) == averages


@pytest.mark.parametrize("numbers", [[1.0, 2.0], [1.0, 2.0, 1.5], [math.nan, 1.0, 0.5], [1.0, 1.0, -0.1]])
def test_other_numbers_are_refused(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match="three finite numbers"):
        NoiseAverages.from_numbers(numbers)


def test_a_new_group_begins_with_nothing_and_the_others_go_on() -> None:
    averages = averaged([Estimate(1.0, 2.0)])
    assert averages.resized(3).groups == (*averages.groups, Average(), Average())
    assert averages.resized(3).resized(1) == averages
