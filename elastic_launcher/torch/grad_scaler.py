"""What a gradient scaler notes of a step until its `update`, and its ``state_dict`` leaves out.

One entry an optimizer, in torch's own ``_per_optimizer_states``: its gradients are unscaled, or it has stepped.
A scaler that is switched off (one for CUDA where there is none) notes nothing, and does not have them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.amp.grad_scaler import OptState


def forget_unscaled(scalers: Iterable[torch.amp.GradScaler]) -> None:
    """Lets them unscale redone gradients once more, which they would refuse."""
    for scaler in scalers:
        if scaler.is_enabled():
            marks = scaler._per_optimizer_states
            for key in [key for key, one in marks.items() if one["stage"] is OptState.UNSCALED]:
                del marks[key]


def has_work(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether an optimizer has a gradient, or None: any was unscaled. The scaler's calls fail without: a whole step may
    have been left out.
    """
    if not scaler.is_enabled():
        return True
    if optimizer is None:
        return any(one["found_inf_per_device"] for one in scaler._per_optimizer_states.values())
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def forget_all(scaler: torch.amp.GradScaler) -> None:
    """Starts a new step in it, as its `update` does."""
    if scaler.is_enabled():
        scaler._per_optimizer_states.clear()
