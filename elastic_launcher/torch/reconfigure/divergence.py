"""Finds and names what differs between ranks that should be the same."""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import name_acts
from elastic_launcher.torch.reconfigure.numbers import group_options, other_numbers
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.training_state import TrainingState


class Check:
    """What is to be the same on all ranks, as it is now: parameters, buffers, and numbers.

    Tracked tensors are checked too. It is taken before a step's first forward pass, which may change parameters: the
    ranks would compare different moments.
    """

    def __init__(self, state: TrainingState, buffers: ModelBuffers) -> None:
        self._parameters = state.checksums()
        self._frozen = state.frozen_names()
        self._kept = {f"the buffer {name}": value for name, value in buffers.compared().items()}
        self._kept |= buffers.tracked.checksums()
        self._options = group_options(state)
        self._others = other_numbers(state)
        self._averages = {f"the buffer {name}": value for name, value in buffers.averages().items()}

    def combined(self, known: Container[str] = ()) -> int:
        """Returns one number for all of it, but for what is ``known`` to differ, by name; 0 means none."""
        doubtful = [
            {name: value for name, value in some.items() if name not in known}
            for some in (self._others, self._averages)
        ]
        parts = (self._options, *doubtful)
        total = 0
        for value in (*self._sums().values(), *(zlib.crc32(repr(part).encode()) for part in parts)):
            total = (total * 0x100000001B3 ^ value) & (2**64 - 1)
        return (total ^ total >> 32 ^ total >> 48) & 0xFFFF or 1

    def _sums(self) -> dict[str, int]:
        names, sums = self._parameters
        return {**dict(zip(names, sums.tolist(), strict=True)), **self._kept}

    def rows(self) -> list[Any]:
        """Returns the parts of it, by name, for `compare`."""
        return [self._sums(), self._options, self._others, self._averages, self._frozen]


@dataclass(frozen=True, slots=True)
class Differences:
    """What differs between ranks.

    Attributes:
        error: The message for what must not; "" if that is the same.
        doubtful: Numbers that the script may mean to differ: where and how, by name.
        averages: Averaged buffers: where they differ, by name.
    """

    error: str
    doubtful: dict[str, str]
    averages: dict[str, str]

    def names(self) -> set[str]:
        """Returns the names of what differs and may."""
        return self.doubtful.keys() | self.averages.keys()


def compare(group: Group, check: Check) -> Differences:
    """Compares the ranks' checks name by name; all ranks of the group call it."""
    sums, options, others, averages, frozen = zip(*_gather(group, check.rows()), strict=True)
    apart = list(_apart(sums).values())
    said = []
    if different := _values(options):
        said.append(
            f"learning rates or other options of param groups are not the same on all ranks: {_some(different)}. Set "
            "them on every rank, by job.step or by what is equal on all ranks (job.reduce, job.evaluate)"
        )
    if apart:
        said.append(
            f"parameters are no longer the same on all ranks: {_some(apart)} (compared with rank 0). Change parameters "
            "only through the prepared optimizers, the same way on every rank"
        )
        if untrained := [name for name in frozen[0] if any(row.get(name) != sums[0].get(name) for row in sums)]:
            said.append(
                f"{untrained[0]} is not trained (requires_grad is False): if a forward pass changes it, register it as "
                "a buffer, which ranks average"
            )
    return Differences("".join(f"{one}. " for one in said).rstrip(), _by_name(others), _apart(averages))


def _apart(rows: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """Returns the ranks that have another value than rank 0, of each name for which there are some."""
    first = rows[0]
    apart = {name: [rank for rank, row in enumerate(rows) if row.get(name) != first[name]] for name in first}
    return {name: f"{name} on {_ranks(ranks)}" for name, ranks in apart.items() if ranks}


def warn_of(found: Differences, known: Container[str]) -> None:
    """Warns of numbers and of averaged buffers that differ between ranks, unless their names are ``known``."""
    if averages := [where for name, where in found.averages.items() if name not in known]:
        warnings.warn(
            f"buffers are not the same on all ranks: {_some(averages)} (compared with rank 0). Steps average what "
            "they add to a buffer; a forward pass outside of them adds to this rank's alone. Call model.eval() before "
            "it, or make it in job.evaluate or job.gather, which put buffers back",
            stacklevel=2,
        )
    if doubtful := [how for name, how in found.doubtful.items() if name not in known]:
        warnings.warn(
            f"numbers of the script are not the same on all ranks: {_some(doubtful)}. Joiners and "
            "checkpoints get those of one rank. Change schedulers, registered objects and job.state on every rank by "
            "what is equal on all (job.reduce, job.evaluate), and keep what is each rank's own elsewhere",
            stacklevel=2,
        )


def _values(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return list(_by_name(rows).values())


def _by_name(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns which rank has which value, of each name whose values are not all the same."""
    found = {}
    for name in {name: None for row in rows for name in row}:
        ranks: dict[str, list[int]] = {}
        for rank, row in enumerate(rows):
            ranks.setdefault(row.get(name, "absent"), []).append(rank)
        if len(ranks) > 1:
            found[name] = f"{name} is " + " and ".join(f"{value} on {_ranks(on)}" for value, on in ranks.items())
    return found


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _some(found: Sequence[str]) -> str:
    return "; ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def _gather(group: Group, value: Any) -> list[Any]:
    return [json.loads(text) for text in group.all_gather_bytes(json.dumps(value).encode())]


def name_positions(group: Group, position: Position, left_loop: bool = False) -> str:
    """Returns a message with each rank's step, if they differ."""
    rows = _gather(group, (position.where, position.step_in_epoch, left_loop))
    alone = [rank for rank, row in enumerate(rows) if row[2]]
    several = [any(row[0][part] for row in rows) for part in range(3)]
    where = ", ".join(f"rank {rank}: step {row[1]} of {_where(row[0], several)}" for rank, row in enumerate(rows))
    if alone:
        who = ", ".join(map(str, alone))
        return (
            f"rank {who} left the training loop (break) while others go on ({where}). "
            "End all ranks at one step with job.stop(reason)."
        )
    return f"ranks are at different steps ({where}); every rank must run the same number of epochs and steps"


def name_different_acts(group: Group, acted: str, step: int) -> str:
    """Returns a message that says what acted on which rank since the last reduction, where that is not the same."""
    return name_acts(_gather(group, acted), step)


def _where(where: Sequence[int], several: Sequence[bool]) -> str:
    """Returns how a message names a loop; the epoch's number alone says it where there is one phase and one loop."""
    phase, epoch, loop = where
    named = f"loop {loop + 1} of epoch {epoch}" if several[2] else f"epoch {epoch}"
    return f"{named} of job.epochs() number {phase + 1}" if several[0] else named
