"""What an optimizer step of several ranks must come to where the world size shows, as in batch-norm statistics: in one
process, in torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn


def replay_step(
    model: nn.Module,
    loss: Callable[[slice], torch.Tensor],
    count: int,
    world_size: int,
    max_batch: int,
    begin: Callable[[int], None] = lambda rank: None,
) -> float:
    """Leaves the gradients and the buffers of a step in a model that had no gradients, and returns the step's loss.

    Each rank runs its micro-batches from the buffers that the step began with; afterwards floating buffers are averaged
    by the ranks' samples, and whole ones take the largest.

    Args:
        model: Has the parameters and buffers of the step's beginning.
        loss: The model's mean loss over a part of the step's samples.
        count: The step's samples.
        world_size: Ranks among which they are divided.
        max_batch: Most samples of a micro-batch.
        begin: Is called with each rank before its part.
    """
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    after: dict[str, torch.Tensor] = {}
    start, total = 0, 0.0
    normalizes = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules())
    working = min(world_size, max(1, count // 2)) if normalizes else world_size  # none has one sample alone
    for rank in range(world_size):
        samples = count // working + (rank < count % working) if rank < working else 0
        _set_buffers(model, before)
        begin(rank)
        pieces = math.ceil(samples / max_batch)
        for piece in range(pieces):
            size = samples // pieces + (piece < samples % pieces)
            mean = loss(slice(start, start + size)) * (size / count)
            mean.backward()
            total += float(mean.detach())
            start += size
        for name, buffer in model.named_buffers():
            value = buffer * (samples / count) if buffer.is_floating_point() else buffer.clone()
            combine = torch.add if buffer.is_floating_point() else torch.maximum
            after[name] = combine(after[name], value) if name in after else value
    _set_buffers(model, after)
    return total


def _set_buffers(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(values[name])
