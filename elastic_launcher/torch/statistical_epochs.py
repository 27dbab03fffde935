"""Counts statistical epochs: how far the training has come, and with which step `job.epochs` ends.

Invariant: the ranks count the same after each step, bit by bit, so that a phase ends with the same step on all of them.
With the first batch in every step, n statistical epochs are n passes over the data.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_launcher.adaptive.progress import PhaseProgress, Progress

if TYPE_CHECKING:
    from elastic_launcher.batch_schedule import DataPass
    from elastic_launcher.torch.session import Session
    from elastic_launcher.torch.state.position import Position


def gains_at(session: Session, step: int) -> tuple[float, ...]:
    """Returns the gains of the batch schedule's entry that a step follows: over all parameters, then of each group."""
    gains = {} if session.noise is None else session.noise.gains
    return gains.get(session.schedule.first_step(step), (1.0,))


def scale_at(session: Session, step: int) -> float:
    """Returns the global batch of a step over the first one."""
    return session.schedule.batch_size(step) / session.schedule.batch_size(0)


def gain_now(session: Session) -> float:
    """Returns how many steps of the first batch one step is worth now."""
    return gains_at(session, session.position.step)[0]


def statistical_epochs(session: Session, *, after: bool = False) -> float:
    """Returns how many epochs of the first batch all steps so far are worth; 0 with a fixed batch.

    ``after``: with the step that runs, as if it were a full one.
    """
    if session.autoscaling is None:
        return 0.0
    progress = session.measure_noise().progress
    if after:
        progress = _after(session, progress, session.position.step, session.global_batch_size)
    return progress.epochs(_epoch_samples(session))


def phase_epochs(session: Session) -> float:
    """Returns the statistical epochs of the present phase; 0 with a fixed batch."""
    return _phase(session).epochs if session.autoscaling is not None else 0.0


def is_over(session: Session, at: Position | None = None) -> bool:
    """Whether the epochs of the phase are done, as far as this rank knows: one that has no state yet does not.

    ``at`` is another position than the present one, in the same phase.
    """
    total, position = session.epochs, at or session.position
    if total is None or session.autoscaling is None:
        return total is not None and position.epoch >= total
    return not total or (_is_known(session) and _phase(session).epochs >= total)


def end_within(session: Session, whole: DataPass, stop: int) -> int:
    """Returns the first step that does not come any more, since the phase's statistical epochs end before it; ``stop``
    if they don't end before that one, or are not known, or don't count. ``whole`` is the pass over the data that runs.

    It is exact for the step after the one that runs, and for later ones as long as the batch stays.
    """
    total, position = session.epochs, session.position
    if session.autoscaling is None or total is None or position.loop or not whole.steps or not _is_known(session):
        return stop
    phase = _phase(session)
    for step in range(position.step, stop):
        if phase.epochs >= total:
            return step
        while whole.steps <= step - whole.first_step:
            whole = whole.following()
        count = whole.samples(step - whole.first_step).count
        phase = replace(phase, progress=_after(session, phase.progress, step, count))
    return stop


def expected_steps(session: Session, whole: DataPass) -> int | None:
    """Returns the steps up to the end of the phase if the batch stays; None if its epochs don't end by themselves, or
    in another loop than an epoch's first one.
    """
    total, position = session.epochs, session.position
    if total is None or position.loop:
        return None
    worth = gain_now(session) / scale_at(session, position.step)  # of a sample
    left = max(0.0, total * _epoch_samples(session) - _phase(session).progress.samples) / worth  # in samples
    rest, size, step = whole.rest(position.step_in_epoch), session.global_batch_size, position.step
    if left > rest:
        left, step = left - rest, step + whole.steps - position.step_in_epoch
        following = whole.following()
        passes, left = divmod(left, following.rest(0))
        step += int(passes) * following.steps
    return step + math.ceil(left / size)


def begin_counting(session: Session) -> None:
    """Counts the steps of a checkpoint that has no statistical progress: all of them had the first batch."""
    if session.autoscaling is None or _is_known(session):
        return
    noise, position, epoch = session.measure_noise(), session.position, _epoch_samples(session)
    begun = min(position.step_in_epoch * session.schedule.batch_size(0), epoch)
    samples = (position.epoch + 1) * epoch if position.loop else position.epoch * epoch + begun
    noise.progress, noise.counted = Progress(float(position.samples)), position.step
    noise.phase = PhaseProgress(position.phase, epoch, Progress(float(samples)))


def count_step(session: Session, samples: int) -> None:
    """Counts the step that runs, of so many samples, as progress."""
    noise, position = session.noise, session.position
    if session.autoscaling is None or noise is None or noise.counted > position.step:
        return
    noise.phase = _phase(session)
    if not position.loop:
        noise.phase = replace(noise.phase, progress=_after(session, noise.phase.progress, position.step, samples))
    noise.progress = _after(session, noise.progress, position.step, samples)
    noise.counted = position.step + 1


def count_rest(session: Session, whole: DataPass) -> None:
    """Counts the rest of a pass over the data that the script has left: it was to be an epoch like the others."""
    position = session.position
    if session.autoscaling is None or position.loop or position.step_in_epoch >= whole.steps:
        return
    rest = whole.rest(position.step_in_epoch)
    _leave_out(session, _after(session, _phase(session).progress, position.step, rest))


def count_empty(session: Session) -> None:
    """Counts an epoch in which the script had no training loop: it was to be an epoch like the others."""
    position, course = session.position, session.course
    if session.autoscaling is None or course.loop >= 0 or position.where[:2] != course.where[:2]:
        return
    phase = _phase(session)
    _leave_out(session, Progress(phase.progress.samples + phase.epoch_samples))


def _leave_out(session: Session, progress: Progress) -> None:
    """Counts what the script leaves out of the present epoch, once: a peer's state may have it already."""
    phase, epoch = _phase(session), session.position.epoch
    if phase.left <= epoch:
        session.measure_noise().phase = replace(phase, progress=progress, left=epoch + 1)


def _phase(session: Session) -> PhaseProgress:
    known, phase, epoch = session.measure_noise().phase, session.position.phase, _epoch_samples(session)
    return known.resized(epoch) if known.phase == phase else PhaseProgress(phase, epoch)


def _is_known(session: Session) -> bool:
    """Whether all steps that the job has done are counted here."""
    return session.measure_noise().counted >= session.position.step


def _after(session: Session, progress: Progress, step: int, samples: int) -> Progress:
    return progress.after(samples, gains_at(session, step)[0], scale_at(session, step))


def _epoch_samples(session: Session) -> int:
    """Returns the samples of a pass over the data with the first batch."""
    assert session.autoscaling is not None
    data, base = session.autoscaling.data, session.schedule.batch_size(0)
    return data.size - data.size % base if data.drop_last else data.size
