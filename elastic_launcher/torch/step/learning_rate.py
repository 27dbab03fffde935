"""Multiplies learning rates for an optimizer's step, and takes that back: schedulers and checkpoints see base ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

if TYPE_CHECKING:
    from elastic_launcher.torch.session import Session


def factors(session: Session, number: int, optimizer: Optimizer) -> Sequence[float]:
    """Returns the factor of each param group of an optimizer, by its number, for the step that runs.

    Raises:
        ValueError: If the rule returns something else than a positive, finite number for each of them.
    """
    groups, autoscaling = len(optimizer.param_groups), session.autoscaling
    if autoscaling is None:
        return [1.0] * groups
    scale = session.global_batch_size / session.schedule.batch_size(0)
    gains = [1.0] * groups if autoscaling.gains is None else autoscaling.gains(number, scale)
    found = list(autoscaling.rule(scale, gains))
    if len(found) != groups or not all(_is_factor(one) for one in found):
        raise ValueError(
            f"the learning-rate rule returned {found!r} for optimizer {number} ({type(optimizer).__name__}) at a batch "
            f"of {session.global_batch_size} samples; it must return a positive number for each of its {groups} param "
            "groups"
        )
    return [float(one) for one in found]


def _is_factor(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def mean_factor(session: Session) -> float:
    """Returns the mean of the factors of all param groups of all optimizers; 1 where there are none."""
    found = [one for n, optimizer in enumerate(session.state.optimizers) for one in factors(session, n, optimizer)]
    return sum(found) / len(found) if found else 1.0


@contextlib.contextmanager
def scaled(session: Session, optimizer: Optimizer) -> Iterator[None]:
    """Multiplies the learning rates of an optimizer, and of those that it steps itself, inside the block.

    One that steps inside another one's step has the other one's factors already.
    """
    bases: list[tuple[dict[str, Any], Any]] = []
    known: set[int] = set()
    try:
        stepped = session.autoscaling is not None and not session.stepping
        for one in _with_inner(optimizer) if stepped else ():
            number = next(n for n, other in enumerate(session.state.optimizers) if other is one)
            for group, factor in zip(one.param_groups, factors(session, number, one), strict=True):
                if factor != 1.0 and id(group) not in known:
                    known.add(id(group))
                    bases.append((group, group["lr"]))
                    group["lr"] = group["lr"] * factor
        yield
    finally:
        for group, base in bases:
            group["lr"] = base


def _with_inner(optimizer: Optimizer) -> list[Optimizer]:
    """Returns an optimizer and those that it holds: a wrapper's groups may be others than those of what it steps."""
    inner = [one for one in vars(optimizer).values() if isinstance(one, Optimizer)]
    return [optimizer, *(found for one in inner for found in _with_inner(one))]
