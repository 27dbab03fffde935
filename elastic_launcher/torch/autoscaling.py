"""What a job with an adaptive batch has beside the others: the bounds of its global batch, its policy, its rule.

A decision is proposed by rank 0, rides inside the gradient reduction, and holds from the next step on, on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch.optim import Adam, AdamW, Optimizer

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.learning_rate import Formula, Rule, rule_of
from elastic_launcher.batch import whole_number
from elastic_launcher.torch.collectives.consensus import MOST_BATCH
from elastic_launcher.torch.data.training_data import TrainingData

ADAM = (Adam, AdamW)
"""Optimizers that divide gradients by the root of their second moment; the others that may be, by nothing."""


def read_bounds(
    global_batch_size: int,
    max_batch_per_gpu: int | None,
    dataset_size: int,
    max_batch_size: int,
    local_bsz_bounds: Sequence[int] | None,
    gradient_accumulation: bool,
    drop_last: bool = False,
    name: str = "max_batch_size",
) -> Bounds:
    """Returns the bounds that a script asks for; see `ElasticLoader.autoscale_batch_size`.

    ``max_batch_per_gpu`` is None where the job finds it; ``name`` is where the maximum comes from, for messages.

    Raises:
        ValueError: If they contradict each other, the first batch or the data set; the message says what to do.
    """
    most = whole_number(name, max_batch_size)
    if most < global_batch_size:
        raise ValueError(
            f"{name} is {most}, below the global batch of {global_batch_size} with which the training begins; "
            f"raise {name}, or lower global_batch_size"
        )
    if most > dataset_size:
        raise ValueError(
            f"{name} is {most}, and the data set has {dataset_size} samples; lower {name} to {dataset_size} or less"
        )
    if most > MOST_BATCH:
        raise ValueError(f"{name} is {most}; it must be {MOST_BATCH} or less")
    low, high = _local(local_bsz_bounds, most if max_batch_per_gpu is None else max_batch_per_gpu)
    if max_batch_per_gpu is None and high > most:
        raise ValueError(
            f"local_bsz_bounds end at {high}, above {name}, {most}, and no micro-batch is larger than the global "
            f"batch; lower the second bound, or raise {name}"
        )
    if max_batch_per_gpu is not None and high > max_batch_per_gpu:
        raise ValueError(
            f"local_bsz_bounds end at {high}, above max_batch_per_gpu, {max_batch_per_gpu}, which is the most that "
            "runs on one GPU at a time; raise max_batch_per_gpu, or lower the second bound"
        )
    if low > global_batch_size:
        raise ValueError(
            f"local_bsz_bounds begin at {low}, above the global batch of {global_batch_size} with which the training "
            "begins; lower the first bound, or raise global_batch_size"
        )
    tailed = 0 if drop_last else dataset_size
    return Bounds(global_batch_size, most, high, low, accumulation=bool(gradient_accumulation), epoch_samples=tailed)


def _local(bounds: Sequence[int] | None, largest: int) -> tuple[int, int]:
    if bounds is None:
        return 1, largest
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise ValueError(f"local_bsz_bounds is {bounds!r}; it must be two numbers of samples, (low, high)")
    low, high = (whole_number(f"local_bsz_bounds[{place}]", bound) for place, bound in enumerate(bounds))
    if low > high:
        raise ValueError(f"local_bsz_bounds is ({low}, {high}); the first bound must not be above the second one")
    return low, high


class Proposal(Protocol):
    """A policy's decision on the global batch of the steps after the one that runs."""

    @property
    def new(self) -> int:
        """Samples of a step, over all ranks."""

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale, in samples; None if not known."""

    @property
    def reason(self) -> str:
        """Why, in words."""


class Policy(Protocol):
    """Decides on the global batch."""

    def note_step(self, batch_size: int, samples: int, world_size: int) -> None:
        """Notes that a step is complete; called on every rank.

        Args:
            batch_size: The global batch of that step.
            samples: Its samples: the last step of an epoch may have fewer.
            world_size: Ranks that had a part of it.
        """

    def propose(self, step: int, batch_size: int, world_size: int) -> Proposal | None:
        """Returns another global batch for the steps after this one, or None to keep the present one.

        It is asked on rank 0, in the training thread, once in each try of a step: it must be quick.

        Args:
            step: The step that runs, counted from 0 over the whole training.
            batch_size: The global batch of that step.
            world_size: Ranks that take part in it.
        """


@dataclass
class Autoscaling:
    """The adaptive batch of one job in one process.

    Attributes:
        data: The data whose batch adapts.
        policy: Decides, on rank 0.
        rule: Gives the factors of the learning rates; None for the one that each optimizer has by default.
        proposal: What this rank proposed last.
        reported: How many entries of the schedule this rank has reported.
        warned: Whether the script was warned of batch norm.
        announced: The phase of which this rank has said what its epochs are.
    """

    data: TrainingData
    bounds: Bounds
    policy: Policy
    rule: str | Rule | Formula | None = None
    proposal: Proposal | None = None
    reported: int = 0
    warned: bool = False
    announced: int = -1

    def rule_of(self, optimizer: Optimizer) -> Rule:
        """Returns the rule of an optimizer: by default that of its kind, by which its gradients are measured too."""
        return rule_of(self.rule, "Adam" if isinstance(optimizer, ADAM) else "SGD")
