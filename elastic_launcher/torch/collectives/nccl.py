"""NCCL for the reduction of CUDA tensors, where torch has it and each rank has a GPU of its own; not tried by CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store


class HostWork:
    """A work whose `wait` ends when the GPU has done it, not when it is queued: only then is it known to be good.

    Args:
        raw: NCCL's work.
        check: Raises if the group was cut, after which the GPU goes on as if all were well.
    """

    def __init__(self, raw: Any, check: Callable[[], None]) -> None:
        self._raw, self._check = raw, check

    def wait(self, *timeout: timedelta) -> None:
        """Waits for the end.

        Raises:
            RuntimeError: If it failed.
        """
        self._raw.wait(*timeout)
        torch.cuda.current_stream().synchronize()
        self._check()

    def is_completed(self) -> bool:
        """Whether it has ended, well or badly."""
        return bool(self._raw.is_completed())


def abort(group: Any) -> None:
    """Aborts NCCL's communicator, under the name that this torch has for it (2.5 has no ``abort``)."""
    found = [getattr(group, name) for name in ("abort", "_shutdown") if hasattr(group, name)]
    if found:
        found[0]()


def gpu_of(device: torch.device) -> str:
    """Returns the identity of this device; empty if NCCL can't use it."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


def build(
    store: Store,
    rank: int,
    world_size: int,
    device: torch.device,
    gpus: Sequence[str],
    timeout: float,
    long_timeout: float,
) -> Any:
    """Forms an NCCL group, or returns None where not each rank has a GPU of its own, by what `gpu_of` says on each.

    The ranks meet in ``store``, and have ``timeout`` seconds for that; an operation fails after ``long_timeout``.

    Raises:
        RuntimeError: If it can't be formed.
    """
    if not all(gpus) or len(set(gpus)) < world_size:
        return None
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # else its watchdog ends the process
    store.set_timeout(timedelta(seconds=timeout))
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=long_timeout)
    group = dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, world_size, options)
    group.eager_connect_single_device(device)
    return group
