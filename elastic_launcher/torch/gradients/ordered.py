"""The gradient of a deterministic job: each virtual rank's own, added by one tree whatever the number of ranks.

A rank works on one virtual rank after the other, in the flat memory of the reducer. Where one ends, that memory has its
gradient, its loss and what its forward passes have changed: a leaf of the tree (`virtual_ranks.OrderedSum`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from elastic_launcher.torch.collectives import consensus
from elastic_launcher.torch.collectives.consensus import Agreement, Signals
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import Wire
from elastic_launcher.torch.gradients.buckets import Layout, Slot
from elastic_launcher.torch.gradients.exchange import exchange_rows, exchange_votes
from elastic_launcher.torch.gradients.reducer import OTHER_PARAMETERS, Reducer
from elastic_launcher.torch.gradients.tail import largest, read_largest, read_riders, write_tail
from elastic_launcher.torch.membership.membership import Division
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.tensors import describe
from elastic_launcher.virtual_ranks import Block, OrderedSum, blocks, held

Flats = list[torch.Tensor]
"""The memory of all buckets."""


class OrderedReducer(Reducer):
    """Runs backward passes and adds their gradients by virtual ranks.

    Args:
        parameters: As of `Reducer`, like what follows.
        virtual_ranks: How many there are.
        division: Returns the division of the present step among ranks.
    """

    def __init__(
        self,
        parameters: Callable[[], list[torch.Tensor]],
        buffers: ModelBuffers,
        device: torch.device,
        name: Callable[[torch.Tensor], str] = describe,
        *,
        virtual_ranks: int,
        division: Callable[[], Division],
    ) -> None:
        super().__init__(parameters, buffers, device, name)
        self._virtual_ranks = virtual_ranks
        self._division = division
        self._sum: OrderedSum[Flats] = OrderedSum(self._add)
        self._most: list[torch.Tensor] = []
        self._slot: Slot | None = None
        self._spare: list[Flats] = []  # memory for copies, as large as the layout's
        self._layout: Layout | None = None

    def _forget(self) -> None:
        for _, flats in self._sum.nodes:
            self._give_back(flats)
        self._sum, self._most, self._slot = OrderedSum(self._add), [], None

    def begin_step(self) -> None:
        """Forgets the last step's sums and gradients."""
        super().begin_step()
        self._forget()

    def wire(self, slot: Slot) -> Wire:
        """Returns what a reduction of a slot exchanges."""
        return replace(super().wire(slot), rows=max(1, *(len(one) for one in self._blocks())))

    def end_part(self, slot: Slot, virtual_rank: int, share: float) -> None:
        """Ends a virtual rank, whose micro-batches are all in, and which had this share of the step's samples.

        Raises:
            RuntimeError: If the step's micro-batches are for different parameters.
        """
        self._take(slot)
        self._buffers.check()
        if slot.weight == 0:
            _clear(slot)
        else:
            self._note_largest()
        write_tail(slot, self._buffers, consensus.weigh(slot.weight), share)
        slot.begin_step()
        self._append(virtual_rank, [bucket.flat for bucket in slot.layout.buckets])

    def reduce(self, slot: Slot, group: Group, signals: Signals, *, samples: int, count: int) -> Agreement:
        """Reduces a slot whose micro-batches are all in, and puts the result into ``p.grad``; see `Reducer.reduce`.

        Raises:
            GroupError: If a peer was lost. Nothing was put into ``p.grad`` then.
            RuntimeError: As of `end_part`.
        """
        layout = slot.layout
        self._take(slot)
        self._buffers.check()
        self._add_empty(slot)
        for number, bucket in enumerate(layout.buckets):
            self._reduce_bucket(group, number, bucket.flat)
        weighed = layout.head.tolist()
        votes = exchange_votes(group, signals, layout.head)
        most = self._most or largest(self._buffers, self._device, counts=False)
        for flat in most:
            group.all_reduce(flat, op="max").wait()
        numbers = [one + other for one, other in zip(weighed, votes, strict=True)]
        agreement = consensus.read(numbers, signals, group.world_size)
        if agreement.weight and agreement.weight != count:
            for bucket in layout.buckets:
                bucket.flat[: bucket.gradient_numel].mul_(count / agreement.weight)
        read_riders(layout, self._buffers)
        read_largest(self._buffers, most, counts=agreement.weight != 0)
        self._hand_over(slot, agreement.weight != 0)
        self._forget()
        return agreement

    def _take(self, slot: Slot) -> None:
        """Notes in whose memory this step's leaves are made.

        Raises:
            RuntimeError: If it is another one than before in this step.
        """
        if slot is not (self._slot or slot):
            raise RuntimeError(OTHER_PARAMETERS)
        self._slot = slot
        if slot.layout is not self._layout:
            self._layout, self._spare = slot.layout, []

    def _blocks(self) -> list[list[Block]]:
        """Returns the blocks of each rank that divides this step."""
        ranks = self._division().ranks
        return [blocks(held(self._virtual_ranks, ranks, rank)) for rank in range(ranks)]

    def _own(self) -> range:
        division = self._division()
        return held(self._virtual_ranks, division.ranks, division.rank)

    def _append(self, virtual_rank: int, flats: Flats) -> None:
        """Adds a leaf, and keeps a copy of it where another one will be made in its memory."""
        block, last = Block(virtual_rank), virtual_rank == self._own().stop - 1
        self._sum.append(block, flats if last or self._sum.adds(block) else self._copied(flats))

    def _memory(self, like: Flats) -> Flats:
        """Returns memory for one more sum."""
        return self._spare.pop() if self._spare else [torch.empty_like(flat) for flat in like]

    def _copied(self, flats: Flats) -> Flats:
        copies = self._memory(flats)
        torch._foreach_copy_(copies, flats)
        return copies

    def _add(self, left: Flats, right: Flats) -> Flats:
        torch._foreach_add_(left, right)
        self._give_back(right)
        return left

    def _give_back(self, flats: Flats) -> None:
        """Keeps the memory of a copy for another one."""
        if self._layout is not None and flats[0] is not self._layout.buckets[0].flat:
            self._spare.append(flats)

    def _add_empty(self, slot: Slot) -> None:
        """Adds the leaves of this rank's virtual ranks without samples, which are its last ones."""
        own = self._own()
        for virtual_rank in range(own.start if self._sum.stop is None else self._sum.stop, own.stop):
            flats = self._memory([bucket.flat for bucket in slot.layout.buckets])
            torch._foreach_zero_(flats)
            self._sum.append(Block(virtual_rank), flats)

    def _reduce_bucket(self, group: Group, number: int, flat: torch.Tensor) -> None:
        """Puts the sum over all virtual ranks into the memory of a bucket."""
        places = self._blocks()

        def fold(rows: torch.Tensor) -> torch.Tensor:
            whole: OrderedSum[torch.Tensor] = OrderedSum(torch.Tensor.add_)
            for rank, own in enumerate(places):
                for place, block in enumerate(own):
                    whole.append(block, rows[rank, place])
            return whole.total()

        own = [flats[number] for _, flats in self._sum.nodes]
        exchange_rows(group, own, max(1, *(len(one) for one in places)), flat, fold)

    def _note_largest(self) -> None:
        """Takes the largest values of the virtual ranks so far."""
        mine = largest(self._buffers, self._device, counts=True)
        self._most = list(map(torch.maximum, self._most, mine)) if self._most else mine


def _clear(slot: Slot) -> None:
    """Makes the gradients in a slot zero."""
    for bucket in slot.layout.buckets:
        bucket.flat[: bucket.gradient_numel].zero_()
