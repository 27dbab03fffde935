"""An epoch's order: a permutation in any slice, from (seed, epoch, position) alone, that looks like a true shuffle."""

from __future__ import annotations

import hashlib
import math
import tracemalloc
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from elastic_launcher import sampling
from elastic_launcher.batch_schedule import BatchSchedule, DataPass
from elastic_launcher.sampling import BLOCK, SMALL, indices
from tests.support.step_indices import step_indices

BILLION = 10**9
SIZES = [
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    31,
    63,
    64,
    65,
    66,
    67,
    72,
    81,
    82,
    97,
    100,
    127,
    128,
    129,
    256,
    1000,
    1024,
    1797,
    4096,
]
seeds = st.integers(-(2**63), 2**64)


@pytest.mark.parametrize("size", [*SIZES, 9973, 50_000, 65_536, 99_999])
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (7, 3), (-5, 90)])
def test_an_epoch_holds_each_sample_once(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(indices(size, seed, epoch, 0, size)), np.arange(size))


@given(st.integers(1, 3000), seeds, st.integers(0, 2**40))
@example(SMALL, 0, 0)
@example(SMALL + 1, 0, 0)
def test_an_epoch_of_any_size_holds_each_sample_once(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(indices(size, seed, epoch, 0, size)), np.arange(size))


@given(st.integers(1, 3000), seeds, st.integers(0, 1000), st.data())
def test_a_slice_is_that_part_of_the_whole(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    for shuffle in (True, False):
        whole = indices(size, seed, epoch, 0, size, shuffle)
        assert np.array_equal(indices(size, seed, epoch, start, stop, shuffle), whole[start:stop])


@settings(max_examples=30)
@given(st.integers(0, BILLION - 3000), seeds, st.integers(1, 3000))
@example(BILLION - 3000, 0, 3000)
def test_slices_of_a_billion_hold_nothing_twice(start: int, seed: int, count: int) -> None:
    far = (start + BILLION // 2) % (BILLION - 3000)
    assume(abs(far - start) >= count)
    found = np.concatenate([indices(BILLION, seed, 2, first, first + count) for first in (start, far)])
    assert len(np.unique(found)) == 2 * count
    assert found.min() >= 0 and found.max() < BILLION


def test_a_long_slice_of_a_billion_is_spread_evenly() -> None:
    found = indices(BILLION, 11, 0, 123_456_789, 123_456_789 + 1_000_000)
    assert len(np.unique(found)) == 1_000_000
    assert abs(excess(np.bincount(found // (BILLION // 1000), minlength=1000), 1000.0)) < BOUND


@pytest.mark.parametrize("size", [2**31 + 1, 2**53 + 1, 2**63 - 1])
def test_sizes_beyond_32_and_53_bits(size: int) -> None:
    found = indices(size, 1, 0, size - 5000, size)
    assert len(np.unique(found)) == 5000
    assert found.min() >= 0 and found.max() < size
    assert found.max() > size * 0.99 and found.min() < size * 0.01


def test_without_shuffle_a_position_is_its_index() -> None:
    assert indices(100, 7, 3, 20, 30, shuffle=False).tolist() == list(range(20, 30))


@pytest.mark.parametrize("size", [5, SMALL, SMALL + 1, BILLION])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_type_is_int64_for_empty_slices_too(size: int, shuffle: bool) -> None:
    assert indices(size, 1, 1, 1, 5, shuffle).dtype == np.int64
    nothing = indices(size, 1, 1, 3, 3, shuffle)
    assert (nothing.dtype, nothing.shape) == (np.int64, (0,))


def test_the_orders_are_those_of_all_versions() -> None:
    assert indices(10, 7, 0, 0, 10).tolist() == [2, 6, 1, 4, 7, 3, 5, 8, 9, 0]
    assert indices(1797, 0, 1, 100, 104).tolist() == [529, 141, 1499, 1596]
    assert indices(BILLION, 42, 5, BILLION // 2, BILLION // 2 + 3).tolist() == [527691896, 276270061, 511536098]
    seen = hashlib.sha256()
    for size in (1, 2, 64, 65, 100, 1797, 50_000):
        for seed in (0, 7, -3, 2**70):
            seen.update(indices(size, seed, 2, 0, size).astype("<i8").tobytes())
    assert seen.hexdigest() == "b7238ee936ad231b7fa10408a8c1876ab5785186dfb645bf4535b0a00e7a925b"


def test_memory_grows_with_the_slice_and_not_with_the_data_set() -> None:
    def peak(size: int, count: int) -> int:
        tracemalloc.start()
        try:
            indices(size, 0, 0, size // 2, size // 2 + count)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1000, 100)  # what the first call alone allocates
    assert peak(BILLION, 100_000) < 1.1 * peak(1_000_000, 100_000)
    result = 8 * 1_000_000
    assert peak(BILLION, 1_000_000) < result + 5_000_000  # bytes: what a block needs


@pytest.mark.parametrize("start", [0, 1, BLOCK - 1, BILLION - 2 * BLOCK - 1])
@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1])
def test_a_long_slice_is_its_short_ones(start: int, count: int) -> None:
    whole = indices(BILLION, 3, 1, start, start + count)
    cuts = [*range(start, start + count, 5003), start + count]
    assert np.array_equal(whole, np.concatenate([indices(BILLION, 3, 1, *cut) for cut in pairwise(cuts)]))


@given(st.integers(1, 2000), st.integers(1, 300), st.booleans(), st.booleans())
def test_steps_tile_the_epoch(size: int, batch: int, shuffle: bool, drop_last: bool) -> None:
    steps = range(DataPass(BatchSchedule.fixed(batch), size, drop_last=drop_last).steps)
    found = [step_indices(size, batch, 5, 2, step, shuffle, drop_last) for step in steps]
    used = len(steps) * batch if drop_last else size
    assert np.array_equal(np.concatenate([*found, np.empty(0, np.int64)]), indices(size, 5, 2, 0, used, shuffle))
    assert all(len(one) == batch for one in found[:-1])


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_step_that_the_epoch_does_not_have(drop_last: bool) -> None:
    last = 2 if drop_last else 3
    assert len(step_indices(10, 3, 0, 0, last, True, drop_last)) == (3 if drop_last else 1)
    with pytest.raises(ValueError, match=f"step_in_epoch is {last + 1}; the epoch has {last + 1} steps"):
        step_indices(10, 3, 0, 0, last + 1, True, drop_last)


GOOD = {"dataset_size": 100, "seed": 1, "epoch": 0, "start": 0, "stop": 5}


@pytest.mark.parametrize("value", [1.0, True, np.True_, "1", None], ids=repr)
@pytest.mark.parametrize("name", list(GOOD))
def test_what_is_no_whole_number_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="it must be a whole number") as caught:
        indices(**GOOD | {name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; ")


@pytest.mark.parametrize(("name", "value"), [("dataset_size", 0), ("epoch", -1), ("start", -1), ("stop", -1)])
def test_what_is_too_small_is_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}; it must be a whole number, [01] or more"):
        indices(**GOOD | {name: value})


@pytest.mark.parametrize(("start", "stop"), [(0, 101), (101, 101), (5, 4)])
def test_positions_outside_the_data_set_are_named(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=f"positions {start} to {stop} are not within a data set of 100 samples"):
        indices(100, 1, 0, start, stop)


@pytest.mark.parametrize("size", [10, 1000])
def test_numpy_integers_count(size: int) -> None:
    given = indices(np.int64(size), np.int64(-3), np.int32(1), np.int64(0), np.uint8(9))  # type: ignore[arg-type]
    assert np.array_equal(given, indices(size, -3, 1, 0, 9))
    assert np.array_equal(step_indices(10**6, np.int32(10**5), 1, 0, np.int32(9)), step_indices(10**6, 10**5, 1, 0, 9))  # type: ignore[arg-type]


# Against a true shuffle. A statistic is the excess of a chi-square over its degrees of freedom, in standard deviations;
# numpy's shuffle and ours have to stay within the same bound. Seeds are fixed, so that a test says the same each time.

BOUND = 5.0
ORDERS = 6000
MANY_ORDERS = 20_000  # so many that a network of two rounds less would be seen
OURS_BY_SEED, OURS_BY_EPOCH, TRUE = "a seed each", "an epoch each", "a true shuffle"
SOURCES = [OURS_BY_SEED, OURS_BY_EPOCH, TRUE]


def orders(source: str, size: int, count: int = ORDERS) -> np.ndarray:
    """Returns many orders, a row each."""
    if source == TRUE:
        generator = np.random.default_rng(size)
        return np.stack([generator.permutation(size) for _ in range(count)])
    by_seed = source == OURS_BY_SEED
    return np.stack([indices(size, *((number, 3) if by_seed else (7, number)), 0, size) for number in range(count)])


def excess(counts: np.ndarray, expected: float, freedom: int | None = None) -> float:
    """Returns how far a chi-square lies above what is expected, in standard deviations."""
    freedom = freedom or counts.size - 1
    return float((((counts - expected) ** 2).sum() / expected - freedom) / math.sqrt(2 * freedom))


def pairs(first: np.ndarray, second: np.ndarray, size: int) -> np.ndarray:
    """Returns how often each two values stand together."""
    return np.bincount((first * size + second).ravel(), minlength=size * size).reshape(size, size)


def equal_neighbours(digits: np.ndarray, values: np.ndarray) -> float:
    """Returns the excess of how often a digit is that of the sample before, over the positions."""
    many = np.bincount(values)
    chance = (many * (many - 1)).sum() / (values.size * (values.size - 1))
    equal = (digits[:, 1:] == digits[:, :-1]).sum(axis=0)
    count = len(digits)
    z = (equal - count * chance) / math.sqrt(count * chance * (1 - chance))
    return float(((z**2).sum() - z.size) / math.sqrt(2 * z.size))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_a_few_samples_are_as_frequent(size: int, source: str) -> None:
    codes = orders(source, size, 12_000) @ (size ** np.arange(size))
    each = np.array(
        [(codes == sum(v * size**i for i, v in enumerate(order))).sum() for order in permutations(range(size))]
    )
    assert each.sum() == 12_000
    assert each.min() > 0
    assert abs(excess(each, 12_000 / math.factorial(size))) < BOUND


def departures(many: np.ndarray) -> dict[str, float]:
    """Returns the statistics that are beyond the bound, of many orders."""
    count, size = many.shape
    where = np.broadcast_to(np.arange(size), many.shape)
    statistics = {"position": excess(pairs(where, many, size), count / size, (size - 1) ** 2)}
    for lag in {1, 2, math.isqrt(size - 1) + 1}:
        found = pairs(many[:, :-lag], many[:, lag:], size)[~np.eye(size, dtype=bool)]
        statistics[f"sample {lag} later"] = excess(found, count * (size - lag) / found.size)
    values, root = np.arange(size), math.isqrt(size - 1) + 1  # the network works on these two digits
    for name, digit in {"low digit": values % root, "high digit": values // root, "parity": values % 2}.items():
        statistics[name] = equal_neighbours(digit[many], digit)
    return {name: value for name, value in statistics.items() if abs(value) >= BOUND}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "size", [6, 16, 50, 64, 72, *(pytest.param(size, marks=pytest.mark.thorough) for size in (65, 81))]
)
def test_positions_neighbours_and_digits_are_those_of_a_shuffle(size: int, source: str) -> None:
    assert departures(orders(source, size, MANY_ORDERS if size > SMALL else ORDERS)) == {}


@pytest.mark.parametrize("size", [pytest.param(65, marks=pytest.mark.thorough), 72])
def test_the_statistics_see_a_network_of_two_rounds_less(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ROUNDS", sampling.ROUNDS - 2)
    assert "sample 1 later" in departures(orders(OURS_BY_SEED, size, MANY_ORDERS))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", [1000, 1797])
@pytest.mark.parametrize("digit", ["class", "low digit", "high digit", "parity"])
def test_batches_draw_from_classes_like_a_shuffle(size: int, source: str, digit: str) -> None:
    values, root = np.arange(size), math.isqrt(size - 1) + 1
    kinds = {
        "class": values * 10 // size,
        "low digit": values % root,
        "high digit": values // root,
        "parity": values % 2,
    }
    kind = kinds[digit]
    first = kind[orders(source, size, 400)] == 0
    share, batch = (kind == 0).mean(), root
    drawn = first[:, : size // batch * batch].reshape(len(first), -1, batch).sum(axis=2)
    # hypergeometric; a batch's counts over the orders are independent, those of one order's batches nearly so
    variance = batch * share * (1 - share) * (size - batch) / (size - 1)
    z = (drawn - batch * share) / math.sqrt(variance)
    assert abs(z.mean(axis=0) * math.sqrt(len(z))).max() < BOUND
    assert abs((z**2).mean() - 1) < 0.06


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", [16, 64, 65, 1797])
def test_two_orders_have_as_many_samples_in_place_as_two_shuffles(size: int, source: str) -> None:
    many = orders(source, size, 2000)
    same = np.array([(one == other).sum() for one, other in pairwise(many)])
    assert abs(same.mean() - 1) < 0.1  # of a true shuffle's fixed points both mean and variance are 1
    assert abs(same.var() - 1) < 0.2


@pytest.mark.parametrize("size", [SMALL, SMALL + 1, 1797])
def test_seed_and_epoch_are_not_interchangeable(size: int) -> None:
    seen = {tuple(indices(size, seed, epoch, 0, size).tolist()) for seed in range(12) for epoch in range(12)}
    assert len(seen) == 144
