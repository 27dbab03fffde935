"""The operations of a group that all ranks do together, and their names in messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic_launcher.control.vitals import name_apart

BACKWARD, EVALUATE, GATHER, REDUCE = "job.backward", "job.evaluate", "job.gather", "job.reduce"
END, STOP, BREAK = "the end of job.epochs", "job.stop", "a break out of the training loop"


Sizes = tuple[tuple[int, str, str], ...]
"""Of buckets: elements, data type and kind of device of each."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The sizes of a reduction on the wire, so that a rank that has nothing to add can take part in it.

    Attributes:
        buckets: Elements, data type and kind of device of each bucket, in order.
        head: Where the ranks' signals begin in the last of them.
        largest: Elements, data type and kind of device of what the largest values are taken of.
        parts: Elements of sharded parameters, which are reduced apart.
        rows: How many rows of each bucket a rank brings, where they are added in a fixed order; 0 where they are not.
    """

    buckets: Sizes
    head: int = 0
    largest: Sizes = ()
    parts: int = 0
    rows: int = 0

    @property
    def elements(self) -> int:
        """The number of all elements."""
        return sum(numel for numel, _, _ in self.buckets + self.largest) + self.parts


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of an operation, which must be equal on all ranks of a group before data is exchanged.

    Attributes:
        what: The call of the script, or the place that it reached.
        call: Of a `backward`: which of its micro-batch, from 0.
        owner: Of a `backward`: the optimizer's number, -1 for all.
        wire: Of a reduction of gradients: what it exchanges.
        content: Of a sum over ranks: what it sums.
    """

    what: str
    call: int = 0
    owner: int = -1
    wire: Wire | None = None
    content: str = ""

    @property
    def leaves(self) -> bool:
        """Whether this rank has nothing to reduce any more, which its peers may learn in a reduction of theirs."""
        return self.what in (STOP, BREAK)

    @property
    def kind(self) -> Operation:
        """The part of it that recurs."""
        return replace(self, content="") if self.content else self

    def words(self, step: int) -> str:
        """Returns where a rank is that does it at a step, for messages."""
        if self.what == BACKWARD:
            owner = f" for optimizer {self.owner}" if self.owner >= 0 else ""
            return f"in {self.what}{owner} (call {self.call + 1} of step {step})"
        if self.what in (END, BREAK):
            return f"at {self.what}, step {step}"
        return f"in {self.what} {self.content}".rstrip() + f" at step {step}"

    def to_json(self, step: int, acted: str = "") -> bytes:
        """Returns what peers read."""
        return json.dumps([asdict(self), step, acted]).encode()


def read_operation(data: bytes) -> tuple[Operation, int, str]:
    """Reads what `Operation.to_json` wrote: the operation, the step, and what acted since the last reduction."""
    content, step, acted = json.loads(data)
    wire: dict[str, Any] | None = content.pop("wire")
    if wire is None:
        return Operation(**content), step, acted
    sizes = Wire(_sizes(wire["buckets"]), wire["head"], _sizes(wire["largest"]), wire["parts"], wire["rows"])
    return Operation(**content, wire=sizes), step, acted


def _sizes(rows: list[list[Any]]) -> Sizes:
    return tuple((int(numel), str(kind), str(device)) for numel, kind, device in rows)


def find_common(operations: Sequence[Operation]) -> Operation | None:
    """Returns the operation that all ranks do, those that leave in the reduction of the others; None if there is none.

    Where all leave, it is one of theirs, which has no wire.
    """
    staying = {one for one in operations if not one.leaves}
    if not staying:
        return operations[0]
    common = staying.pop()
    leave = any(one.leaves for one in operations)
    return common if not staying and (common.wire is not None or not leave) else None


def name_operations(rows: Sequence[tuple[Operation, int]]) -> str:
    """Returns a message about ranks that don't do the same, by each one's operation and step in rank order."""
    said: dict[str, list[int]] = {}
    elements = {one.wire.elements for one, _ in rows if one.wire is not None}
    sizes = len({replace(one, wire=None) for one, _ in rows}) == 1 and len(elements) > 1
    for rank, (operation, step) in enumerate(rows):
        size = f" with {operation.wire.elements} numbers to reduce" if sizes and operation.wire is not None else ""
        said.setdefault(f"{operation.words(step)}{size}", []).append(rank)
    where = ", ".join(f"{name_ranks(ranks)} {words}" for words, ranks in said.items())
    if len({one.what for one, _ in rows}) == 1 and rows[0][0].what in (EVALUATE, GATHER, REDUCE):
        return f"ranks reduce different values: {where}"
    if sizes:
        return f"ranks reduce different gradients: {where}; the same parameters have to be trained on every rank"
    return (
        f"{name_apart(where)}: decide by job.step or by what is equal on all ranks, not by job.rank, nor by a counter "
        "or random numbers of the script's own, which a joiner starts from their beginning"
    )


def name_acts(acts: Sequence[str], step: int) -> str:
    """Returns a message that says what acted on which rank since the last reduction, where that is not the same.

    ``acts`` is in rank order, "" where that is not known; the ranks stand before ``step``.
    """
    said: dict[str, list[str]] = {}
    for rank, acted in enumerate(acts):
        if acted:
            said.setdefault(acted, []).append(str(rank))
    where = "; ".join(f"on rank{'s' if len(on) > 1 else ''} {', '.join(on)}: {acted}" for acted, on in said.items())
    return (
        f"what acted after the last reduction before step {step} is not the same on all ranks: {where}. Every rank has "
        "to call step() of the same optimizers, schedulers and scalers, in the same order: decide by job.step or by "
        "what is equal on all ranks"
    )


def name_ranks(ranks: Sequence[int]) -> str:
    """Returns the beginning of a sentence that says where ranks are."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'}"
