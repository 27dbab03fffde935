"""The buffers of the prepared models: kept equal on all ranks, and put back when a forward pass is not to count."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def _persistent(model: nn.Module) -> list[tuple[dict[str, torch.Tensor | None], str]]:
    """Returns where a model keeps each buffer that belongs to its state."""
    found = []
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.dtype != torch.bool and name not in module._non_persistent_buffers_set:
                found.append((module._buffers, name))
    return found


class Snapshot:
    """A copy of some tensors, made and put back in place."""

    def __init__(self) -> None:
        self.copies: list[torch.Tensor] = []

    def take(self, tensors: list[torch.Tensor]) -> None:
        """Copies the tensors' values, into the memory of the last time where it fits."""
        if not tensors:
            return
        if [t.shape for t in self.copies] != [t.shape for t in tensors]:
            self.copies = [torch.empty_like(t) for t in tensors]
        with torch.no_grad():
            torch._foreach_copy_(self.copies, tensors)

    def put_back(self, tensors: list[torch.Tensor]) -> None:
        """Gives the tensors the values that were taken."""
        if tensors and self.copies:
            with torch.no_grad():
                torch._foreach_copy_(tensors, self.copies)


class ModelBuffers:
    """All buffers of all models: floating ones (batch-norm statistics) are averaged by samples, whole ones take the
    largest.

    Buffers that are not persistent (masks, tables) are no state and are left alone; so are booleans.
    """

    def __init__(self) -> None:
        self._floating: list[tuple[dict[str, torch.Tensor | None], str]] = []
        self._whole: list[tuple[dict[str, torch.Tensor | None], str]] = []
        self._step = Snapshot()
        self._micro_batch = Snapshot()

    def add(self, models: Iterable[nn.Module]) -> None:
        """Adds the buffers of models, those that two models share once."""
        seen = {id(buffer) for buffer in self.all()}
        for model in models:
            for place in _persistent(model):
                buffer = place[0][place[1]]
                assert buffer is not None
                if id(buffer) not in seen:
                    seen.add(id(buffer))
                    (self._floating if buffer.is_floating_point() else self._whole).append(place)

    @staticmethod
    def _resolve(places: list[tuple[dict[str, torch.Tensor | None], str]]) -> list[torch.Tensor]:
        return [buffer for owner, name in places if (buffer := owner[name]) is not None]

    def floating(self) -> list[torch.Tensor]:
        """Returns the floating buffers as they are now."""
        return self._resolve(self._floating)

    def whole(self) -> list[torch.Tensor]:
        """Returns the integer buffers as they are now."""
        return self._resolve(self._whole)

    def all(self) -> list[torch.Tensor]:
        """Returns every buffer that is kept."""
        return self.floating() + self.whole()

    def begin_step(self) -> None:
        """Remembers the values before a step, to which a step that is redone goes back."""
        self._step.take(self.all())

    def undo_step(self) -> None:
        """Puts the values before the step back."""
        self._step.put_back(self.all())

    def begin_micro_batch(self) -> None:
        """Remembers the values before a micro-batch, to which one without weight goes back."""
        self._micro_batch.take(self.all())

    def undo_micro_batch(self) -> None:
        """Puts the values before the micro-batch back."""
        self._micro_batch.put_back(self.all())

    def at_step_begin(self) -> list[torch.Tensor]:
        """Returns the values that the floating buffers had when the step began."""
        return self._step.copies[: len(self._floating)]
