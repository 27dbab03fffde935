"""Writes a training's state to disk beside the training, which waits only for a copy into this process's memory."""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from elastic_launcher import __version__
from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.checkpoint import CheckpointDamaged, Fenced, JobIdentity, Manifest, Mark, TakenOver
from elastic_launcher.checkpoint.files import MANIFEST, MISSING, STATE, seal, write_text
from elastic_launcher.checkpoint.manifest import CheckpointError, FileEntry, TensorEntry
from elastic_launcher.checkpoint.shards import read_shards
from elastic_launcher.checkpoint.store import CheckpointStore
from elastic_launcher.torch.collectives.threads import start_or_run
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.shard.node import NodeShards
from elastic_launcher.torch.shard.part_files import OtherParts, Written, write_when_asked
from elastic_launcher.torch.shard.tensors import rows_of
from elastic_launcher.torch.state.codec import DICT_TAGS, TENSOR_TAGS
from elastic_launcher.torch.state.frozen_shards import Carry, FrozenShards
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.tensors import place
from elastic_launcher.torch.state.training_state import (
    DIGEST_BYTES,
    Captured,
    TrainingState,
    frozen_parameters,
    write_values,
)

CHECKPOINT = "the checkpoint"
LAST_SECONDS = 60.0
"""That a rank which leaves waits for what it writes, at most: a store that does not answer keeps no process."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that was written.

    Attributes:
        step: Optimizer steps that it holds.
        size: In bytes.
        held_seconds: How long the training waited.
        seconds: From its beginning to the end of the writing.
    """

    step: int
    path: str
    size: int
    held_seconds: float
    seconds: float


class HostMemory:
    """Copies of a training's tensors in this process's memory, each memory once, reused from save to save."""

    def __init__(self) -> None:
        self._copies: list[torch.Tensor] = []

    def take(self, captured: Captured) -> tuple[list[torch.Tensor], list[int]]:
        """Copies all tensors; returns the copies, and for each captured tensor the number of its copy."""
        numbers: dict[Hashable, int] = {}
        order: list[int] = []
        wanted: list[torch.Tensor] = []
        for tensor in captured.tensors:
            key = place(tensor)
            if key not in numbers:
                numbers[key] = len(wanted)
                wanted.append(tensor)
            order.append(numbers[key])
        if [(t.dtype, t.shape) for t in self._copies] != [(t.dtype, t.shape) for t in wanted]:
            self._copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=t.device.type == "cuda") for t in wanted]
        for copy, tensor in zip(self._copies, wanted, strict=True):
            copy.copy_(tensor, non_blocking=True)
        for device in {t.device for t in wanted if t.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return self._copies, order


class Saver:
    """Saves checkpoints, one at a time.

    Args:
        keep: How many are kept.
        on_saved: Takes what was written, in the writer's thread.
        on_failed: Takes the step and why it could not be saved, in the writer's thread.
    """

    def __init__(
        self,
        store: CheckpointStore,
        keep: int,
        on_saved: Callable[[Saved], None],
        on_failed: Callable[[int, str], None],
    ) -> None:
        self._store = store
        self._keep = keep
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._memory = HostMemory()
        self._shards = FrozenShards()
        self._writer: threading.Thread | None = None
        atexit.register(self.wait, LAST_SECONDS)

    @property
    def busy(self) -> bool:
        """Whether one is being written; its memory is in use then."""
        return self._writer is not None and self._writer.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until nothing is being written, or for so many seconds."""
        if self._writer is not None:
            self._writer.join(timeout)

    def save(
        self,
        state: TrainingState,
        position: Position,
        job: JobIdentity,
        mark: Mark,
        world_size: int,
        sums: Mapping[str, Any] = {},  # noqa: B006 - only read
        schedule: BatchSchedule | None = None,
        node: NodeShards | None = None,
    ) -> None:
        """Copies the state as it is now, and begins to write it; writes it before it returns where no thread can be
        started.

        ``schedule`` is the batch schedule up to the next step; None where the batch was always that of the job. The
        other ranks of ``node`` call `assist`, where they share the model with this one.

        Raises:
            RuntimeError: If another one is being written.
            TypeError: If something in the state can't be carried; the message names its path.
        """
        if self.busy:
            raise RuntimeError("a checkpoint is still being written")
        began = time.monotonic()
        captured = state.capture()
        copies, order = self._memory.take(captured)
        names = list(_names(captured.header, copies, order))
        rows = state.parts(captured.header)
        others = OtherParts(node) if node is not None else None
        frozen = [] if rows else [names[order[number]] for number in frozen_parameters(captured.header, DIGEST_BYTES)]
        aliases = state.aliases()
        position, sums = replace(position), dict(sums)
        scheduled = () if schedule is None else schedule.entries
        held = time.monotonic() - began

        def write(draft: Path, carry: Carry) -> Manifest:
            entries, files = self._shards.write(draft, dict(zip(names, copies, strict=True)), frozen, carry)
            point("saving", mark.step)
            header = captured.header
            if others is not None:
                header = header | {"parts": _add_parts(rows, order, others.collect(draft), entries, files)}
            write_text(draft / STATE, json.dumps(header, allow_nan=False))
            files.append(seal(draft / STATE))
            return Manifest(
                job=job,
                mark=mark,
                phase=position.phase,
                epoch=position.epoch,
                loop=position.loop,
                step_in_epoch=position.step_in_epoch,
                samples=position.samples,
                sums=sums,
                entries=scheduled,
                world_size=world_size,
                saved=time.time(),
                writer=__version__,
                tensors=tuple(entries),
                order=tuple(order),
                aliases=aliases,
                files=tuple(files),
            )

        def run() -> None:
            try:
                path, manifest = self._store.publish(write, mark, self._keep)
            except Exception as error:  # noqa: BLE001 - who counts on the checkpoint is to know
                self._shards = FrozenShards()  # what it has written is gone
                # Where others of this job go on without this process, they have said so.
                if not isinstance(error, Fenced) or isinstance(error, TakenOver):
                    known = isinstance(error, (OSError, CheckpointError))
                    self._on_failed(mark.step, str(error) if known else f"{type(error).__name__}: {error}")
                return
            finally:
                if others is not None:
                    others.end()
            self._on_saved(Saved(mark.step, path, manifest.size, held, time.monotonic() - began))

        self._start(run)

    def assist(self, state: TrainingState, node: NodeShards) -> None:
        """Copies this rank's parts as they are now, and writes them where the node's first rank saves them."""
        parts: list[torch.Tensor] = []
        lack = ""
        try:
            captured = state.capture()
            copies, order = self._memory.take(captured)
            parts = [copies[order[number]] for number in state.parts(captured.header)]
        except (RuntimeError, MemoryError) as error:  # for lack of memory for the copy
            lack = str(error) or type(error).__name__
        self._start(lambda: write_when_asked(node, parts, lack))

    def _start(self, run: Callable[[], None]) -> None:
        writer = threading.Thread(target=run, name="elastic-checkpoint", daemon=True)
        if start_or_run(writer):
            self._writer = writer


def _add_parts(
    rows: Mapping[int, int],
    order: Sequence[int],
    others: Sequence[Written],
    entries: list[TensorEntry],
    files: list[FileEntry],
) -> list[list[Any]]:
    """Adds what the other ranks of a node have written to the entries and files of the first one.

    Returns the number of each tensor that is in parts, the rows of the whole, and the entries that hold them in turn.
    """
    places = {number: [order[number]] for number in rows}
    for written, more in others:
        for number, entry in zip(rows, range(len(entries), len(entries) + len(written)), strict=True):
            places[number].append(entry)
        entries += written
        files += more
    return [[number, rows[number], found] for number, found in places.items()]


def load(folder: Path, manifest: Manifest, state: TrainingState) -> Position:
    """Restores the state of a checkpoint; returns its position.

    Raises:
        CheckpointError: If a file of it is missing or damaged, or does not fit the others.
        OSError: If the disk does not give it: it may be as good as ever.
        StateMismatch: If this script has built something else; the state is a mixture then.
    """
    try:
        header: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (*MISSING, ValueError) as error:
        raise CheckpointError(f"{folder / STATE} can't be read: {error}") from error
    _move(header, state)
    parts = _take_rows(header, state)
    targets = state.targets(header, sender=CHECKPOINT)
    if len(targets) != len(manifest.order):
        placed = f"{folder / MANIFEST} places {len(manifest.order)} tensors"
        raise CheckpointDamaged(f"{placed}, and {folder / STATE} has {len(targets)}")
    takers: dict[int, list[torch.Tensor]] = {}
    for one, (target, number) in enumerate(zip(targets, manifest.order, strict=True)):
        if one not in parts:
            takers.setdefault(number, []).append(target)
    pieces: dict[int, list[tuple[torch.Tensor, int]]] = {}
    for one, (rows, entries) in parts.items():
        first = -rows.start
        for number in entries:
            size = manifest.tensors[number].shape[0]
            if first < len(rows) and first + size > 0:
                pieces.setdefault(number, []).append((targets[one], first))
            first += size
    with torch.no_grad():
        for number, tensor in read_shards(folder, manifest, takers.keys() | pieces.keys()):
            for target in takers.get(number, ()):
                write_values(target, tensor)
            for target, first in pieces.get(number, ()):
                _write_rows(target, tensor, first)
    state.finish(header, targets)
    place = {"phase": manifest.phase, "loop": manifest.loop}
    return Position(manifest.epoch, manifest.step_in_epoch, manifest.step, manifest.samples, **place)


def _take_rows(header: dict[str, Any], state: TrainingState) -> dict[int, tuple[range, list[int]]]:
    """Has tensors that were saved in parts be as large as this rank's; returns its rows, and the entries in turn."""
    found = {}
    divided = state.divided(header, CHECKPOINT) if header.get("parts") else {}
    for number, total, entries in header.get("parts", ()):
        rows = rows_of(divided[number], total)
        header["tensors"][number][1][0] = len(rows)
        found[number] = rows, entries
    return found


def _write_rows(target: torch.Tensor, rows: torch.Tensor, first: int) -> None:
    """Writes rows to their place in a tensor, from its row ``first`` on, as far as it has them."""
    begin, end = max(0, first), min(len(target), first + len(rows))
    if begin < end:
        write_values(target[begin:end], rows[begin - first : end - first])


def _move(header: dict[str, Any], state: TrainingState) -> None:
    """Has a state that was saved on another kind of device lie where this rank's parameters do.

    Single numbers stay: optimizers keep their counts on the CPU.
    """
    here = next((p.device.type for model in state.models for p in model.parameters()), "cpu")
    there = header["tensors"][0][2] if header["parameters"] else here
    for form in header["tensors"]:
        if form[2] == there and form[1]:
            form[2] = here


def _names(header: dict[str, Any], copies: list[torch.Tensor], order: list[int]) -> Iterator[str]:
    """Yields a name for each copy: a parameter's own, and that of its place for what belongs to something else."""
    model = [*(name for name, _ in header["parameters"]), *header["buffers"]]
    named = {number: f"model.{name}" for number, name in enumerate(model)}
    for kind in ("optimizers", "schedulers", "scalers", "registered", "user"):
        named.update(_places(header[kind], kind))
    first: dict[int, int] = {}
    for number, copy in enumerate(order):
        first.setdefault(copy, number)
    given: set[str] = set()
    for copy in range(len(copies)):
        name = named.get(first[copy], "tensor")
        while name in given:  # keys may hold dots, so that two places read alike
            name = f"{name}.{copy}"
        given.add(name)
        yield name


def _places(skeleton: Any, path: str) -> Iterator[tuple[int, str]]:
    """Yields the number of each tensor in an encoded value, with its place."""
    if isinstance(skeleton, dict):
        for key, item in skeleton.items():
            yield from _places(item, f"{path}.{key}")
    if not isinstance(skeleton, list):
        return
    if len(skeleton) > 1 and skeleton[0] in TENSOR_TAGS and isinstance(skeleton[1], int):
        yield skeleton[1], path
        return
    if len(skeleton) > 1 and skeleton[0] in DICT_TAGS:
        skeleton = skeleton[1]
    for number, item in enumerate(skeleton):
        pair = isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], list)
        yield from _places(item[1], f"{path}.{item[0]}") if pair else _places(item, f"{path}.{number}")
