"""The manifest of a checkpoint: its contents and its job, as values that JSON can hold.

Invariant: ``Manifest.from_text(manifest.to_text())`` equals ``manifest``, and a text with any one bit changed is
refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from elastic_launcher.batch_schedule import BatchSchedule

FORMAT = "elastic-launcher checkpoint"
VERSION = 1
"""Of the format that this library writes; it reads no later one."""
SCHEDULE_VERSION = 1
"""Of the batch schedule in it."""


class CheckpointError(ValueError):
    """A checkpoint that can't be used; the message says which file, and what is wrong."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint whose files are not what was written; the message names one."""


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """The order of checkpoints: the later one has the larger mark.

    Attributes:
        term: The coordinator's term in which it was written.
        generation: The generation that wrote it.
        step: Optimizer steps done.
    """

    term: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The values that must be equal where a checkpoint is written and where it is read.

    Attributes:
        script: File name of the script, or the module.
        global_batch_size: Samples of an optimizer step.
        dataset: Its kind and size.
        shuffle: Whether each epoch has an order of its own.
        loader_seed: What the order derives from.
        drop_last: Whether an epoch's incomplete last step is left out.
        code: What is run, as `Content` has it; empty where that is not known.
        data: Where its data is from, likewise.
    """

    script: str
    arguments: tuple[str, ...]
    global_batch_size: int
    seed: int
    dataset: str
    shuffle: bool
    loader_seed: int
    drop_last: bool
    code: tuple[str, ...] = ()
    data: str = ""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor; its name is used once over all shards, ``dtype`` is as ``float32``, and ``shard`` is a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file beside the manifest, with its size in bytes and the CRC-32 of all of it."""

    name: str
    size: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a checkpoint.

    Attributes:
        mark: Which of the job's it is; it holds the step.
        epoch: Of the next step, within its phase.
        step_in_epoch: Of the next step, within its loop.
        samples: Samples used so far.
        world_size: Ranks of the generation that wrote it.
        saved: Seconds since the epoch.
        writer: Version of this library that wrote it.
        tensors: What is stored, each once.
        order: Numbers in ``tensors``, one for each tensor of the state: two that share memory have the same.
        aliases: Other name of a parameter -> the name under which it is stored (tied weights).
        files: All files but the manifest.
        phase: Which `job.epochs` of the script the next step is in, from 0.
        loop: Which training loop of its epoch, from 0.
        sums: What sums over ranks came to between two phases and in the newest epochs, for a script that begins with
            its first line.
        entries: Of the batch schedule, up to the next step; none where the batch was always that of the job.
    """

    job: JobIdentity
    mark: Mark
    epoch: int
    step_in_epoch: int
    samples: int
    world_size: int
    saved: float
    writer: str
    tensors: tuple[TensorEntry, ...]
    order: tuple[int, ...]
    aliases: Mapping[str, str]
    files: tuple[FileEntry, ...]
    phase: int = 0
    loop: int = 0
    sums: Mapping[str, Any] = field(default_factory=dict)
    entries: tuple[tuple[int, int], ...] = ()

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.mark.step

    @property
    def schedule(self) -> BatchSchedule:
        """The batch schedule up to the next step."""
        return BatchSchedule(self.entries or ((0, self.job.global_batch_size),))

    @property
    def size(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(entry.size for entry in self.files)

    def to_text(self) -> str:
        """Returns the text of ``manifest.json``."""
        document = {"format": FORMAT, "v": VERSION, **asdict(self)}
        document["schedule"] = {"v": SCHEDULE_VERSION, "entries": document.pop("entries")}
        return json.dumps(document | {"crc32": _checksum(document)}, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """Reads what `to_text` wrote.

        Raises:
            CheckpointError: If it is something else, of a later version, or damaged.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise CheckpointDamaged(f"it is cut short or no JSON ({error})") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CheckpointDamaged("it is not the manifest of a checkpoint")
        version = document.get("v")
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(
                f"it is of version {version}, and this elastic-launcher reads up to {VERSION}: use a newer one"
            )
        if document.pop("crc32", None) != _checksum(document):
            raise CheckpointDamaged("its checksum is wrong: it was damaged or edited")
        try:
            for name, none in {"phase": 0, "loop": 0, "sums": {}}.items():
                document.setdefault(name, none)  # checkpoints of earlier versions have none
            document["entries"] = _entries(document)
            values = {one.name: document[one.name] for one in fields(cls)}
            values["job"] = _make(JobIdentity, UNKNOWN | values["job"], arguments=tuple, code=tuple)
            values["mark"] = _make(Mark, values["mark"])
            values["tensors"] = tuple(_make(TensorEntry, entry, shape=tuple) for entry in values["tensors"])
            values["order"] = tuple(values["order"])
            values["files"] = tuple(_make(FileEntry, entry) for entry in values["files"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise CheckpointDamaged(f"a part of it is missing ({error})") from error


def _entries(document: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Returns the entries of a manifest's batch schedule; none of a checkpoint of an earlier version.

    Raises:
        CheckpointError: If it is of another version, or does not begin with the job's global batch.
    """
    schedule = document.get("schedule", {"v": SCHEDULE_VERSION, "entries": ()})
    if schedule["v"] != SCHEDULE_VERSION:
        raise CheckpointError(
            f"its batch schedule is of version {schedule['v']}, and this elastic-launcher reads {SCHEDULE_VERSION}: "
            f"use the elastic-launcher that wrote it, {document['writer']}"
        )
    entries = tuple((step, size) for step, size in schedule["entries"])
    first = document["job"]["global_batch_size"]
    if entries and entries[0] != (0, first):
        raise CheckpointError(
            f"its batch schedule begins with {entries[0][1]} samples from step {entries[0][0]} on, and its job has a "
            f"global batch of {first}: remove it to resume from the checkpoint before it"
        )
    return entries


UNKNOWN: Mapping[str, Any] = {"code": (), "data": ""}
"""What an earlier version did not write."""


def _make(kind: type[Any], document: Mapping[str, Any], **casts: Any) -> Any:
    values = {one.name: document[one.name] for one in fields(kind)}
    return kind(**{name: casts[name](value) if name in casts else value for name, value in values.items()})


def _checksum(document: Mapping[str, Any]) -> int:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return zlib.crc32(text.encode())


NAMES: Mapping[str, str] = {
    "script": "the script",
    "arguments": "the script's arguments",
    "global_batch_size": "the global batch size",
    "seed": "the seed",
    "dataset": "the data set",
    "shuffle": "shuffle",
    "loader_seed": "the loader's seed",
    "drop_last": "drop_last",
    "code": "the code",
    "data": "where the data is from",
}


def differ(there: JobIdentity, here: JobIdentity, field: str) -> bool:
    """Whether two jobs differ in a field; what is not known of one of them is the same as anything."""
    values = getattr(there, field), getattr(here, field)
    return values[0] != values[1] and not (field in UNKNOWN and not all(values))


def differences(there: JobIdentity, here: JobIdentity, among: Sequence[str] = tuple(NAMES)) -> list[str]:
    """Returns in words what differs between two jobs, among these fields of their identities."""
    return [
        f"{NAMES[name]} is {_say(getattr(there, name))} there and {_say(getattr(here, name))} here"
        for name in among
        if differ(there, here, name)
    ]


def _say(value: object) -> str:
    return (" ".join(map(repr, value)) or "none") if isinstance(value, tuple) else str(value)
