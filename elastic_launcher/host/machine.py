"""The hardware of this machine: cores and GPUs, found without loading torch."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_LISTING_TIMEOUT = 20.0
"""Seconds for ``nvidia-smi -L``; a driver that has been idle takes several to wake up."""


def cores() -> int:
    """Returns how many cores this process may use, a container's share of CPU time included."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count


def threads_per_rank(core_count: int, max_ranks: int) -> int:
    """Returns how many threads a rank computes with, so that all ranks together have about one for each core."""
    return max(1, core_count // max_ranks)


def gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the ids of the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        ids = [part.strip() for part in visible.split(",")]
        end = next((index for index, part in enumerate(ids) if part in ("", "-1")), len(ids))
        return ids[:end]  # CUDA itself reads no further than the first that is none
    return [str(index) for index in range(_count())]


@functools.cache  # the launch asks more than once, and listing them takes its time
def _count() -> int:
    listing = shutil.which("nvidia-smi")
    if listing is not None:
        try:
            result = subprocess.run([listing, "-L"], capture_output=True, text=True, timeout=_LISTING_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired):
            return 0
        return sum(line.startswith("GPU ") for line in result.stdout.splitlines()) if result.returncode == 0 else 0
    try:
        return len(list(Path("/proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return 0
