"""Turns the adaptive batch on, proposes decisions inside the reduction, and reports those that all ranks follow."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_launcher.adaptive.decision import scale_in_words
from elastic_launcher.adaptive.learning_rate import Formula, Rule, rule_of
from elastic_launcher.batch import whole_number
from elastic_launcher.control.messages import BatchChanged
from elastic_launcher.host.output import say
from elastic_launcher.options import BY_KEY
from elastic_launcher.torch.autoscaling import Autoscaling, read_bounds
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.membership.environment import read_autoscale
from elastic_launcher.torch.membership.membership import Division
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.statistical_epochs import gains_at
from elastic_launcher.torch.step.goodput_policy import GoodputPolicy, check_installed
from elastic_launcher.torch.step.learning_rate import rule_in_words
from elastic_launcher.torch.step.step_times import time_step

FLAG = BY_KEY["autoscale_batch_size"].flag

REFRESH_STEPS = 64  # how often gains are compared
REFRESHES = 16  # they hold for this part of all steps at least: however long the job, the schedule has few entries
LEAST_MOVE = 0.05  # of a gain, as a share: learning rates and progress are off by no more


@dataclass(frozen=True, slots=True)
class Change:
    """A change that no policy has proposed; see `Proposal`."""

    new: int
    noise_scale: float | None
    reason: str


def turn_on(
    session: Session,
    data: TrainingData,
    max_batch_size: int | None,
    local_bsz_bounds: Sequence[int] | None,
    gradient_accumulation: bool,
    learning_rate_rule: str | Rule | Formula | None,
) -> None:
    """Lets the global batch adapt; see `ElasticLoader.autoscale_batch_size`.

    Raises:
        RuntimeError: If training has begun, or a loader's batch adapts already, or the job is deterministic.
        ImportError: If scipy is missing.
        ValueError: If the bounds can't be kept, the launcher gives another maximum, or there is no such rule.
    """
    if session.course.phase >= 0:
        raise RuntimeError(
            "autoscale_batch_size() was called after the training had begun; call it before job.epochs() and the "
            "training loop"
        )
    if session.autoscaling is not None:
        raise RuntimeError(
            "autoscale_batch_size() was called twice; the batch belongs to the job: call it once, on the loader that "
            "it trains on"
        )
    option = read_autoscale()
    if max_batch_size is not None and option not in (None, max_batch_size):
        raise ValueError(
            f"max_batch_size is {max_batch_size} in autoscale_batch_size() but {option} in {FLAG}; give it in one "
            "place, or the same in both"
        )
    most, name = (max_batch_size, "max_batch_size") if option is None else (option, FLAG)
    if most is None:
        return  # the script allows it, and nobody asks for it
    if session.virtual_ranks:
        raise RuntimeError(
            "the batch adapts to how fast ranks are, and with deterministic= each step is the same at any number of "
            f"ranks; leave {name} or deterministic= out"
        )
    if session.shares.finds_limit:
        session.max_batch_per_gpu = max(session.max_batch_per_gpu, whole_number(name, most))
    bounds = read_bounds(
        session.schedule.batch_size(0),
        None if session.shares.finds_limit else session.max_batch_per_gpu,
        data.size,
        most,
        local_bsz_bounds,
        gradient_accumulation,
        data.drop_last,
        name,
    )
    check_installed()
    if learning_rate_rule is not None:
        rule_of(learning_rate_rule, "")  # refuses what is none
    session.measure_noise()
    session.autoscaling = Autoscaling(data, bounds, GoodputPolicy(session), learning_rate_rule)


def check_loop(session: Session, data: TrainingData) -> None:
    """Refuses what can't be trained with an adaptive batch, and warns of batch norm.

    Raises:
        RuntimeError: If the loop is over other data than those whose batch adapts, or the launcher asks for a batch
            that adapts and the script does not allow it.
        TypeError: If an optimizer has no learning rate.
        ValueError: If some micro-batch might have one sample, which batch norm can't take.
    """
    autoscaling = session.autoscaling
    if autoscaling is None:
        if (option := read_autoscale()) is not None:
            raise RuntimeError(
                f"{FLAG} is {option}, and the script does not allow that its batch adapts: call "
                "loader.autoscale_batch_size() on the loader that it trains on, before the training loop, or leave "
                f"{FLAG} out"
            )
        return
    if data is not autoscaling.data:
        raise RuntimeError(
            f"this training loop is over another loader ({data.name}) than the one whose batch adapts "
            f"({autoscaling.data.name}); train on one loader, which is made once, before job.epochs(), or leave "
            "autoscale_batch_size out"
        )
    for number, optimizer in enumerate(session.state.optimizers):
        if any("lr" not in group for group in optimizer.param_groups):
            raise TypeError(
                f"optimizer {number} ({type(optimizer).__name__}) has a param group without `lr`, which must follow "
                "the batch; use another optimizer, or leave autoscale_batch_size out"
            )
    if session.shares.normalizes is None:
        return
    if not data.drop_last:
        raise ValueError(
            f"the layer {session.shares.normalizes!r} takes statistics of at least two samples, and an epoch's last "
            "step may have one by any batch that is chosen; make the loader with drop_last=True"
        )
    session.shares.one(3, Division(0, 1))  # an odd number of samples: the batch may have any
    if not autoscaling.warned:
        autoscaling.warned = True
        warnings.warn(
            f"the layer {session.shares.normalizes!r} takes statistics of each micro-batch, and with "
            "autoscale_batch_size micro-batches change their size during the training: the model depends on the number "
            "of ranks as it does without. Group norm or layer norm don't",
            stacklevel=2,
        )


def announce(session: Session) -> None:
    """Says on rank 0, once in a phase, what its epochs are."""
    autoscaling, phase = session.autoscaling, session.position.phase
    if autoscaling is None or autoscaling.announced == phase or session.epochs is None:
        return
    autoscaling.announced = phase
    if session.need_membership("the training").rank == 0:
        bounds = autoscaling.bounds
        say(
            f"elastic-launcher: the global batch adapts, from {bounds.base_batch_size:,} to "
            f"{bounds.max_batch_size:,} samples: job.epochs({session.epochs}) counts statistical epochs, which are "
            "passes over the data with the first batch, and more passes with a larger one"
        )


def keep_bounds(session: Session) -> None:
    """Lowers a global batch that is above its maximum: the job has resumed with a smaller one. All ranks call it before
    their first step.
    """
    autoscaling, now = session.autoscaling, session.global_batch_size
    if autoscaling is None or now <= (most := autoscaling.bounds.max_batch_size):
        return
    reason = f"global batch {now:,} → {most:,}: the job resumed with a maximum of {most:,} samples"
    autoscaling.proposal = Change(most, session.measure_noise().averages.noise_scale(), reason)
    session.change_batch(most, session.position.step)


def propose(session: Session) -> int:
    """Returns the global batch that this rank proposes for the steps after the one that runs; 0 for none. The present
    one goes on by the gains that are known now.

    Raises:
        ValueError: If the policy's proposal is out of its bounds.
    """
    autoscaling, membership = session.autoscaling, session.membership
    if autoscaling is None or membership is None or membership.rank != 0:
        return 0
    step, now, bounds = session.position.step, session.global_batch_size, autoscaling.bounds
    proposal = autoscaling.policy.propose(step, now, membership.world_size)
    if proposal is None or proposal.new == now:
        proposal = _new_gains(session)
    if proposal is None:
        return 0
    if not bounds.base_batch_size <= proposal.new <= bounds.max_batch_size:
        raise ValueError(
            f"step {step}: the policy proposed a global batch of {proposal.new}, which must be from "
            f"{bounds.base_batch_size} to {bounds.max_batch_size}"
        )
    autoscaling.proposal = proposal
    return proposal.new


def _new_gains(session: Session) -> Change | None:
    """Returns the decision to use new gains, where one of those that hold is off."""
    step, noise = session.position.step, session.measure_noise()
    since = step - session.schedule.first_step(step)
    if since < max(REFRESH_STEPS, step // REFRESHES) or since % REFRESH_STEPS:
        return None
    held, found = gains_at(session, step), noise.gains_of(session.global_batch_size)
    moves = [abs(new / old - 1) for old, new in zip(held, found, strict=False)]
    if (most := max(moves)) < LEAST_MOVE:
        return None
    number = moves.index(most)
    whose = f" of param group {number - 1}" if number else ""
    scale = noise.averages.noise_scale()
    said = "" if scale is None else f", {scale_in_words(scale)}"
    reason = f"gain{whose} {held[number]:.3g} → {found[number]:.3g}{said}"
    return Change(session.global_batch_size, scale, reason)


def note_step(session: Session, samples: int) -> None:
    """Times a step of so many samples that is complete, and tells the policy of it."""
    autoscaling, membership = session.autoscaling, session.membership
    if membership is None or (autoscaling is None and session.member is None):
        return
    size = session.schedule.batch_size(session.position.step - 1)
    time_step(session, size, samples, membership.dividing)
    if autoscaling is not None:
        autoscaling.policy.note_step(size, samples, membership.dividing)


def report_changes(session: Session) -> None:
    """Reports the schedule from rank 0 when an entry of it was used in a step that is complete.

    All ranks have the entry then, whoever is lost. A process that becomes rank 0 reports the whole schedule: the one
    before it may have been lost before it did.
    """
    autoscaling, membership = session.autoscaling, session.membership
    if autoscaling is None or membership is None or membership.rank != 0:
        return
    used = session.schedule.until(session.position.step - 1)
    if len(used.entries) == autoscaling.reported:
        return
    autoscaling.reported = len(used.entries)
    gains = session.measure_noise().gains
    proposal = autoscaling.proposal
    if proposal is None or proposal.new != used.entries[-1][1]:
        session.report(BatchChanged(used.entries, gains, learning_rate_rule=rule_in_words(session)))
        return
    scale = proposal.noise_scale  # without bound where no signal was seen
    known = scale if scale is not None and math.isfinite(scale) else None
    session.report(BatchChanged(used.entries, gains, known, proposal.reason, rule_in_words(session)))
