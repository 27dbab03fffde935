"""Draws by weight: as often as the weights say, whatever slice they are asked for in."""

from __future__ import annotations

import numpy as np
import pytest

from elastic_launcher.weighted_sampling import WeightedSampling, _negative_log

WEIGHTS = [0.0, 1.0, 2.0, 0.5, 0.0, 4.5, 0.0]
SHARES = np.array(WEIGHTS) / sum(WEIGHTS)
WITH_REPLACEMENT = [5, 5, 1, 3, 5, 1, 1, 5, 2, 2, 5, 2]
WITHOUT_REPLACEMENT = [6, 2, 5, 11, 8, 9, 10, 7, 3, 4, 1, 0]


def test_draws_with_replacement_come_as_often_as_the_weights_say() -> None:
    draws = 200_000
    found = WeightedSampling(WEIGHTS, draws).indices(3, 0, 0, draws)
    counts = np.bincount(found, minlength=len(WEIGHTS))
    assert (counts[SHARES == 0] == 0).all()
    deviations = (counts - draws * SHARES)[SHARES > 0] / np.sqrt(draws * SHARES * (1 - SHARES))[SHARES > 0]
    assert np.abs(deviations).max() < 4, deviations


def test_draws_without_replacement_come_once_and_each_by_the_weights_of_what_is_left() -> None:
    sampling, orders = WeightedSampling(WEIGHTS, 3, False), 20_000
    found = np.array([sampling.indices(3, epoch, 0, 3) for epoch in range(orders)])
    assert all(len(set(order)) == 3 for order in found.tolist())
    assert (SHARES[found] > 0).all()
    first = np.bincount(found[:, 0], minlength=len(WEIGHTS)) / orders
    assert first == pytest.approx(SHARES, abs=0.015)
    after = found[found[:, 0] == 5, 1]
    left = np.where(np.arange(len(WEIGHTS)) == 5, 0, SHARES) / (1 - SHARES[5])
    assert np.bincount(after, minlength=len(WEIGHTS)) / len(after) == pytest.approx(left, abs=0.02)


@pytest.mark.parametrize("replacement", [False, True])
def test_what_is_drawn_depends_on_seed_epoch_and_position_alone(replacement: bool) -> None:
    weights = np.arange(1, 1001)
    whole = WeightedSampling(weights, 900, replacement).indices(1, 2, 0, 900)
    for start, stop in ((0, 1), (400, 431), (899, 900), (5, 5)):
        again = WeightedSampling(weights, 900, replacement).indices(1, 2, start, stop)
        assert again.tolist() == whole[start:stop].tolist()
    for seed, epoch in ((1, 3), (2, 2)):
        assert WeightedSampling(weights, 900, replacement).indices(seed, epoch, 0, 900).tolist() != whole.tolist()
    assert len(set(whole.tolist())) == 900 or replacement


def test_an_order_stays_as_it_is() -> None:
    assert WeightedSampling(WEIGHTS, 12).indices(7, 1, 0, 12).tolist() == WITH_REPLACEMENT
    assert WeightedSampling(range(1, 13), 12, False).indices(7, 1, 0, 12).tolist() == WITHOUT_REPLACEMENT


def test_the_logarithm_is_exact_to_the_last_bits() -> None:
    values = np.concatenate([np.linspace(2**-53, 1.0, 100_001), 2.0 ** -np.arange(54.0)])
    assert _negative_log(values) == pytest.approx(-np.log(values), rel=5e-16, abs=1e-16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), r"weights has the shape \[0\]; give one number for each sample"),
        (([[1.0]],), r"weights has the shape \[1, 1\]"),
        (([1, -2],), r"weights\[1\] is -2; it must be 0 or more and finite"),
        (([1, float("nan")],), r"weights\[1\] is nan"),
        (([0, 0],), "all weights are 0"),
        (([1e308, 1e308],), "weights add up to more than a float64 holds"),
        (([1, 2], 0), "num_samples is 0"),
        (([1, 0, 2], 3, False), "num_samples is 3, and 2 samples have a weight above 0.*leave replacement=False out"),
        (([1, 0, 2], None, False), "num_samples is 3, and 2 samples"),
    ],
)
def test_what_can_not_be_drawn_by_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightedSampling(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", [(weight for weight in [1.0]), {1.0, 2.0}, "ab", [[1.0], [1.0, 2.0]]])
def test_weights_that_are_no_list_of_numbers_are_refused_by_name(weights: object) -> None:
    with pytest.raises(TypeError, match=r"weights is of type .*; give a list, an array or a tensor"):
        WeightedSampling(weights)
