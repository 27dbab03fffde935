"""Virtual ranks are divided among any number of ranks, and added by the same tree everywhere."""

from __future__ import annotations

from itertools import chain

from hypothesis import example, given
from hypothesis import strategies as st

from elastic_launcher.batch import plan_step
from elastic_launcher.virtual_ranks import Block, OrderedSum, blocks, held, plan_virtual

virtual = st.integers(1, 70)
worlds = st.integers(1, 80)


def joined(left: str, right: str) -> str:
    return f"({left}+{right})"


def summed(virtual_ranks: int, world_size: int) -> str:
    """Returns the additions of some ranks: first each one's virtual ranks, then what came of these."""
    total = OrderedSum(joined)
    for rank in range(world_size):
        own = OrderedSum(joined)
        for number in held(virtual_ranks, world_size, rank):
            own.append(Block(number), str(number))
        assert [block for block, _ in own.nodes] == blocks(held(virtual_ranks, world_size, rank))
        for block, value in own.nodes:
            total.append(block, value)
    return total.total()


@given(virtual, worlds)
@example(4, 3)
@example(7, 2)
@example(8, 5)
def test_any_number_of_ranks_does_the_same_additions(virtual_ranks: int, world_size: int) -> None:
    assert summed(virtual_ranks, world_size) == summed(virtual_ranks, 1)


def test_the_tree_adds_neighbours_then_pairs_of_them() -> None:
    assert summed(1, 1) == "0"
    assert summed(4, 3) == "((0+1)+(2+3))"
    assert summed(7, 4) == "(((0+1)+(2+3))+((4+5)+6))"
    assert summed(9, 2) == "((((0+1)+(2+3))+((4+5)+(6+7)))+8)"


@given(virtual, worlds)
def test_each_virtual_rank_belongs_to_one_rank_in_order_and_as_evenly_as_it_goes(
    virtual_ranks: int, world_size: int
) -> None:
    parts = [held(virtual_ranks, world_size, rank) for rank in range(world_size)]
    sizes = [len(part) for part in parts]
    assert list(chain.from_iterable(parts)) == list(range(virtual_ranks))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_rank_beyond_those_that_divide_has_none() -> None:
    assert list(held(4, 2, 2)) == []


@given(virtual, worlds)
def test_a_rank_with_n_virtual_ranks_has_at_most_two_blocks_of_each_size(virtual_ranks: int, world_size: int) -> None:
    for rank in range(world_size):
        own = held(virtual_ranks, world_size, rank)
        found = blocks(own)
        assert list(chain.from_iterable(range(one.start, one.start + one.size) for one in found)) == list(own)
        assert all(one.size.bit_count() == 1 and one.start % one.size == 0 for one in found)
        assert all([one.size for one in found].count(size) <= 2 for size in {one.size for one in found})


@given(st.integers(0, 6), st.integers(0, 6))
def test_powers_of_two_travel_as_one_block_each(virtual_power: int, world_power: int) -> None:
    virtual_ranks, world_size = 2**virtual_power, 2 ** min(world_power, virtual_power)
    assert all(len(blocks(held(virtual_ranks, world_size, rank))) == 1 for rank in range(world_size))


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 12), st.integers(1, 14))
def test_the_micro_batches_are_the_same_at_every_world_size(
    samples: int, most: int, virtual_ranks: int, world_size: int
) -> None:
    plan = plan_virtual(samples, most, virtual_ranks, world_size)
    whole = plan_step(samples, most, virtual_ranks)
    assert plan.samples == sum(one.samples for one in plan.shares) == samples
    assert list(chain.from_iterable(one.micro_batches for one in plan.shares)) == list(
        chain.from_iterable(one.micro_batches for one in whole.shares)
    )
    starts = [0]
    for one in plan.shares:
        starts.append(starts[-1] + one.samples)
    assert [one.start for one in plan.shares] == starts[:-1]
