"""Multiplies learning rates for an optimizer's step, and takes that back: schedulers and checkpoints see base ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from elastic_launcher.adaptive.learning_rate import rule_of
from elastic_launcher.adaptive.progress import Progress

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
    overall, *gains = _gains_now(session)
    before = sum(len(one.param_groups) for one in session.state.optimizers[:number])
    own = (gains[before : before + groups] + [overall] * groups)[:groups]  # of new groups nothing was measured
    rule = rule_of(autoscaling.rule, type(optimizer).__name__)
    return rule.factors(_scale(session), own, statistical_epochs(session, after=True))


def _gains_now(session: Session) -> tuple[float, ...]:
    """Returns the gains of the entry of the batch schedule that holds: over all parameters, then of each group."""
    gains = {} if session.noise is None else session.noise.gains
    return gains.get(session.schedule.first_step(session.position.step), (1.0,))


def gain_now(session: Session) -> float:
    """Returns how many steps of the first batch one step is worth now."""
    return _gains_now(session)[0]


def statistical_epochs(session: Session, *, after: bool = False) -> float:
    """Returns how many epochs of the first batch the steps so far are worth; 0 with a fixed batch.

    ``after``: with the step that runs, as if it were a full one.
    """
    if session.autoscaling is None:
        return 0.0
    progress = session.measure_noise().progress
    if after:
        progress = progress.after(session.global_batch_size, gain_now(session), _scale(session))
    data, base = session.autoscaling.data, session.schedule.batch_size(0)
    return progress.epochs(data.size - data.size % base if data.drop_last else data.size)


def count_step(session: Session, samples: int) -> None:
    """Counts the step that runs, of so many samples, as progress."""
    noise, step = session.noise, session.position.step
    if session.autoscaling is not None and noise is not None and noise.counted <= step:
        if not noise.counted:  # the steps before had the first batch
            noise.progress = Progress(session.position.samples)
        noise.counted = step + 1
        noise.progress = noise.progress.after(samples, gain_now(session), _scale(session))


def _scale(session: Session) -> float:
    return session.global_batch_size / session.schedule.batch_size(0)


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
        for one in _with_inner(optimizer) if stepped else ():
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


def _with_inner(optimizer: Optimizer) -> list[Optimizer]:
    """Returns an optimizer and those that it holds: a wrapper's groups may be others than those of what it steps."""
    inner = [one for one in vars(optimizer).values() if isinstance(one, Optimizer)]
    return [optimizer, *(found for one in inner for found in _with_inner(one))]
