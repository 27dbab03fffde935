"""What a job with an adaptive batch has beside the others: the bounds of its global batch, its policy, its rule.

A decision is proposed by rank 0, rides inside the gradient reduction, and holds from the next step on, on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastic_launcher.batch import whole_number
from elastic_launcher.torch.collectives.consensus import MOST_BATCH
from elastic_launcher.torch.data.training_data import TrainingData

Rule = Callable[[float, Sequence[float]], Sequence[float]]
"""Returns what the learning rate of each param group of an optimizer is multiplied by.

It is given the scale (the global batch ÷ the first one) and the gain of each param group.
"""
Gains = Callable[[int, float], Sequence[float]]
"""Returns the gain of each param group of an optimizer, by its number, at a scale of the batch."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The sizes between which a decision may choose.

    Attributes:
        base_batch_size: Fewest samples of a step: the global batch with which the training begins.
        max_batch_size: Most samples of a step.
        max_micro_batch: Most samples of a micro-batch.
        min_micro_batch: Fewest samples of a micro-batch.
        accumulation: Whether a rank may have several micro-batches in a step.
    """

    base_batch_size: int
    max_batch_size: int
    max_micro_batch: int
    min_micro_batch: int
    accumulation: bool


def read_bounds(
    global_batch_size: int,
    max_batch_per_gpu: int,
    dataset_size: int,
    max_batch_size: int,
    local_bsz_bounds: Sequence[int] | None,
    gradient_accumulation: bool,
) -> Bounds:
    """Returns the bounds that a script asks for; see `ElasticLoader.autoscale_batch_size`.

    Raises:
        ValueError: If they contradict each other, the first batch or the data set; the message says what to do.
    """
    most = whole_number("max_batch_size", max_batch_size)
    if most < global_batch_size:
        raise ValueError(
            f"max_batch_size is {most}, below the global batch of {global_batch_size} with which the training begins; "
            "raise max_batch_size, or lower global_batch_size"
        )
    if most > dataset_size:
        raise ValueError(
            f"max_batch_size is {most}, and the data set has {dataset_size} samples; lower max_batch_size to "
            f"{dataset_size} or less"
        )
    if most > MOST_BATCH:
        raise ValueError(f"max_batch_size is {most}; it must be {MOST_BATCH} or less")
    low, high = _local(local_bsz_bounds, max_batch_per_gpu)
    if low > global_batch_size:
        raise ValueError(
            f"local_bsz_bounds begin at {low}, above the global batch of {global_batch_size} with which the training "
            "begins; lower the first bound, or raise global_batch_size"
        )
    return Bounds(global_batch_size, most, high, low, bool(gradient_accumulation))


def _local(bounds: Sequence[int] | None, max_batch_per_gpu: int) -> tuple[int, int]:
    if bounds is None:
        return 1, max_batch_per_gpu
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise ValueError(f"local_bsz_bounds is {bounds!r}; it must be two numbers of samples, (low, high)")
    low, high = (whole_number(f"local_bsz_bounds[{place}]", bound) for place, bound in enumerate(bounds))
    if low > high:
        raise ValueError(f"local_bsz_bounds is ({low}, {high}); the first bound must not be above the second one")
    if high > max_batch_per_gpu:
        raise ValueError(
            f"local_bsz_bounds end at {high}, above max_batch_per_gpu, {max_batch_per_gpu}, which is the most that "
            "runs on one GPU at a time; raise max_batch_per_gpu, or lower the second bound"
        )
    return low, high


class Proposal(Protocol):
    """A policy's decision on the global batch of the steps after the one that runs."""

    @property
    def new(self) -> int:
        """Samples of a step, over all ranks."""

    @property
    def gain(self) -> float | None:
        """How many steps of the first batch one step of it is worth; None if not known."""

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale, in samples; None if not known."""

    @property
    def reason(self) -> str:
        """Why, in words."""


class Policy(Protocol):
    """Decides on the global batch."""

    def propose(self, step: int, batch_size: int, world_size: int) -> Proposal | None:
        """Returns another global batch for the steps after this one, or None to keep the present one.

        It is asked on rank 0, in the training thread, once in each try of a step: it must be quick.

        Args:
            step: The step that runs, counted from 0 over the whole training.
            batch_size: The global batch of that step.
            world_size: Ranks that take part in it.
        """


class Fixed:
    """The policy that keeps the batch."""

    def propose(self, step: int, batch_size: int, world_size: int) -> Proposal | None:
        """Returns None."""
        return None


def unchanged(scale: float, gains: Sequence[float]) -> Sequence[float]:
    """Returns the factors of the rule that leaves learning rates as they are."""
    return [1.0] * len(gains)


@dataclass
class Autoscaling:
    """The adaptive batch of one job in one process.

    Attributes:
        data: The data whose batch adapts.
        policy: Decides, on rank 0.
        rule: Gives the factors of the learning rates.
        gains: Gives the gains for the rule; None where none are measured: then they are all 1.
        proposal: What this rank proposed last.
        reported: How many entries of the schedule this rank has reported.
        warned: Whether the script was warned of batch norm.
    """

    data: TrainingData
    bounds: Bounds
    policy: Policy
    rule: Rule = unchanged
    gains: Gains | None = None
    proposal: Proposal | None = None
    reported: int = 0
    warned: bool = False
