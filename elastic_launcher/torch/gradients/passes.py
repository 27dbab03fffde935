"""Refuses two passes in a step, with weights that differ between them, where micro-batches would be added up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from elastic_launcher.torch.gradients.buckets import Slot


class Passes:
    """Sees whether weights change between two `backward` calls of one step other than by a prepared optimizer's step.

    Args:
        name: Returns what messages call a parameter.
        too_few: Returns why a rank may come to have several micro-batches in a step: how few ranks this job may have;
            "" where it can't.
    """

    def __init__(self, name: Callable[[torch.Tensor], str], too_few: Callable[[], str]) -> None:
        self._too_few = too_few
        self._name = name
        self._reduced: list[tuple[torch.Tensor, int]] = []

    def begin_step(self) -> None:
        """Forgets the step before."""
        self._reduced = []

    def reduced(self, slot: Slot) -> None:
        """Notes the weights with which a part of the step was reduced, where another part follows."""
        self._reduced += [(parameter, parameter._version) for parameter in slot.layout.parameters]

    def stepped(self) -> None:
        """Notes that a prepared optimizer has changed parameters."""
        self._reduced = []

    def refuse(self, slot: Slot, first: bool) -> None:
        """Refuses a second pass whose micro-batches were made with different weights, or may come to be.

        ``first``: this micro-batch is the pass's first one in this step.

        Raises:
            RuntimeError: That names a parameter which has changed.
        """
        versions = [p._version for p in slot.layout.parameters]
        if first or slot.versions is None:
            slot.versions = versions
            moved = next((p for p, then in self._reduced if p._version != then), None)
            if moved is not None and (said := self._too_few()):
                raise RuntimeError(f"{self._changed(moved)}: {said}")
        elif versions != slot.versions:
            moved = next(
                p for p, now, then in zip(slot.layout.parameters, versions, slot.versions, strict=True) if now != then
            )
            raise RuntimeError(
                f"{self._changed(moved)}, and this rank has several micro-batches in it: the second pass of the others "
                "was made with other weights. One micro-batch for each rank is exact: raise max_batch_per_gpu, or use "
                "more GPUs, until a rank's share fits in one"
            )

    def _changed(self, parameter: torch.Tensor) -> str:
        return (
            f"{self._name(parameter)} was changed between two job.backward calls of one step, outside of the prepared "
            "optimizers' step() (by a sharpness-aware optimizer, say)"
        )
