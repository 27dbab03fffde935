"""Finds the numbers in what a job carries beside parameters: learning rates, schedulers' counts, the script's values.

They are compared between ranks by name. Options of param groups must be the same on all. Of what the script registers
that is not certain: a timer, or a random generator, is each rank's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from elastic_launcher.torch.state.training_state import TrainingState

MOST_ITEMS = 64
"""Of a list that holds numbers; a longer one is data, such as the state of a random generator."""
RATES = ("lr", "initial_lr")


def group_options(state: TrainingState) -> dict[str, str]:
    """Returns the options by which the optimizers step, as texts by name."""
    return {
        name: value
        for number, optimizer in enumerate(state.optimizers)
        for place, group in enumerate(optimizer.param_groups)
        for key in group
        if key in RATES or key in getattr(optimizer, "defaults", ())
        for name, value in numbers(group[key], f"optimizer[{number}].param_groups[{place}].{key}")
    }


def other_numbers(state: TrainingState) -> dict[str, str]:
    """Returns the numbers of schedulers, scalers, registered objects and ``job.state``, as texts by name."""
    found: dict[str, str] = {}
    for kind, ones in (("scheduler", state.schedulers), ("scaler", state.scalers)):
        for number, one in enumerate(ones):
            found.update(numbers(one.state_dict(), f"{kind}[{number}]"))
    for name, one in state.registered.items():
        found.update(numbers(one.state_dict(), f"registered {name!r}"))
    found.update(numbers(state.user, "job.state"))
    return found


def numbers(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields each number in dicts and short lists, as a text, with its place; single ones in tensors and arrays too.

    Tensors of a GPU are left out: to read one waits for all of its work.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from numbers(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)) and len(value) <= MOST_ITEMS:
        for place, item in enumerate(value):
            yield from numbers(item, f"{path}[{place}]")
    elif isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.layout == torch.strided and value.numel() == 1:
            yield path, str(value.item())
    elif isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind in "biufc" and math.prod(value.shape) == 1:
            yield path, str(value.item())
    elif isinstance(value, (bool, int, float)):
        yield path, str(value)
