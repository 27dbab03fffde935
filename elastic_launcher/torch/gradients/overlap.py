"""Reduces buckets of a step's gradient while its last backward pass still runs.

The order in which gradients come is recorded once. From then on a bucket goes as soon as the gradient comes that was
its last one. Whatever comes after its bucket has gone (a layer that is used twice under reentrant checkpointing) is
noticed, agreed on in the tail and added in a second round, so that the overlap can cost time but never exactness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.gradients.buckets import Bucket, Slot


class Overlap:
    """The reductions that run beside a backward pass.

    Attributes:
        late: Gradients that came after their bucket had gone, by their parameter's ``id``.
    """

    def __init__(self) -> None:
        self.late: dict[int, torch.Tensor] = {}
        self._launch: Callable[[Bucket], None] | None = None
        self._works: list[Any] = []

    @property
    def has_begun(self) -> bool:
        """Whether a bucket of the present step is being reduced already."""
        return bool(self._works)

    def begin(self, slot: Slot, group: Group, gather: Callable[[Bucket], None]) -> None:
        """Has the backward pass that comes now reduce each bucket once it is complete, or record the order.

        All ranks of the group do the same; ``gather`` moves a bucket's gradients into its flat memory.
        """
        layout = slot.layout
        if not slot.overlap or len(layout.buckets) < 2:
            return
        if slot.recording:
            record_order(slot)
            return

        def launch(done: Bucket) -> None:
            done.complete = True
            for bucket in layout.buckets[:-1]:
                if not bucket.complete:
                    return  # every rank reduces in the same order
                if not bucket.launched:
                    gather(bucket)
                    bucket.launched = True
                    self._works.append(group.all_reduce(bucket.flat))

        self._launch = launch

    def end(self) -> None:
        """Notes that the backward pass is over: no bucket goes any more."""
        self._launch = None

    def take_works(self) -> list[Any]:
        """Returns the reductions under way, which are the caller's from here on."""
        works, self._works = self._works, []
        return works

    def learn_order(self, slot: Slot) -> None:
        """Puts the hooks where the last backward pass showed that a bucket is complete."""
        layout = slot.layout
        order = {id(p): n for n, p in enumerate(slot.fired)}
        twice = len(order) != len(slot.fired)
        layout.remove_hooks()
        slot.recording = False
        slot.overlap = not twice and bool(order)
        slot.fired.clear()
        if not slot.overlap:
            return
        for bucket in layout.buckets[:-1]:
            seen = [p for p in bucket.parameters if id(p) in order]
            if not seen:
                continue
            last = max(seen, key=lambda p: order[id(p)])

            def hook(_: torch.Tensor, bucket: Bucket = bucket) -> None:
                if self._launch is not None:
                    self._launch(bucket)

            layout.handles.append(last.register_post_accumulate_grad_hook(hook))

    def add_late(self, slot: Slot, group: Group) -> None:
        """Adds the gradients that came after their bucket had gone, and records the order again."""
        for bucket in slot.layout.buckets:
            if not bucket.parameters:
                continue
            rest = torch.zeros(bucket.gradient_numel, dtype=bucket.flat.dtype, device=bucket.flat.device)
            offset = 0
            for parameter in bucket.parameters:
                grad = self.late.get(id(parameter))
                if grad is not None:
                    rest[offset : offset + parameter.numel()].view(parameter.shape).copy_(grad)
                offset += parameter.numel()
            group.all_reduce(rest).wait()
            offset = 0
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                view.add_(rest[offset : offset + parameter.numel()].view(parameter.shape))
                offset += parameter.numel()
        slot.layout.remove_hooks()
        slot.recording = True


def record_order(slot: Slot) -> None:
    """Has the next backward pass note the order in which gradients come."""
    slot.fired.clear()
    if not slot.layout.handles:
        for parameter in slot.layout.parameters:
            slot.layout.handles.append(parameter.register_post_accumulate_grad_hook(slot.fired.append))
