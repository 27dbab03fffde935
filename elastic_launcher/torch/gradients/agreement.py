"""Checks that all ranks of a group do the same operation, before tensors of different sizes can meet.

Ranks that have done the same operations expect the same next one (`foresight`). Who comes to the reduction that is
expected reduces at once, with nothing exchanged beforehand. Who comes to another operation takes part in the expected
reduction without anything to add, and says so in it; then, as wherever no reduction is expected, all ranks compare what
they are about to do. So after any mix-up each rank learns where all others are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from elastic_launcher.torch.collectives.consensus import HEAD, Agreement, Signals, read, spell
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import (
    Operation,
    Sizes,
    Wire,
    find_common,
    name_acts,
    name_operations,
    read_operation,
)
from elastic_launcher.torch.collectives.prediction import Foresight
from elastic_launcher.torch.gradients.exchange import exchange_rows, exchange_votes

FAREWELL = Wire(((HEAD, "float32", "cpu"),))
"""What ranks reduce that have all left."""


class Together:
    """The operations of this rank with its group, each agreed on before it starts."""

    def __init__(self) -> None:
        self._foresight = Foresight()

    def renew(self) -> None:
        """Resets the agreement for a new group, some of whose ranks don't know what was before."""
        self._foresight = Foresight()

    def expects(self, operation: Operation) -> bool:
        """Whether all ranks expect this reduction: it can begin with nothing exchanged beforehand."""
        return operation.wire is not None and self._foresight.next() == operation

    def begin(
        self, group: Group, operation: Operation, step: int, acted: str, abstain: Callable[[Wire], Agreement]
    ) -> None:
        """Returns when all ranks of a group are known to do this operation, or expected to (see `confirm`).

        Args:
            group: Theirs.
            operation: What this rank is about to do.
            step: This rank's step, for messages.
            acted: What acted on it since the last reduction; "" where that is not known.
            abstain: Takes part in a reduction without anything to add, and says so.

        Raises:
            RuntimeError: If they do different ones, or something else acted on them.
            GroupError: If a peer was lost.
        """
        if group.world_size == 1:
            return
        if not self.expects(operation):
            expected = self._expected_wire()
            if expected is not None:
                abstain(expected)
            _compare(group, operation, step, acted)
        self._foresight.note(operation.kind)

    def confirm(self, group: Group, agreement: Agreement, operation: Operation, step: int) -> None:
        """Raises if others took part in this rank's reduction without being in it.

        Raises:
            RuntimeError: That says where each rank is.
        """
        if agreement.elsewhere:
            _compare(group, operation, step)

    def leave(self, group: Group, operation: Operation, step: int, abstain: Callable[[Wire], Agreement]) -> Agreement:
        """Takes part in the other ranks' reductions, to report that this one has nothing to reduce any more.

        ``abstain`` takes part in a reduction without anything to add, and reports that.

        Raises:
            RuntimeError: If the others reduce nothing.
            GroupError: If a peer was lost.
        """
        expected = self._expected_wire()
        if expected is not None:
            agreement = abstain(expected)
            if not agreement.elsewhere:
                self._foresight.note(self._foresight.next())
                return agreement
        common = _compare(group, operation, step)
        self._foresight.note(common.kind)
        return abstain(common.wire or FAREWELL)

    def _expected_wire(self) -> Wire | None:
        expected = self._foresight.next()
        return expected.wire if isinstance(expected, Operation) else None


def _compare(group: Group, operation: Operation, step: int, acted: str = "") -> Operation:
    """Returns the operation that all ranks are in."""
    rows = [read_operation(data) for data in group.all_gather_bytes(operation.to_json(step, acted))]
    common = find_common([found for found, _, _ in rows])
    if common is None:
        raise RuntimeError(name_operations([(found, at) for found, at, _ in rows]))
    acts = [one for _, _, one in rows]
    if len({one for one in acts if one}) > 1:
        raise RuntimeError(name_acts(acts, step))
    return common


def abstain(
    wire: Wire, group: Group, signals: Signals, device: torch.device, parts: Callable[[], Sizes] = lambda: ()
) -> Agreement:
    """Takes part in a reduction of the others, who exchange ``wire``, without anything to add but signals.

    ``parts`` returns what this rank reduces of a sharded model.

    Raises:
        GroupError: If a peer was lost.
    """
    for part in parts() if wire.parts else ():
        group.replicas.all_reduce(_zeros(part, device)).wait()
    *before, carrier = wire.buckets
    for bucket in before:  # one at a time: there may be no room for all of them
        _take_part(group, wire, _zeros(bucket, device))
    tail = _zeros(carrier, device)
    head = tail[wire.head : wire.head + HEAD]
    if not wire.rows:
        head.copy_(torch.tensor(spell(signals, late=False, weight=0.0, loss=0.0), dtype=head.dtype))
    _take_part(group, wire, tail)
    numbers = exchange_votes(group, signals, tail) if wire.rows else head.tolist()
    for one in wire.largest:
        group.all_reduce(_zeros(one, device), op="max").wait()
    return read(numbers, signals, group.world_size)


def _take_part(group: Group, wire: Wire, bucket: torch.Tensor) -> None:
    """Reduces a bucket to which this rank adds nothing; where rows are exchanged, what comes of them is void."""
    if wire.rows:
        exchange_rows(group, [], wire.rows, bucket, lambda rows: rows[0, 0])
    else:
        group.all_reduce(bucket).wait()


def _zeros(bucket: tuple[int, str, str], device: torch.device) -> torch.Tensor:
    numel, kind, where = bucket
    place = device if where == device.type else torch.device(where)
    return torch.zeros(numel, dtype=getattr(torch, kind), device=place)
