"""Settings under which torch comes to the same bits from the same numbers, and what bits depend on beside them."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACES = (":4096:8", ":16:8")  # with which cuBLAS is deterministic; read when it is first used


def be_deterministic(environment: MutableMapping[str, str] = os.environ) -> None:
    """Has torch choose operations that come to the same bits each time, and raise an error where it has none.

    Raises:
        ValueError: If the environment has cuBLAS compute otherwise.
    """
    given = environment.setdefault(WORKSPACE, WORKSPACES[0])
    if given not in WORKSPACES:
        raise ValueError(
            f"{WORKSPACE} is {given!r}, with which cuBLAS may come to other bits each time; unset it, or set it to "
            f"{' or '.join(WORKSPACES)}"
        )
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # it chooses an algorithm by time


def surroundings(device: torch.device) -> dict[str, str | int]:
    """Returns what bits depend on in a process, by what messages call it: ranks must have it in common."""
    found: dict[str, str | int] = {"torch version": torch.__version__}
    if device.type == "cuda":
        return found | {"GPU": torch.cuda.get_device_name(device), "CUDA version": str(torch.version.cuda)}
    return found | {
        "CPU capability": torch.backends.cpu.get_cpu_capability(),
        "CPU threads of torch (OMP_NUM_THREADS)": torch.get_num_threads(),
    }
