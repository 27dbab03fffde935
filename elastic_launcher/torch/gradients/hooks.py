"""Warns of hooks on parameters: they see the gradient of a micro-batch, and not that of the global batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence

import torch

_AFTER = "_post_accumulate_grad_hooks"


def find(parameters: Sequence[torch.Tensor], own: Collection[int]) -> list[torch.Tensor]:
    """Returns the parameters that have hooks, but for ours, by number."""
    return [p for p in parameters if p._backward_hooks or (getattr(p, _AFTER, None) or {}).keys() - own]


def warn(hooked: Sequence[torch.Tensor], name: Callable[[torch.Tensor], str]) -> None:
    """Warns of parameters with hooks."""
    if hooked:
        more = f" and {len(hooked) - 1} more have" if len(hooked) > 1 else " has"
        warnings.warn(
            f"the parameter {name(hooked[0])}{more} a hook (register_hook or register_post_accumulate_grad_hook). "
            "It sees the gradient of each micro-batch by itself, so that one that is not linear (clamping, say) has "
            "results that depend on the number of ranks. Change gradients after job.backward instead, under "
            "`if job.sync_gradients:`; see docs/world-size.md",
            stacklevel=2,
        )
