"""What a job says of itself: this process's place in it, its position, and what holds for the present step."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from elastic_launcher.batch import StepPlan, plan_step
from elastic_launcher.torch.data.micro_batches import Micro
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.statistical_epochs import gain_now, is_over, phase_epochs
from elastic_launcher.torch.step.learning_rate import mean_factor
from elastic_launcher.virtual_ranks import plan_virtual


class JobStatus:
    """The part of a `Job` that is read. Each attribute is as it is now: rank and world size change at a resize."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def rank(self) -> int | None:
        """Rank of this process, or None before it is admitted."""
        return self._session.membership.rank if self._session.membership is not None else None

    @property
    def world_size(self) -> int | None:
        """Ranks in the generation, or None before this process is admitted."""
        return self._session.membership.world_size if self._session.membership is not None else None

    @property
    def local_rank(self) -> int:
        """Rank within the node."""
        return self._session.launch.local_rank

    @property
    def device(self) -> torch.device:
        """The device that models and batches are on."""
        return self._session.device

    @property
    def is_main(self) -> bool:
        """Whether this process is rank 0; another one may become it, and before the first batch none is (a warning)."""
        return self._is_main(3)

    def _is_main(self, level: int) -> bool:
        """Returns whether this process is rank 0; warns, so many frames above, where it is not admitted yet."""
        if self._session.membership is None and self._session.micro is None:
            warnings.warn(
                "job.is_main is False in a process that is not admitted to the training yet: before the first batch, "
                "in all of them. Ask it inside the training loop or after it; for a writer, use job.on_main",
                stacklevel=level,
            )
        return self.rank == 0

    @property
    def step(self) -> int:
        """Optimizer steps done over the whole training, the one that has just been completed included."""
        return self._session.step

    @property
    def epoch(self) -> int:
        """The present epoch, from 0."""
        return self._session.position.epoch

    @property
    def step_in_epoch(self) -> int:
        """Optimizer steps done in the training loop that runs, the one that has just been completed included."""
        return self._session.position.step_in_epoch + self.sync_gradients

    @property
    def over(self) -> bool:
        """Whether the present `epochs` is over: stopped on all ranks, or its last epoch is done."""
        return self._session.over or is_over(self._session)

    @property
    def micro(self) -> Micro | None:
        """The micro-batch that runs; None outside the training loop."""
        return self._session.micro

    @property
    def generation(self) -> int:
        """Number of the generation, from 1; 0 before this process is admitted."""
        return self._session.membership.formation.generation if self._session.membership is not None else 0

    @property
    def plan(self) -> StepPlan:
        """How a full global batch is divided among the ranks now."""
        membership = self._session.need_membership("job.plan")
        session = self._session
        batch, shares = session.global_batch_size, session.shares
        most, statistics = shares.max_micro_batch, shares.normalizes is not None
        if session.virtual_ranks:
            number = session.virtual_ranks
            return plan_virtual(batch, most, number, membership.world_size, batch_statistics=statistics)
        over = None if session.shards is None else session.shards.size
        return plan_step(batch, most, membership.world_size, batch_statistics=statistics, sharded_over=over)

    @property
    def global_batch_size(self) -> int:
        """Samples of the present optimizer step, over all ranks, if the epoch has as many."""
        return self._session.global_batch_size

    @property
    def lr_factor(self) -> float:
        """What learning rates are multiplied by in the present step: the mean over all param groups; 1 where the global
        batch is fixed.
        """
        return mean_factor(self._session)

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples, the same on all ranks; None where it is not measured (yet). A step of so
        many samples is as much signal as noise.
        """
        noise = self._session.noise
        return None if noise is None else noise.averages.noise_scale()

    @property
    def gain(self) -> float:
        """How many steps of the first global batch one step is worth now; 1 where the global batch is fixed."""
        return gain_now(self._session)

    @property
    def statistical_epoch(self) -> float:
        """How many epochs of the first global batch the steps of this `epochs` are worth so far; 0 where the global
        batch is fixed.
        """
        return phase_epochs(self._session)

    @property
    def sync_gradients(self) -> bool:
        """Whether this micro-batch has completed the global batch: gradients are final, and optimizers act."""
        return self._session.sync_gradients

    @property
    def samples(self) -> int:
        """Samples of this micro-batch that count: 0 in a rehearsal, without a share, and outside the loop."""
        return self._session.micro.samples if self._session.micro is not None else 0

    @property
    def loss(self) -> float:
        """Loss of the last completed step: the weighted mean over all ranks; NaN before the first."""
        return self._session.loss

    @property
    def state(self) -> dict[str, Any]:
        """A dict of JSON values of the script's own, which joiners receive too."""
        return self._session.state.user
