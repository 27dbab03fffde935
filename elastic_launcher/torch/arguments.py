"""Checks what a script gives to `Job.backward` and `Job.log`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from elastic_launcher.torch.session import LEAVE_OUT, Session


def check_backward(
    session: Session, loss: torch.Tensor | None, weight: float | torch.Tensor | None, optimizer: Optimizer | None
) -> tuple[float | None, list[torch.Tensor] | None, int]:
    """Returns the weight, the parameters that get gradients (None: all), and their optimizer's number (-1: all).

    Raises:
        ValueError: If the loss is no scalar or has no gradient, the weight is negative, or the optimizer not prepared.
    """
    number = None if weight is None else float(weight)
    if loss is None and number != 0:
        raise ValueError(f"job.backward got no loss; {LEAVE_OUT}")
    if loss is not None and (not isinstance(loss, torch.Tensor) or loss.numel() != 1):
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(f"job.backward needs a scalar loss (the mean over the micro-batch), got {what}")
    if number is not None and not 0 <= number < float("inf"):
        raise ValueError(f"weight is {number}; it must be 0 or more and finite")
    if loss is not None and not loss.requires_grad and number != 0:
        raise ValueError(
            "the loss given to job.backward has no gradient: it depends on no trained parameter, or was detached; "
            "give the loss that the model's output led to, or weight=0 where nothing counts"
        )
    if session.shards is not None and (loss is None or not loss.requires_grad or optimizer is not None):
        raise ValueError(
            "job.backward of a sharded model needs a loss with a gradient, and takes no optimizer: the ranks of a node "
            "run all backward passes together. Leave a micro-batch out by weight=0, with its loss"
        )
    if session.shards is not None and loss is not None and loss.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"the loss of a sharded model is {str(loss.dtype).removeprefix('torch.')}, in which its share of the step "
            "can't be exact; compute it in float32, from model(x).float()"
        )
    only: list[torch.Tensor] | None = None
    owner = -1
    if optimizer is not None:
        known = session.state.optimizers
        owner = next((n for n, o in enumerate(known) if o is optimizer), -1)
        if owner < 0:
            raise ValueError("the optimizer given to job.backward was not prepared; call job.prepare(optimizer) first")
        only = [p for group in optimizer.param_groups for p in group["params"]]
    return number, only, owner


def logged_numbers(values: Mapping[str, Any]) -> dict[str, int | float]:
    """Returns the numbers that a script logs, by name.

    Raises:
        TypeError: If they are no mapping, or a value is no number.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"job.log: the values are {type(values).__name__}; give a dict of numbers by name")
    plain: dict[str, int | float] = {}
    for name, value in values.items():
        number: Any = value
        if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and np.prod(value.shape) == 1:
            number = value.item()
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError(f"job.log: {name!r} is {type(value).__name__}; it must be a number")
        plain[str(name)] = number
    return plain
