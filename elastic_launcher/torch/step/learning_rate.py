"""Multiplies learning rates for an optimizer's step, and takes that back: schedulers and checkpoints see base ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from elastic_launcher.torch.statistical_epochs import gains_at, scale_at, statistical_epochs

if TYPE_CHECKING:
    from elastic_launcher.torch.session import Session


def factors(session: Session, number: int, optimizer: Optimizer) -> Sequence[float]:
    """Returns the factor of each param group of an optimizer, by its number, for the step that runs.

    Raises:
        ValueError: If the rule returns something else than a positive, finite number.
    """
    groups, autoscaling = len(optimizer.param_groups), session.autoscaling
    if autoscaling is None:
        return [1.0] * groups
    step = session.position.step
    overall, *gains = gains_at(session, step)
    before = sum(len(one.param_groups) for one in session.state.optimizers[:number])
    own = (gains[before : before + groups] + [overall] * groups)[:groups]  # of new groups nothing was measured
    return autoscaling.rule_of(optimizer).factors(scale_at(session, step), own, statistical_epochs(session, after=True))


def rule_in_words(session: Session) -> str:
    """Returns the name of the rule of an adaptive batch; of several optimizers with different ones, of each."""
    assert session.autoscaling is not None
    names = [session.autoscaling.rule_of(optimizer).name for optimizer in session.state.optimizers]
    return ", ".join(dict.fromkeys(names))


def mean_factor(session: Session) -> float:
    """Returns the mean of the factors of all param groups of all optimizers; 1 where there are none."""
    found = [one for n, optimizer in enumerate(session.state.optimizers) for one in factors(session, n, optimizer)]
    return sum(found) / len(found) if found else 1.0


@contextlib.contextmanager
def scaled(session: Session, optimizer: Optimizer) -> Iterator[None]:
    """Multiplies the learning rates of an optimizer, and of those that it steps itself, inside the block.

    One that steps inside another one's step has the other one's factors already.
    """
    bases: list[tuple[dict[str, Any], Any, Any, float]] = []
    known: set[int] = set()
    try:
        stepped = session.autoscaling is not None and not session.stepping
        for one in with_inner(optimizer) if stepped else ():
            number = next(n for n, other in enumerate(session.state.optimizers) if other is one)
            for group, factor in zip(one.param_groups, factors(session, number, one), strict=True):
                if factor != 1.0 and id(group) not in known:
                    known.add(id(group))
                    base, group["lr"] = group["lr"], group["lr"] * factor
                    bases.append((group, base, group["lr"], factor))
        yield
    finally:
        for group, base, scaled_rate, factor in bases:
            unchanged = group["lr"] is scaled_rate or group["lr"] == scaled_rate
            group["lr"] = base if unchanged else group["lr"] / factor  # a scheduler in a hook of the step


def with_inner(optimizer: Optimizer) -> list[Optimizer]:
    """Returns an optimizer and those that it holds: a wrapper's groups may be others than those of what it steps."""
    inner = [one for one in vars(optimizer).values() if isinstance(one, Optimizer)]
    return [optimizer, *(found for one in inner for found in with_inner(one))]
