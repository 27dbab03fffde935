"""Random numbers that are derived, not carried.

Each step, rank and sample has a seed of its own, so that whatever is redone is the same again.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch

_MASK = 2**64 - 1
_STEP, _SAMPLE = 1, 2  # keep the two kinds of seeds apart


def derive(*parts: int) -> int:
    """Returns a 64-bit number that depends on all parts and their order (rounds of splitmix64's finalizer)."""
    state = 0
    for part in parts:
        state = ((state ^ part) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def step_seed(seed: int, step: int, rank: int) -> int:
    """Returns the seed of one rank's part of an optimizer step."""
    return derive(_STEP, seed, step, rank)


def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """Returns the seed with which a sample is loaded in an epoch."""
    return derive(_SAMPLE, seed, epoch, sample)


def seed_all(seed: int, device: torch.device | None = None) -> None:
    """Seeds Python's, numpy's, torch's and a device's generators.

    Args:
        seed: 64 bits.
        device: A GPU whose generator is seeded too.
    """
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


@contextlib.contextmanager
def preserve() -> Iterator[None]:
    """Leaves the process's own generators as they are, whatever happens inside."""
    numpy = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.default_generator.get_state()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
