"""Checks how a model is sharded, and sets it up so that its gradients are sums over the node."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from elastic_launcher.torch.shard.tensors import is_sharded

HOW = "call fully_shard(model) without a mesh, after elastic.init_node_group() and before job.prepare"
SUMS = ("set_requires_gradient_sync", "set_gradient_divide_factor", "set_reduce_scatter_divide_factor")
_parts: WeakKeyDictionary[nn.Module, list[tuple[str, torch.Tensor]]] = WeakKeyDictionary()


def is_sharded_model(model: nn.Module) -> bool:
    """Whether some of a model's parameters are sharded, or gathered by what has sharded them."""
    return any(map(is_sharded, parameters(model))) or any(base.__name__ == "FSDPModule" for base in type(model).__mro__)


def parameters(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yields a model's parameters, each once, as its own method does; see `named_parameters`."""
    yield from (part for _, part in named_parameters(model)) if model in _parts else model.parameters()


def named_parameters(
    model: nn.Module, prefix: str = "", remove_duplicate: bool = True
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a model's parameters by name, as its own method does.

    Those of a sharded model are always the parts: while a pass runs, and after one without gradient, the model itself
    has whole ones in their place, which `fully_shard` has gathered.
    """
    if model not in _parts:
        named = model.named_parameters  # which a model may have of its own
        yield from named(prefix) if remove_duplicate else named(prefix, remove_duplicate=False)
        return
    seen: set[int] = set()
    for name, part in _parts[model]:
        if not (remove_duplicate and id(part) in seen):
            seen.add(id(part))
            yield f"{prefix}.{name}" if prefix else name, part


def drop_gathered(models: Iterable[nn.Module]) -> None:
    """Has the next pass of sharded models gather the parameters anew: other values are in the parts now."""
    for model in models:
        if model in _parts:
            _reshard(model)


def set_up(model: nn.Module) -> None:
    """Has a sharded model sum its gradients over the ranks of the node, without dividing them.

    Raises:
        TypeError: If it is not sharded by ``fully_shard`` over all ranks of this node, and these alone.
    """
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        raise TypeError(
            "the model has DTensor parameters and is not sharded by fully_shard as a whole; tensor parallelism is not "
            f"supported: {HOW}"
        )
    _reshard(model)  # a pass may have run before
    if not hasattr(model, "set_force_sum_reduction_for_comms"):
        raise TypeError("sharded models need a newer torch, whose FSDPModule has set_force_sum_reduction_for_comms")
    nproc = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    for path, parameter in model.named_parameters():
        if is_sharded(parameter):
            _check_mesh(path, parameter, nproc)
    for path, buffer in model.named_buffers():
        if is_sharded(buffer):
            raise TypeError(
                f"{path} is a sharded buffer, which is not supported: make it a plain tensor, the same on all ranks"
            )
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise TypeError(f"{path} is a {type(module).__name__}, which is not supported in a sharded model")
        if isinstance(module, FSDPModule):
            FSDPModule.set_requires_gradient_sync(module, True)
            FSDPModule.set_gradient_divide_factor(module, 1.0)
            FSDPModule.set_force_sum_reduction_for_comms(module, True)  # torch would multiply first, which gloo can't
            for method in SUMS:
                setattr(module, method, partial(_refuse_to_change, method))
    _parts[model] = list(model.named_parameters(remove_duplicate=False))


def _refuse_to_change(method: str, *_: Any, **__: Any) -> None:
    raise RuntimeError(
        f"{method} of a prepared model would change its gradient: each job.backward sums that over the ranks of the "
        "node, and weighs the micro-batches by itself. Leave the call out"
    )


def _reshard(model: nn.Module) -> None:
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _check_mesh(path: str, parameter: Any, nproc: int) -> None:
    mesh = parameter.device_mesh
    if mesh.device_type != parameter.device.type:
        raise TypeError(
            f"{path} is on {parameter.device.type}, and sharded over ranks on {mesh.device_type}: CPUOffloadPolicy is "
            "not supported; leave offload_policy out"
        )
    if mesh.ndim != 1:
        raise TypeError(
            f"{path} is sharded over a mesh of {mesh.ndim} dimensions {tuple(mesh.shape)}: HSDP and tensor parallelism "
            f"of your own are not supported, since the job's nodes are the replicas; {HOW}"
        )
    if not parameter.placements[0].is_shard(0):
        raise TypeError(f"{path} is placed as {parameter.placements[0]}, not sharded by its first dimension; {HOW}")
    if mesh.size() != nproc or not dist.is_initialized():
        raise TypeError(
            f"{path} is sharded over {mesh.size()} ranks, and each node of this job has {nproc}: a model is sharded "
            f"within a node, and its replicas are on the other nodes; {HOW}"
        )
