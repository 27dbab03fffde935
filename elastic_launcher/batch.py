"""Divides one optimizer step among ranks: which samples of the global batch each has, in which micro-batches.

Invariant: for every world size the shares add up to the batch, differ by at most one sample, and no micro-batch is
larger than the largest one allowed. For models with batch statistics no share and no micro-batch has one sample, unless
the step has one; then shares differ by as little as that allows.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of an optimizer step.

    Attributes:
        start: Offset of its first sample within the global batch.
        micro_batches: Sample counts, in the order in which they run; empty when the rank has nothing to do.
    """

    start: int
    micro_batches: tuple[int, ...]

    @property
    def samples(self) -> int:
        """Samples of the share."""
        return sum(self.micro_batches)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step of all ranks.

    Attributes:
        samples: The step's true count.
        max_batch_per_gpu: Most samples of a micro-batch.
        shares: One for each rank.
    """

    samples: int
    max_batch_per_gpu: int
    shares: tuple[Share, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.shares)

    @property
    def accumulation(self) -> int:
        """Micro-batches of the rank that has most of them."""
        return max(len(share.micro_batches) for share in self.shares)


def whole_number(name: str, value: int, least: int | None = 1) -> int:
    """Returns an argument as a plain integer (numpy's count as integers too).

    Args:
        name: What the error calls it.
        value: The argument.
        least: The smallest value allowed; None where any will do.

    Raises:
        ValueError: If it is a bool, no integer, or too small.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        allowed = "" if least is None else f", {least} or more"
        raise ValueError(f"{name} is {value!r}; it must be a whole number{allowed}")
    return number


def _even_parts(total: int, parts: int) -> tuple[int, ...]:
    """Divides a total into parts that differ by at most one, larger ones first."""
    size, larger = divmod(total, parts)
    return (size + 1,) * larger + (size,) * (parts - larger)


def share(samples: int, max_batch_per_gpu: int, world_size: int, rank: int, *, batch_statistics: bool = False) -> Share:
    """Returns the part of one rank.

    Args:
        samples: Samples in this optimizer step (the epoch's last step may hold fewer than the global batch).
        max_batch_per_gpu: Most samples that fit on one GPU at a time.
        world_size: Number of ranks.
        rank: Which of them.
        batch_statistics: Whether no micro-batch may have one sample, as batch norm needs it.

    Raises:
        ValueError: If an argument is not a whole number, or out of range, or the samples can't be divided so.
    """
    samples = whole_number("samples", samples)
    max_batch_per_gpu = whole_number("max_batch_per_gpu", max_batch_per_gpu)
    world_size = whole_number("world_size", world_size)
    rank = whole_number("rank", rank, 0)
    if rank >= world_size:
        raise ValueError(f"rank is {rank}; it must be below the world size, {world_size}")
    working, unit = world_size, 1
    if batch_statistics and samples > 1:
        if max_batch_per_gpu == 1 or (max_batch_per_gpu == 2 and samples % 2):
            raise ValueError(
                f"a step of {samples} samples in micro-batches of at most {max_batch_per_gpu} has one of a single "
                "sample, of which batch norm can't take statistics"
            )
        working = min(world_size, samples // 2)
        unit = 2 if max_batch_per_gpu == 2 else 1
    least, larger = divmod(samples // unit, working)
    start = min(samples, (rank * least + min(rank, larger)) * unit)
    mine = (least + (rank < larger)) * unit if rank < working else 0
    if mine == 0:
        return Share(start, ())
    return Share(start, _even_parts(mine, -(-mine // max_batch_per_gpu)))


def share_of_node(samples: int, max_batch_per_gpu: int, world_size: int, rank: int, nproc_per_node: int) -> Share:
    """Returns the part of one rank of a node whose ranks share one model: all of them run as many micro-batches.

    Some of them may be empty. The samples are divided among the ranks as by `share`.

    Raises:
        ValueError: As `share`, or if the world size is no multiple of the ranks of a node.
    """
    if world_size % whole_number("nproc_per_node", nproc_per_node):
        raise ValueError(f"world_size is {world_size}; it must be a multiple of nproc_per_node, {nproc_per_node}")
    mine = share(samples, max_batch_per_gpu, world_size, rank)
    first = share(samples, max_batch_per_gpu, world_size, rank - rank % nproc_per_node)  # which has most samples
    runs = len(first.micro_batches)
    return Share(mine.start, _even_parts(mine.samples, runs) if runs else ())


def plan_step(
    samples: int,
    max_batch_per_gpu: int,
    world_size: int,
    *,
    batch_statistics: bool = False,
    sharded_over: int | None = None,
) -> StepPlan:
    """Returns the parts of all ranks; see `share`.

    ``sharded_over`` is the number of ranks of a node, where these share one model; see `share_of_node`.
    """
    samples = whole_number("samples", samples)
    max_batch_per_gpu = whole_number("max_batch_per_gpu", max_batch_per_gpu)
    world_size = whole_number("world_size", world_size)
    shares = tuple(
        share(samples, max_batch_per_gpu, world_size, rank, batch_statistics=batch_statistics)
        if sharded_over is None
        else share_of_node(samples, max_batch_per_gpu, world_size, rank, sharded_over)
        for rank in range(world_size)
    )
    return StepPlan(samples, max_batch_per_gpu, shares)


def fewest_useful_nodes(global_batch_size: int, nproc_per_node: int, max_nodes: int) -> int:
    """Returns the fewest nodes that are as fast as ``max_nodes``.

    A step takes as long as its largest share, ⌈B ÷ W⌉ samples. A node is worth having if that becomes smaller with it:
    a batch of 10 on 5, 6, 7, 8 or 9 ranks takes two samples' time, so that 5 are enough where 9 could be had.

    Raises:
        ValueError: If an argument is not a whole number of 1 or more.
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size)
    nproc_per_node = whole_number("nproc_per_node", nproc_per_node)
    max_nodes = whole_number("max_nodes", max_nodes)
    largest = -(-global_batch_size // (nproc_per_node * max_nodes))
    ranks = -(-global_batch_size // largest)
    return -(-ranks // nproc_per_node)
