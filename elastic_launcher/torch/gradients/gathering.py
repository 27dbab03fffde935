"""Moves the gradients of a micro-batch from its parameters into flat memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from elastic_launcher.torch.gradients.buckets import Bucket, Slot
from elastic_launcher.torch.shard.tensors import local


def gather(slot: Slot, bucket: Bucket, factor: float, first: bool, name: Callable[[torch.Tensor], str]) -> None:
    """Moves the gradients of a bucket's parameters into its flat memory and takes them off the parameters.

    Args:
        slot: The slot of the bucket.
        bucket: Where to.
        factor: What they are multiplied by.
        first: Whether this is the slot's first micro-batch: what the flat memory holds is of an earlier step.
        name: Returns what messages call a parameter.

    Raises:
        TypeError: If one is sparse.
    """
    new, places, more, sums = [], [], [], []
    members = zip(bucket.indices, bucket.parameters, bucket.views, bucket.grads, strict=True)
    for index, parameter, view, place in members:
        grad = parameter.grad
        if grad is None:
            if first and not slot.used[index]:
                view.zero_()
            continue
        parameter.grad = None
        if grad is place:
            continue
        grad = local(grad)
        if grad.layout != torch.strided:
            raise TypeError(
                f"{name(parameter)}, shaped {tuple(parameter.shape)}, has a sparse gradient; use sparse=False there"
            )
        if slot.used[index]:
            more.append(grad)
            sums.append(view)
        else:
            slot.used[index] = True
            new.append(grad)
            places.append(view)
    with torch.no_grad():
        if factor != 1.0 and new + more:
            torch._foreach_mul_(new + more, factor)
        if new:
            torch._foreach_copy_(places, new)
        if more:
            torch._foreach_add_(sums, more)
