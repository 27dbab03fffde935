"""The order of lanes' samples: whole batches, evenly from all lanes, each sample once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.batch import share
from elastic_launcher.lane_order import LaneOrder
from tests.support.lane_batches import lane_batches

Lanes = st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any)


def places(order: LaneOrder, start: int, stop: int) -> list[tuple[int, int]]:
    lanes, found = order.places(start, stop)
    return list(zip(lanes.tolist(), found.tolist(), strict=True))


@given(Lanes, st.integers(0, 20))
def test_each_step_is_dealt_out_evenly(lengths: list[int], more: int) -> None:
    order = LaneOrder(tuple(lengths), len(lengths) + more)
    whole = places(order, 0, sum(lengths))
    assert whole == [place for step in lane_batches(lengths, order.batch) for place in step]
    assert sorted(whole) == [(lane, place) for lane, length in enumerate(lengths) for place in range(length)]
    for lane in range(len(lengths)):
        assert [place for of, place in whole if of == lane] == list(range(lengths[lane]))


@given(Lanes, st.integers(0, 20), st.data())
def test_a_part_is_the_same_in_whatever_it_is_asked_for(lengths: list[int], more: int, data: st.DataObject) -> None:
    order = LaneOrder(tuple(lengths), len(lengths) + more)
    start = data.draw(st.integers(0, sum(lengths)))
    stop = data.draw(st.integers(start, sum(lengths)))
    assert places(order, start, stop) == places(order, 0, sum(lengths))[start:stop]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
def test_each_rank_has_lanes_of_its_own_where_they_can_be_divided_by_the_ranks(world_size: int) -> None:
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


def test_many_steps_need_no_memory() -> None:
    order = LaneOrder((10**12, 10**12 - 5), 1000)
    assert places(order, 10**12 + 1, 10**12 + 2) == [(0, 5 * 10**11 + 1)]
