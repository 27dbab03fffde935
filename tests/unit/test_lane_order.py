"""The order of lanes' samples: whole batches, in proportion to the lanes' lengths, each sample once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.batch import share
from elastic_launcher.lane_order import LaneOrder
from tests.support.lane_batches import lane_batches

LANES = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any)


def places(order: LaneOrder, start: int, stop: int) -> list[tuple[int, int]]:
    lanes, found = order.places(start, stop)
    return list(zip(lanes.tolist(), found.tolist(), strict=True))


@given(LANES, st.integers(1, 50))
def test_each_step_has_the_samples_that_are_due_next(lengths: list[int], batch: int) -> None:
    whole = places(LaneOrder(lengths, batch), 0, sum(lengths))
    assert whole == [place for step in lane_batches(lengths, batch) for place in step]
    assert sorted(whole) == [(lane, place) for lane, length in enumerate(lengths) for place in range(length)]
    for lane, length in enumerate(lengths):
        assert [place for of, place in whole if of == lane] == list(range(length))


@given(LANES, st.integers(1, 50), st.data())
def test_a_part_is_the_same_in_whatever_it_is_asked_for(lengths: list[int], batch: int, data: st.DataObject) -> None:
    order = LaneOrder(lengths, batch)
    start = data.draw(st.integers(0, sum(lengths)))
    stop = data.draw(st.integers(start, sum(lengths)))
    assert places(order, start, stop) == places(order, 0, sum(lengths))[start:stop]


@given(LANES, st.integers(1, 50))
def test_lanes_keep_their_shares(lengths: list[int], batch: int) -> None:
    """Webster's method may leave the exact share, by less than half the lanes and one."""
    order = LaneOrder(lengths, batch)
    for step in range(-(-order.total // batch) + 1):
        done = min(step * batch, order.total)
        for count, length in zip(order.before(step), lengths, strict=True):
            assert abs(count - done * length / order.total) < len(lengths) / 2 + 1


def test_lanes_of_unequal_lengths_end_together() -> None:
    found = places(LaneOrder([300, 100, 200], 60), 0, 600)
    for start in range(0, 600, 60):
        assert Counter(lane for lane, _ in found[start : start + 60]) == {0: 30, 1: 10, 2: 20}


def test_lanes_that_do_not_divide_the_batch_end_together() -> None:
    order = LaneOrder([1000] * 8, 12)
    for step in range(1, 8000 // 12):
        assert set(order.before(step).tolist()) <= {step * 12 // 8, step * 12 // 8 + 1}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
def test_each_rank_has_equal_lanes_of_its_own_where_they_can_be_divided_by_the_ranks(world_size: int) -> None:
    order = LaneOrder((1000,) * 12, 48)
    owners: dict[int, set[int]] = {}
    for step in range(len(order.lengths) * 1000 // 48):
        for rank in range(world_size):
            mine = share(48, 48, world_size, rank)
            start = step * 48 + mine.start
            for lane, _ in places(order, start, start + mine.samples):
                owners.setdefault(lane, set()).add(rank)
    assert all(len(ranks) == 1 for ranks in owners.values())
    assert len(owners) == 12


def test_lengths_may_be_as_large_as_can_be() -> None:
    lengths = [10**15, 10**15 + 1, 3]
    order = LaneOrder(lengths, 1000)
    assert places(order, order.total - 1, order.total) == [(1, 10**15)]
    half = LaneOrder(lengths, order.total // 2)
    assert half.before(1).tolist() == [5 * 10**14, 5 * 10**14 + 1, 1], "of two that are due now, the first lane's"
