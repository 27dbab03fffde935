"""Random numbers that are derived, not carried.

Each step, rank and sample has a seed of its own, so that redone work is the same again.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import numpy.random  # numpy alone would load it at its first use, perhaps in a process that was just forked
import torch

_MASK = 2**64 - 1
_STEP, _SAMPLE, _AFTER = 1, 2, 3  # keep the kinds of seeds apart


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


def after_seed(seed: int, *where: int) -> int:
    """Returns the seed with which all ranks go on outside of training loops: a model that the script makes there is the
    same.

    ``where`` is the phase that has ended; or phase, epoch and loop, where -1 is the epoch's beginning.
    """
    return derive(_AFTER, seed, *where)


def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """Returns the seed with which a sample is loaded in an epoch."""
    return derive(_SAMPLE, seed, epoch, sample)


def current_device() -> torch.device | None:
    """Returns the GPU that this process works on, or None if it has not used one (or can't: it was forked)."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else None


def _device_generator(device: torch.device | None) -> torch.Generator | None:
    if device is None or device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def seed_all(seed: int, device: torch.device | None = None) -> None:
    """Seeds Python's, numpy's (the global one, with 32 of the bits), torch's and a GPU's generators with 64 bits."""
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    generator = _device_generator(device)
    if generator is not None:
        generator.manual_seed(seed)


def keep() -> Callable[[], None]:
    """Returns what puts this process's own generators, its GPU's too, back to where they are now."""
    generator = _device_generator(current_device())
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    torch_state = torch.default_generator.get_state()
    device_state = generator.get_state() if generator is not None else None

    def put_back() -> None:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
        torch.default_generator.set_state(torch_state)
        if generator is not None and device_state is not None:
            generator.set_state(device_state)

    return put_back


@contextlib.contextmanager
def preserve() -> Iterator[None]:
    """Restores this process's own generators, its GPU's too, after the block."""
    put_back = keep()
    try:
        yield
    finally:
        put_back()
