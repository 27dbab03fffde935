"""Brings rows of all ranks together in one fixed way of adding them, which no collective of a backend has.

Each rank gets all rows of its own part of the elements, adds them up, and gives the sums to all. With one row a rank,
that is as much on the wire as a ring's reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from elastic_launcher.torch.collectives.consensus import HEAD, Signals, spell
from elastic_launcher.torch.collectives.group import Group


def exchange_rows(
    group: Group,
    own: Sequence[torch.Tensor],
    most: int,
    into: torch.Tensor,
    fold: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Adds the rows of all ranks up into a flat tensor, the same on each.

    Args:
        group: The ranks.
        own: This rank's rows, shaped like ``into``; each may be ``into`` itself.
        most: Rows of the rank that has most of them.
        into: Where the sum goes.
        fold: Returns the sum of some elements of all ranks' rows, shaped (rank, row, element); rows that a rank does
            not have are zero.

    Raises:
        GroupError: If a peer was lost; ``into`` is as it was then.
    """
    if not into.numel():
        return
    if group.world_size == 1:
        into.copy_(fold(torch.stack(list(own))[None]))
        return
    width = -(-into.numel() // group.world_size)
    sent = into.new_zeros(group.world_size, most, width)
    padded = into.new_zeros(group.world_size, width)
    for number, row in enumerate(own):
        padded.view(-1)[: row.numel()].copy_(row)
        sent[:, number].copy_(padded)
    received = torch.empty_like(sent)
    group.all_to_all(received, sent).wait()
    group.all_gather(padded, fold(received).contiguous()).wait()
    into.copy_(padded.view(-1)[: into.numel()])


def exchange_votes(group: Group, signals: Signals, like: torch.Tensor) -> list[float]:
    """Returns the sums of what all ranks vote, without a weight: whole numbers, which any reduction adds exactly.

    Raises:
        GroupError: If a peer was lost.
    """
    votes = torch.tensor(spell(signals, late=False, weight=0.0, loss=0.0), dtype=like.dtype, device=like.device)
    group.all_reduce(votes).wait()
    numbers: list[float] = votes.tolist()
    assert len(numbers) == HEAD
    return numbers
