"""Takes the gradients of a sharded model's parts out of the backward pass as they come.

`fully_shard` makes new memory for the gradients of each module whose backward pass ends. They move into flat memory at
once: a rank has its part of the gradient once, and only that of one module twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from elastic_launcher.torch.gradients.buckets import Slot
from elastic_launcher.torch.shard.tensors import local


@contextlib.contextmanager
def taken(slot: Slot, factor: float, *, counts: bool) -> Iterator[None]:
    """Has the backward pass within add gradients of parts to a slot, multiplied by a factor, or drop them.

    What is added there by the pass itself stays on its parameter.
    """
    handles = []
    for bucket in slot.layout.parts:
        for index, parameter, view, place in zip(
            bucket.indices, bucket.parameters, bucket.views, bucket.grads, strict=True
        ):

            def take(
                part: torch.Tensor, index: int = index, view: torch.Tensor = view, place: torch.Tensor = place
            ) -> None:
                grad = part.grad
                if grad is None or (grad is place and counts):
                    return
                part.grad = None
                if not counts:
                    return
                with torch.no_grad():
                    new = local(grad)
                    if factor != 1.0:
                        new.mul_(factor)
                    if slot.used[index]:
                        view.add_(new)
                    else:
                        view.copy_(new)
                slot.used[index] = True

            handles.append(parameter.register_post_accumulate_grad_hook(take))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
