"""Has a new job start at a position that its script names, with what it has loaded from a file of its own."""

from __future__ import annotations

import warnings
from dataclasses import replace

from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.session import Session


def start_at(session: Session, epoch: int, step: int) -> None:
    """Notes where this job starts; see `Job.start_at`."""
    for name, number in (("epoch", epoch), ("step", step)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"job.start_at: {name} is {number!r}; it must be a whole number, 0 or more")
    if session.course.phase >= 0:
        raise RuntimeError(
            "job.start_at was called after job.epochs or a training loop had begun; call it before them, after "
            "job.prepare"
        )
    standing = session.member.standing if session.member is not None else None
    if standing is not None and standing.checkpoint:
        warnings.warn(
            f"job.start_at({epoch}, {step}) is ignored: this job resumes from its own checkpoint {standing.checkpoint}",
            stacklevel=3,
        )
    elif standing is None or not session.position.where > (0, 0, 0) and not standing.step:
        session.start = (epoch, step)
        session.move_to(session.position.at(0, epoch))


def begin_at_start(session: Session, data: TrainingData) -> None:
    """Moves to the step at which the job starts, when its first training loop begins: the data says which one it is.

    Raises:
        ValueError: If the epoch has no such step.
        RuntimeError: If the batch adapts.
    """
    at = session.position
    if session.start is None or at.step or at.where > (0, session.start[0], 0):
        return
    epoch, step = session.start
    if session.autoscaling is not None:
        raise RuntimeError(
            "job.start_at can't be used where the batch adapts: how many steps lie before that position is not known. "
            "Resume from the job's own checkpoint, or leave loader.autoscale_batch_size out"
        )
    whole = session.data_pass(data, at)
    if step >= whole.steps:
        raise ValueError(
            f"job.start_at({epoch}, {step}): an epoch has {whole.steps} steps; for the beginning of the next one give "
            f"({epoch + 1}, 0)"
        )
    samples = (epoch + 1) * whole.rest(0) - whole.rest(step)
    session.move_to(replace(at, step_in_epoch=step, step=epoch * whole.steps + step, samples=samples))
