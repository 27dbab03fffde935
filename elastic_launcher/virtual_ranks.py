"""Which virtual ranks a rank has, and the one tree by which what they contribute is added.

A deterministic job divides each step among a fixed number of virtual ranks, whatever the number of ranks. Invariant: at
every world size each virtual rank belongs to one rank, and the sum over all of them is made of the same additions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from elastic_launcher.batch import Share, StepPlan, share

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive virtual ranks whose sum is a node of the tree.

    Attributes:
        start: The first of them, a multiple of ``size``.
        size: How many there are, a power of two.
    """

    start: int
    size: int = 1

    def is_sibling_of(self, left: Block) -> bool:
        """Whether this block and one to the left of it are the two halves of a larger block."""
        return left.size == self.size and left.start + left.size == self.start and left.start % (2 * left.size) == 0


class OrderedSum(Generic[T]):
    """A sum of values that come in the order of virtual ranks; a block is added up once its last value is there.

    Args:
        add: Returns the sum of a left and a right value; it may write it into the left one.
    """

    def __init__(self, add: Callable[[T, T], T]) -> None:
        self._add = add
        self._nodes: list[tuple[Block, T]] = []

    @property
    def nodes(self) -> Sequence[tuple[Block, T]]:
        """The blocks that are not parts of a larger complete one, and their sums."""
        return self._nodes

    @property
    def stop(self) -> int | None:
        """The virtual rank that comes next; None before the first one."""
        return self._nodes[-1][0].start + self._nodes[-1][0].size if self._nodes else None

    def adds(self, block: Block) -> bool:
        """Whether the value of the next block is added to another one at once, and not kept."""
        return bool(self._nodes) and block.is_sibling_of(self._nodes[-1][0])

    def append(self, block: Block, value: T) -> None:
        """Adds the value of the next block."""
        while self.adds(block):
            left, before = self._nodes.pop()
            block, value = Block(left.start, 2 * left.size), self._add(before, value)
        self._nodes.append((block, value))

    def total(self) -> T:
        """Returns the sum of all values, once all are there: blocks that are left over are added from the right."""
        *others, (_, value) = self._nodes
        for _, before in reversed(others):
            value = self._add(before, value)
        return value


def held(virtual_ranks: int, ranks: int, rank: int) -> range:
    """Returns the virtual ranks of one rank: no two ranks differ by more than one; none beyond the ranks."""
    if rank >= ranks:
        return range(virtual_ranks, virtual_ranks)
    least, larger = divmod(virtual_ranks, ranks)
    start = rank * least + min(rank, larger)
    return range(start, start + least + (rank < larger))


def blocks(own: range) -> list[Block]:
    """Returns the blocks that a rank with these virtual ranks has once it has added up what it can."""
    made: OrderedSum[None] = OrderedSum(lambda left, right: None)
    for virtual_rank in own:
        made.append(Block(virtual_rank), None)
    return [block for block, _ in made.nodes]


def share_virtual(
    samples: int,
    max_batch_per_gpu: int,
    virtual_ranks: int,
    world_size: int,
    rank: int,
    *,
    batch_statistics: bool = False,
) -> Share:
    """Returns the part of one rank of a step that is divided among virtual ranks; see `batch.share`."""
    parts = [
        share(samples, max_batch_per_gpu, virtual_ranks, one, batch_statistics=batch_statistics)
        for one in held(virtual_ranks, world_size, rank)
    ]
    start = parts[0].start if parts else samples
    return Share(start, tuple(chain.from_iterable(part.micro_batches for part in parts)))


def plan_virtual(
    samples: int, max_batch_per_gpu: int, virtual_ranks: int, world_size: int, *, batch_statistics: bool = False
) -> StepPlan:
    """Returns the parts of all ranks; see `share_virtual`."""
    shares = [
        share_virtual(samples, max_batch_per_gpu, virtual_ranks, world_size, rank, batch_statistics=batch_statistics)
        for rank in range(world_size)
    ]
    return StepPlan(samples, max_batch_per_gpu, tuple(shares))
