"""Sharded tensors: the part of each that this rank holds, and back."""

from __future__ import annotations

from typing import Any

import torch


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a ``DTensor``, of which this rank holds a part."""
    return hasattr(tensor, "device_mesh")


def is_divided_as(like: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a sharded tensor has the shape of another one, and lies on the same ranks in the same way."""
    if not is_sharded(like):
        return False
    one: Any = like
    other: Any = tensor
    return (one.shape, one.device_mesh, one.placements) == (other.shape, other.device_mesh, other.placements)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a sharded tensor, in the tensor's own memory; any other tensor as it is."""
    sharded: Any = tensor
    part: torch.Tensor = sharded.detach().to_local() if is_sharded(tensor) else tensor
    return part


def rows_of(like: torch.Tensor, rows: int) -> range:
    """Returns which rows this rank has of a tensor of so many, divided as another one is; all where that is whole."""
    if not is_sharded(like):
        return range(rows)
    sharded: Any = like
    most = -(-rows // sharded.device_mesh.size())
    first = min(rows, most * sharded.device_mesh.get_local_rank())
    return range(first, min(rows, first + most))


def as_shard(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Returns a sharded tensor of the same whole and division as another one, of which this rank holds ``part``, in its
    own memory.

    For one that is not sharded that is ``part`` itself.
    """
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    sharded: Any = like
    return DTensor.from_local(
        part, sharded.device_mesh, sharded.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
