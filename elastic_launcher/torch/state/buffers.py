"""The buffers of the prepared models: keeps them equal on all ranks, and undoes forward passes that don't count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from elastic_launcher.torch.state.registrations import registrations
from elastic_launcher.torch.state.tensors import bit_sum, digest, form, is_plain
from elastic_launcher.torch.state.tracked import Tracked

_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64)


@dataclass(frozen=True, slots=True)
class BufferSlot:
    """The place of a buffer, by its key, among its module's; the name is for messages.

    Attributes:
        is_saved: Whether a backward pass may read it: it reads no statistics that a norm's forward pass writes.
    """

    name: str
    owner: dict[str, torch.Tensor | None]
    key: str
    is_saved: bool


def is_averaged(buffer: torch.Tensor) -> bool:
    """Whether ranks average a buffer: real and complex numbers of 16 bits and more."""
    return is_plain(buffer) and (buffer.is_floating_point() or buffer.is_complex()) and buffer.itemsize > 1


def is_whole(buffer: torch.Tensor) -> bool:
    """Whether ranks take the largest value of a buffer: whole numbers, and booleans, of which True is the larger."""
    return is_plain(buffer) and buffer.dtype in _WHOLE


def buffer_slots(models: Sequence[nn.Module]) -> Iterator[tuple[BufferSlot, torch.Tensor]]:
    """Yields each persistent buffer of some models once, and where it is kept."""
    seen: set[int] = set()
    for number, model in enumerate(models):
        for path, module in model.named_modules(prefix=f"model{number}" if len(models) > 1 else ""):
            for name, buffer in list(module._buffers.items()):
                if buffer is not None and id(buffer) not in seen and name not in module._non_persistent_buffers_set:
                    seen.add(id(buffer))
                    is_saved = not isinstance(module, _NormBase)
                    yield BufferSlot(f"{path}.{name}" if path else name, module._buffers, name, is_saved), buffer


class Snapshot:
    """A copy of some tensors, made and put back in place."""

    def __init__(self) -> None:
        self.copies: list[torch.Tensor] = []

    def take(self, tensors: list[torch.Tensor]) -> None:
        """Copies the tensors' values, into the memory of the last time where it fits."""
        if not tensors:
            self.copies = []
            return
        if _forms(self.copies) != _forms(tensors):
            self.copies = [torch.empty_like(t) for t in tensors]
        with torch.no_grad():
            torch._foreach_copy_(self.copies, tensors)

    def put_back(self, tensors: list[torch.Tensor]) -> None:
        """Gives the tensors the values that were taken."""
        if tensors and self.copies:
            with torch.no_grad():
                torch._foreach_copy_(tensors, self.copies)


class ModelBuffers:
    """All buffers of all models: real and complex ones (batch-norm statistics) are averaged by samples, whole ones take
    the largest, booleans too.

    Buffers that are not persistent (masks, tables) are no state and are left alone. So are persistent ones of other
    kinds (sparse and quantized tensors, float8), which no forward pass may change.

    Attributes:
        tracked: Tensors of the script's own that are treated alike.
    """

    def __init__(self) -> None:
        self.tracked = Tracked()
        self._models: list[nn.Module] = []
        self._looked = -1
        self._averaged: list[BufferSlot] = []
        self._whole: list[BufferSlot] = []
        self._still: list[BufferSlot] = []
        self._step = Snapshot()
        self._micro_batch = Snapshot()
        self._reduced, self._reduced_names = Snapshot(), list[str]()
        self._fresh: set[int] = set()  # numbers of the averaged ones that have come within the step
        self._in_step = False

    def add(self, models: Iterable[nn.Module]) -> None:
        """Adds the buffers of models, those that two models share once."""
        self._models.extend(models)
        self._look()

    def _look(self) -> None:
        """Looks through the models."""
        self._looked = registrations()
        self._averaged, self._whole, self._still = [], [], []
        for slot, buffer in buffer_slots(self._models):
            if buffer.is_conj() or buffer.is_neg():  # written to as pairs of real numbers
                slot.owner[slot.key] = buffer.resolve_conj().resolve_neg()
            kind = self._averaged if is_averaged(buffer) else self._whole if is_whole(buffer) else self._still
            kind.append(slot)

    @staticmethod
    def _resolve(slots: list[BufferSlot]) -> list[torch.Tensor]:
        """Returns the buffers' memory: a write to it leaves a graph alone that has saved one (a mask, say); see
        `announced`.
        """
        found = []
        for slot in slots:
            buffer = slot.owner[slot.key]
            if buffer is not None and 0 in buffer.stride():  # expanded: its elements can't be written to one by one
                slot.owner[slot.key] = buffer = buffer.contiguous()
            if buffer is not None:
                found.append(buffer.data)
        return found

    def floating(self) -> list[torch.Tensor]:
        """Returns the averaged buffers as they are now, complex ones as pairs of real numbers."""
        return [torch.view_as_real(b) if b.is_complex() else b for b in self._resolve(self._averaged)]

    def whole(self) -> list[torch.Tensor]:
        """Returns the buffers of whole numbers and booleans as they are now."""
        return self._resolve(self._whole)

    def all(self) -> list[torch.Tensor]:
        """Returns every buffer that is kept."""
        return self.floating() + self.whole()

    def begin_step(self) -> None:
        """Remembers the values before a step, to which a step that is redone goes back."""
        if self._looked != registrations() or len(self.all()) != len(self._averaged) + len(self._whole):
            self._look()
        self._fresh = set()
        self._step.take(self.all())
        self.tracked.begin_step()
        self._in_step = True

    def undo_step(self) -> None:
        """Puts the values before the step back; nothing between two steps."""
        if self._in_step:
            self._put_back(self._step)
            self.tracked.undo_step()

    def drop_step(self) -> None:
        """Puts the values before the step back, and ends it."""
        self.undo_step()
        self.end_step()

    def end_step(self) -> None:
        """Keeps the values as they are: the script may change them until the next step begins."""
        self._in_step = False

    def end_reduction(self, *, alone: bool = False) -> None:
        """Remembers the values after a reduction, for a rank that lost it: its own script goes on from there. No rank
        did where this one is ``alone``.
        """
        slots = [] if alone else self._averaged + self._whole
        self._reduced.take(self._resolve(slots))
        self._reduced_names = [slot.name for slot in slots if slot.owner[slot.key] is not None]
        self.tracked.end_reduction(alone=alone)

    def after_reduction(self) -> dict[str, torch.Tensor]:
        """Returns the values right after the last reduction, by name: the script may have changed them since."""
        return dict(zip(self._reduced_names, self._reduced.copies, strict=True))

    def begin_micro_batch(self) -> None:
        """Remembers the values before a micro-batch, to which one without weight goes back."""
        self._micro_batch.take(self.all())
        self.tracked.begin_micro_batch()

    def undo_micro_batch(self) -> None:
        """Puts the values before the micro-batch back."""
        self._put_back(self._micro_batch)
        self.tracked.undo_micro_batch()

    def _put_back(self, snapshot: Snapshot) -> None:
        now = self.all()
        if _forms(now) != _forms(snapshot.copies):
            for slot, mine, copy in zip(self._averaged + self._whole, now, snapshot.copies, strict=False):
                if mine.shape != copy.shape or mine.dtype != copy.dtype:
                    old = slot.owner[slot.key]
                    complex_one = old is not None and old.is_complex()
                    slot.owner[slot.key] = torch.view_as_complex(copy.clone()) if complex_one else copy.clone()
            now = self.all()
        snapshot.put_back(now)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Puts the values before the block back after it: what forward passes outside of a step change is not brought
        together, and each rank's are of other samples.
        """
        before = Snapshot()
        before.take(self.all())
        try:
            yield
        finally:
            self._put_back(before)

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """Has torch refuse backward passes that would read a value which is changed within: what they go through has
        saved the buffer, or the tracked tensor, as it was.
        """
        slots = [slot for slot in self._averaged + self._whole if slot.is_saved]
        saved = [buffer for slot in slots if (buffer := slot.owner[slot.key]) is not None] + self.tracked.tensors()
        before = [tensor.detach().clone() for tensor in saved]
        yield
        for tensor, value in zip(saved, before, strict=True):
            if not torch.equal(tensor, value) and int(digest(tensor)) != int(digest(value)):  # no NaN equals itself
                torch.autograd.graph.increment_version(tensor)

    def at_step_begin(self) -> list[torch.Tensor]:
        """Returns the values that the averaged buffers had when the step began; 0 for those that have come since."""
        copies = self._step.copies[: len(self._averaged)]
        return [torch.zeros_like(c) if n in self._fresh else c for n, c in enumerate(copies)] if self._fresh else copies

    def whole_at_step_begin(self) -> list[torch.Tensor]:
        """Returns the values that whole numbers and booleans had when the step began."""
        return self._step.copies[len(self._averaged) :]

    def follow(self) -> None:
        """Looks for buffers of modules that the script has replaced or added since the step began."""
        self.tracked.follow()
        if self._looked == registrations():
            return
        was = [(id(slot.owner), slot.key) for slot in self._averaged + self._whole]
        self._look()
        now = [(id(slot.owner), slot.key) for slot in self._averaged + self._whole]
        for snapshot in (self._step, self._micro_batch):
            copies = dict(zip(was, snapshot.copies, strict=False))
            snapshot.copies = [
                copies[key] if key in copies else tensor.clone() for key, tensor in zip(now, self.all(), strict=True)
            ]
        self._fresh = {number for number, key in enumerate(now[: len(self._averaged)]) if key not in set(was)}

    def check(self) -> None:
        """Compares the buffers that are kept with what they were when the step began.

        Raises:
            RuntimeError: If one has another shape or type.
        """
        self.tracked.check()
        now, then = self.all(), self._step.copies
        if _forms(now) != _forms(then):
            for slot, mine, before in zip(self._averaged + self._whole, now, then, strict=False):
                if (mine.shape, mine.dtype) != (before.shape, before.dtype):
                    raise RuntimeError(
                        f"the buffer {slot.name} was {form(before)} when the step began and is {form(mine)} after a "
                        "forward pass: one whose shape follows the batch can't be averaged over ranks. Register it "
                        "with persistent=False if it is no state of the model, or give it one shape"
                    )

    def still(self) -> dict[str, int]:
        """Returns a checksum of each persistent buffer that is left alone, by name."""
        return _checksums(self._still)

    def compared(self) -> dict[str, int]:
        """Returns a checksum of each buffer that must be the same on all ranks, by name: those that are left alone, and
        booleans.
        """
        return self.still() | _checksums(self._whole, torch.bool)

    def averages(self) -> dict[str, int]:
        """Returns a checksum of each averaged buffer, by name."""
        return _checksums(self._averaged)

    def refuse_changed(self, before: dict[str, int]) -> None:
        """Refuses what no rank can average, where a forward pass has changed it since `still` returned ``before``.

        Raises:
            RuntimeError: If one has changed.
        """
        kinds = {slot.name: slot.owner[slot.key] for slot in self._still}
        for name, value in self.still().items():
            kind = kinds[name]
            if kind is None or before.get(name, value) == value:
                continue
            raise RuntimeError(
                f"a forward pass changes the buffer {name}, and ranks can't average it ({_kind(kind)}). Keep it as a "
                "dense tensor of float16 or wider, or register it with persistent=False if it is no state of the model"
            )


def _checksums(slots: Sequence[BufferSlot], only: torch.dtype | None = None) -> dict[str, int]:
    """Returns a checksum of each buffer, by name; of those of one type, if that is given."""
    there = ((slot.name, buffer) for slot in slots if (buffer := slot.owner[slot.key]) is not None)
    return {name: bit_sum(buffer) for name, buffer in there if only in (None, buffer.dtype)}


def _forms(tensors: list[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _kind(tensor: torch.Tensor) -> str:
    what = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
    return f"{what} {str(tensor.dtype).removeprefix('torch.')}"
