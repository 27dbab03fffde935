"""Finds and names what differs between ranks that should be the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import name_acts
from elastic_launcher.torch.collectives.threads import start_thread
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.training_state import TrainingState


class ChecksumTask:
    """The checksums of this rank's parameters, computed beside the step that doesn't change them yet, and of buffers.

    Of the buffers, those that are left alone are checked, and tracked tensors.
    """

    def __init__(self, state: TrainingState, buffers: ModelBuffers) -> None:
        self._state = state
        self._still = {f"the buffer {name}": value for name, value in buffers.still().items()}
        self._still |= buffers.tracked.checksums()
        self._names: list[str] = []
        self._sums: list[int] = []
        self._thread = start_thread("elastic-checksum", self._compute)

    def _compute(self) -> None:
        names, sums = self._state.checksums()
        self._names, self._sums = [*names, *self._still], [*sums.tolist(), *self._still.values()]

    def combined(self) -> int:
        """Returns one number for all parameters."""
        self._thread.join()
        total = 0
        for value in self._sums:
            total = (total * 0x100000001B3 ^ value) & (2**64 - 1)
        return (total ^ total >> 32 ^ total >> 48) & 0xFFFF or 1  # 0 means none

    def by_name(self) -> dict[str, int]:
        """Returns the checksum of each parameter."""
        self._thread.join()
        return dict(zip(self._names, self._sums, strict=True))


def _gather(group: Group, value: Any) -> list[Any]:
    return [json.loads(text) for text in group.all_gather_bytes(json.dumps(value).encode())]


def name_differences(group: Group, check: ChecksumTask) -> str:
    """Returns a message that names the parameters whose values differ, and the ranks."""
    rows = _gather(group, check.by_name())
    reference = rows[0]
    found = [
        f"{name} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        for name in reference
        if (ranks := [rank for rank, row in enumerate(rows) if row.get(name) != reference[name]])
    ]
    return (
        "parameters are no longer the same on all ranks: "
        + "; ".join(found[:5])
        + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        + " (compared with rank 0). Change parameters only through the prepared optimizers, the same way on every rank."
    )


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
