"""Batch sizes within bounds: what is compared is legal as long as anything is, and can be divided exactly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.batch import plan_step
from elastic_launcher.virtual_ranks import plan_virtual


@st.composite
def all_bounds(draw: st.DrawFn) -> Bounds:
    base, low = draw(st.integers(1, 300)), draw(st.integers(1, 40))
    most = draw(st.integers(base, 1200))
    high = draw(st.integers(low, 80))
    epoch_samples = draw(st.just(0) | st.integers(most, 10 * most))
    return Bounds(base, most, high, low, draw(st.booleans()), draw(st.booleans()), epoch_samples=epoch_samples)


ranks_of = st.integers(1, 40)


def meets(bounds: Bounds, batch_size: int, ranks: int) -> bool:
    """Says from the plan of all ranks whether a batch size meets all conditions."""
    try:
        plan = plan_step(batch_size, bounds.max_micro_batch, ranks, batch_statistics=bounds.batch_statistics)
    except ValueError:
        return False
    smallest = min(min(one.micro_batches, default=0) for one in plan.shares)
    return (
        bounds.base_batch_size <= batch_size <= bounds.max_batch_size
        and smallest >= bounds.min_micro_batch
        and (bounds.accumulation or plan.accumulation == 1)
    )


@given(all_bounds(), ranks_of, st.data())
def test_a_batch_size_is_contained_if_the_plan_of_all_ranks_meets_the_conditions(
    bounds: Bounds, ranks: int, data: st.DataObject
) -> None:
    batch_size = data.draw(st.integers(1, bounds.max_batch_size + 1))
    assert bounds.contain(batch_size, ranks) == meets(bounds, batch_size, ranks)


@given(all_bounds(), ranks_of)
@example(Bounds(64, 4096, 64, 60, True), 1)
@example(Bounds(64, 64, 32, 1, False), 1)
@example(Bounds(64, 128, 32, 32, True), 16)
def test_what_is_compared_meets_all_conditions_as_long_as_any_batch_size_does(bounds: Bounds, ranks: int) -> None:
    found = bounds.candidates(ranks)
    assert found == sorted(set(found))
    assert all(bounds.base_batch_size <= one <= bounds.max_batch_size for one in found)
    if not all(meets(bounds, one, ranks) for one in found):
        assert found == [bounds.base_batch_size]
        assume(not bounds.batch_statistics)  # there, single odd ones are not looked for
        possible = range(bounds.base_batch_size, bounds.max_batch_size + 1)
        assert not any(meets(bounds, one, ranks) for one in possible)


@given(all_bounds(), ranks_of, st.data())
def test_rank_0_takes_longest_however_long_micro_batches_take(bounds: Bounds, ranks: int, data: st.DataObject) -> None:
    batch_size = data.draw(st.sampled_from(bounds.candidates(ranks)))
    assume(bounds.contain(batch_size, ranks))
    plan = plan_step(batch_size, bounds.max_micro_batch, ranks, batch_statistics=bounds.batch_statistics)
    first = bounds.micro_batches(batch_size, ranks)
    assert len(first) == plan.accumulation
    assert sum(first) == max(one.samples for one in plan.shares)
    assert max(first) == first[0] <= bounds.max_micro_batch


def test_batch_sizes_reach_from_the_base_batch_to_the_largest_one_in_even_steps() -> None:
    found = Bounds(64, 4096, 64).candidates(4)
    assert (found[0], found[-1]) == (64, 4096)
    ratios = [larger / smaller for smaller, larger in zip(found, found[1:], strict=False)]
    assert max(ratios) < 1.15


def test_batch_sizes_give_all_ranks_equal_micro_batches_where_they_can() -> None:
    bounds = Bounds(90, 1000, 32)
    equal = [one for one in bounds.candidates(3) if one % (3 * len(bounds.micro_batches(one, 3))) == 0]
    assert len(equal) > 20


def test_without_accumulation_ranks_limit_the_batch() -> None:
    bounds = Bounds(64, 4096, 64, accumulation=False)
    assert [max(bounds.candidates(ranks)) for ranks in (1, 2, 16, 64, 65)] == [64, 128, 1024, 4096, 4096]


def test_the_least_micro_batch_asks_for_larger_batches_on_many_ranks() -> None:
    bounds = Bounds(64, 1024, 64, 32)
    assert [min(bounds.candidates(ranks)) for ranks in (1, 2, 8, 32)] == [64, 64, 256, 1024]


def test_where_nothing_meets_the_conditions_the_base_batch_holds() -> None:
    assert Bounds(64, 1024, 64, 32).candidates(33) == [64]
    assert Bounds(64, 1024, 32, accumulation=False).candidates(1) == [64]


def test_a_fixed_batch_has_one_size() -> None:
    assert Bounds.fixed(100, 8).candidates(7) == [100]
    assert Bounds.fixed(100, 8, batch_statistics=True).batch_statistics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((64, 32, 8), "base_batch_size is 64; it must not be above max_batch_size, 32"),
        ((64, 128, 8, 9), "min_micro_batch is 9; it must not be above max_micro_batch, 8"),
        ((0, 128, 8), "base_batch_size is 0"),
        ((64, 128.5, 8), "max_batch_size is 128.5"),
        ((64, 128, True), "max_micro_batch is True"),
        ((64, 128, 8, -1), "min_micro_batch is -1"),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bounds(*arguments)


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 12), st.integers(1, 14))
def test_a_deterministic_step_is_divided_by_virtual_ranks(
    batch: int, most: int, virtual_ranks: int, ranks: int
) -> None:
    bounds = Bounds.fixed(batch, most, virtual_ranks=virtual_ranks)
    found = [bounds.micro_batches(batch, ranks, rank) for rank in range(ranks)]
    assert found == [one.micro_batches for one in plan_virtual(batch, most, virtual_ranks, ranks).shares]
    assert bounds.candidates(ranks) == [batch]
    assert max(len(one) for one in found) == len(found[0])
