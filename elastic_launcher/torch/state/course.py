"""Counts the phases, epochs and loops of the script in this process.

Each process runs the script from its top. What the job has done already is skipped: a joiner and a job that goes on
from a checkpoint come into the right loop because they count the same as those that have trained there.
"""

from __future__ import annotations

import base64
from typing import Any

import torch

from elastic_launcher.torch.state.position import Position

Where = tuple[int, int, int]
RECENT_EPOCHS = 2  # of which sums are kept for those that come late
KEPT_BYTES = 2**20  # of one result at most: all are sent to those that come, and saved in each checkpoint


class Course:
    """Counts what the script begins.

    Attributes:
        phase: Which `job.epochs` it is in, or was in last; -1 before the first. Loops of the script's own, outside of
            any, are a phase too, with one epoch each.
        epoch: Which epoch of the phase.
        loop: Which training loop of the epoch, -1 before the first.
        counted: Whether `job.epochs` counts this phase's epochs.
    """

    def __init__(self) -> None:
        self.phase = -1
        self.epoch = self.loop = -1
        self.counted = False
        self._open = False
        self._sums = 0
        self._follows: dict[tuple[int, int], int] = {}

    @property
    def where(self) -> Where:
        """Phase, epoch and loop of the script."""
        return self.phase, self.epoch, self.loop

    def begin_phase(self, *, counted: bool) -> None:
        """The script begins a `job.epochs`, or loops of its own."""
        self.phase, self.epoch, self.loop = self.phase + 1, -1, -1
        self.counted, self._open, self._sums = counted, True, 0

    def end_phase(self) -> None:
        """The script has come to the end of its `job.epochs`, or has left it."""
        self._open, self._sums = False, 0

    @property
    def between(self) -> bool:
        """Whether the script is in no phase: it may begin one of either kind."""
        return not self._open

    @property
    def epoch_of_what_is_made(self) -> int | None:
        """The epoch that a loader belongs to which the script makes now; None if it makes it before its epochs."""
        return self.epoch if self._open and self.epoch >= 0 else None

    def begin_epoch(self, epoch: int) -> None:
        """The script begins an epoch."""
        self._note_next(0)
        self.epoch, self.loop, self._sums = epoch, -1, 0

    def begin_loop(self) -> None:
        """The script begins a training loop in its epoch."""
        if self.loop >= 0:
            self._note_next(self.loop + 1)
        self.loop += 1

    def give_loop_back(self) -> None:
        """The loop that was begun was none: the script has only looked at a batch."""
        self.loop -= 1
        if not self.counted:
            self.epoch -= 1

    def _note_next(self, loop: int) -> None:
        if self.loop >= 0:
            self._follows[self.phase, self.loop] = loop

    def repeats(self) -> bool:
        """Whether after this loop the same one came in the next epoch, the last time."""
        return self._follows.get((self.phase, self.loop)) == self.loop

    def is_ahead(self, position: Position) -> bool:
        """Whether the job has done this loop already."""
        return position.where > self.where

    def key_of_sum(self) -> str:
        """Returns a name for the sum over ranks that the script asks for now, outside of its loops."""
        self._sums += 1
        return f"{self.phase}.{self.epoch if self._open else 'end'}.{self._sums}"


class Sums:
    """What sums over ranks came to outside of training loops, for ranks that reach the same place in the script later:
    they have nothing yet to sum with.
    """

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def take(self, key: str) -> Any:
        """Returns what a sum came to; where that of its epoch is forgotten, what it came to in the newest one.

        Raises:
            KeyError: If neither is known.
        """
        phase, _, number = _parts(key)
        return decode_sums(self.known[key if key in self.known else self._newest()[phase, number]])

    def note(self, key: str, result: Any) -> None:
        """Keeps the result of a sum, if it is not too large, and drops results that are not needed any more."""
        if _bytes(result) > KEPT_BYTES:
            return
        self.known = {**self.known, key: encode_sums(result)}  # other threads may be reading the one before
        phase, epoch, _ = _parts(key)
        if epoch is not None:
            lasting, oldest = self.lasting(), (phase, epoch - RECENT_EPOCHS)
            self.known = {one: value for one, value in self.known.items() if one in lasting or _when(one) > oldest}

    def lasting(self) -> dict[str, Any]:
        """Returns those between phases, and of each phase those of its newest epoch: whoever begins with the script's
        first line needs them.
        """
        newest = set(self._newest().values())
        return {key: value for key, value in self.known.items() if key in newest or _parts(key)[1] is None}

    def _newest(self) -> dict[tuple[int, int], str]:
        """Returns the key of each sum in the newest epoch of its phase, by phase and number."""
        of_epochs = [key for key in self.known if _parts(key)[1] is not None]
        return {(_parts(key)[0], _parts(key)[2]): key for key in sorted(of_epochs, key=_when)}


def _parts(key: str) -> tuple[int, int | None, int]:
    phase, epoch, number = key.split(".")
    return int(phase), None if epoch == "end" else int(epoch), int(number)


def _when(key: str) -> tuple[int, int]:
    phase, epoch, _ = _parts(key)
    return phase, -1 if epoch is None else epoch


def encode_sums(value: Any) -> Any:
    """Returns what a sum came to, a number, a tensor or a dict of them, as JSON values."""
    if isinstance(value, torch.Tensor) and value.dtype != torch.float64:
        octets = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = str(value.dtype).removeprefix("torch.")
        return {"shape": list(value.shape), "dtype": kind, "bytes": base64.b64encode(octets).decode()}
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "values": value.reshape(-1).tolist()}
    if isinstance(value, dict):
        return {"named": {name: encode_sums(one) for name, one in value.items()}}
    return value


def decode_sums(value: Any) -> Any:
    """Returns what `encode_sums` was given."""
    if not isinstance(value, dict):
        return value
    if "named" in value:
        return {name: decode_sums(one) for name, one in value["named"].items()}
    if "bytes" in value:
        octets = bytearray(base64.b64decode(value["bytes"]))
        dtype = getattr(torch, value["dtype"])
        flat = torch.frombuffer(octets, dtype=torch.uint8).view(dtype) if octets else torch.empty(0, dtype=dtype)
        return flat.view(value["shape"])
    return torch.tensor(value["values"], dtype=torch.float64).view(value["shape"])


def _bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    return value.nbytes if isinstance(value, torch.Tensor) else 0
