"""The Accelerator of a rank of a job."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import PartialState
from torch.optim.lr_scheduler import LRScheduler

from elastic_launcher.integrations.accelerate.checks import (
    check_accumulation,
    check_made,
    check_options,
    refuse_own_scheduler,
    warn_of_unprepared_schedulers,
)
from elastic_launcher.integrations.accelerate.loader import PreparedLoader
from elastic_launcher.integrations.accelerate.reports import Reports
from elastic_launcher.integrations.jobs import if_admitted, refuse_deterministic, refuse_sharded
from elastic_launcher.torch import Job

NOT_ADMITTED = 1  # the index of a process that has no rank yet, which is not that of the main process


class ElasticAccelerator(Reports, Accelerator):  # type: ignore[misc] # accelerate is not followed
    """An Accelerator whose global batch is that of the job, at any number of ranks.

    Args:
        job: What `elastic_launcher.integrations.accelerate.init` has returned.
        **options: Of the Accelerator.

    Attributes:
        job: The job.
        evaluations: The loops over all of a data set that have yielded a batch since the last one that trains.

    Raises:
        ValueError: For options that an elastic job can't follow; the message names them.
        RuntimeError: If Accelerate knows of other processes.
    """

    flag_tensor: Any  # of the Accelerator

    def __init__(self, job: Job, **options: Any) -> None:
        check_options(options)
        refuse_deterministic(job, "Accelerate")
        self.job = job
        self.evaluations: set[object] = set()
        self._trained: list[torch.nn.Module] = []
        self._given: list[Any] = []
        self._saves_alone = False
        super().__init__(**{"cpu": job.device.type == "cpu", **options})
        check_made(self, job)
        for state in self._states():
            state.device = job.device
        self.show_rank()

    def _states(self) -> tuple[Any, Any]:
        """Returns what all of Accelerate's own objects know of this process."""
        return PartialState(), self.state

    def show_rank(self) -> None:
        """Has Accelerate's loggers and files know which rank this process is now."""
        rank = self.job.rank
        for state in self._states():
            state.process_index = state.local_process_index = NOT_ADMITTED if rank is None else rank

    # -- what a script prepares

    def _give(self, thing: Any) -> None:
        """Prepares something for the job, once."""
        if not any(thing is one for one in self._given):
            self._given.append(thing)
            self.job.prepare(thing)

    def prepare(self, *things: Any, **options: Any) -> Any:
        """Prepares models, optimizers, schedulers and loaders.

        Raises:
            TypeError: For a scheduler that is none of torch's.
        """
        for thing in things:
            refuse_own_scheduler(thing)
        return super().prepare(*things, **options)

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """Prepares a model for mixed precision, and for the job unless it is only evaluated.

        Raises:
            TypeError: For a sharded model.
        """
        refuse_sharded(model, "Accelerate")
        prepared: torch.nn.Module = super().prepare_model(model, device_placement, evaluation_mode)
        if not evaluation_mode and not any(prepared is one for one in self._trained):
            self._give(model)
            self._trained.append(prepared)
        return prepared

    def prepare_optimizer(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        """Prepares an optimizer: it acts once per global batch."""
        self._give(optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer)
        return super().prepare_optimizer(optimizer, *args, **options)

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Prepares a scheduler: in a training loop it acts once per global batch, however often a script calls it."""
        self._give(scheduler)
        if not any(scheduler is one for one in self._schedulers):
            self._schedulers.append(scheduler)
        return scheduler

    def prepare_data_loader(self, data_loader: Any, *args: Any, **options: Any) -> Any:
        """Prepares a DataLoader: it may train if its batches are the global batch."""
        return PreparedLoader(self, data_loader, super().prepare_data_loader(data_loader, *args, **options))

    def free_memory(self, *objects: Any) -> Any:
        """Lets another training follow, whose models alone say whether a loop trains.

        The job keeps what it has trained, and the memory of it: processes that join prepare that too.
        """
        self._trained.clear()
        return super().free_memory(*objects)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Lets objects travel to processes that join, and to checkpoints of the job and of `save_state`.

        A scheduler among them acts once per global batch, as a prepared one does.

        Raises:
            TypeError: If the state of one holds what can't travel.
            ValueError: If one has no state.
        """
        first = len(self._custom_objects)
        super().register_for_checkpointing(*objects)
        for number, one in enumerate(objects, first):
            if isinstance(one, LRScheduler):
                self._give(one)
            else:
                self.job.register(f"accelerate.{number}", one)

    # -- what a training loop calls

    @property
    def trains(self) -> bool:
        """Whether a loop that begins now is a training loop."""
        return torch.is_grad_enabled() and any(model.training for model in self._trained)

    def begin_training_loop(self) -> None:
        """Warns of what would act too often in the training loop that begins."""
        warn_of_unprepared_schedulers(self._optimizers, self._given)

    @contextlib.contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Runs a micro-batch: the job accumulates, and does a step again in smaller parts where memory runs out."""
        with self.job.micro_batch():
            yield

    @property
    def sync_gradients(self) -> bool:
        """Whether this micro-batch has completed the global batch; outside a training loop True, as in Accelerate."""
        return self.job.micro is None or self.job.sync_gradients

    @property
    def gradient_accumulation_steps(self) -> int:
        """The accumulation by Accelerate: 1, since the job does it."""
        return int(self.gradient_state.num_steps)

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        check_accumulation(steps)

    def backward(self, loss: torch.Tensor, *, optimizer: Any = None, **options: Any) -> None:
        """Adds this micro-batch's gradient to the global batch; see `Job.backward`.

        Args:
            loss: The mean over the micro-batch's samples, or tokens.
            optimizer: The one whose parameters get gradients; all by default.
            **options: Of `Job.backward`: ``weight`` is what the mean was taken over, if not samples: its number of
                tokens.

        Raises:
            RuntimeError: Outside a training loop.
        """
        if self.job.micro is None:
            raise RuntimeError(
                "accelerator.backward was called outside a training loop: loop over a prepared loader, with a prepared "
                "model in train mode; call model.train() before the loop"
            )
        if isinstance(optimizer, AcceleratedOptimizer):
            optimizer = optimizer.optimizer
        self.job.backward(loss, optimizer=optimizer, **options)
        self.gradient_state._set_sync_gradients(self.job.sync_gradients)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clips the gradient of the global batch, and returns its norm; before that is complete, 0."""
        if not self.sync_gradients:
            return torch.zeros((), device=self.job.device)
        return super().clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clips the gradient of the global batch; before that is complete, nothing."""
        if self.sync_gradients:
            super().clip_grad_value_(parameters, clip_value)

    def set_trigger(self) -> None:
        """Has `check_trigger` return True on all ranks."""
        if self.job.micro is None or not self.job.micro.rehearsal:
            super().set_trigger()

    def check_trigger(self) -> bool:
        """Returns whether a rank has called `set_trigger`, once the global batch is complete; all ranks call it."""
        if not self.sync_gradients:
            return False
        own = float(self.flag_tensor is not None and bool(self.flag_tensor))
        found = bool(self._largest(own))
        if found:
            self.flag_tensor = None
        return found

    # -- values of all ranks

    def gather(self, tensor: Any) -> Any:
        """Returns the tensors of an evaluation, which are those of all samples on each rank.

        Raises:
            RuntimeError: In a training loop, where they are this rank's own.
        """
        self._refuse_in_training("gather")
        return super().gather(tensor)

    def gather_for_metrics(self, input_data: Any, *args: Any, **options: Any) -> Any:
        """Returns the tensors or objects of an evaluation, as `gather` does; there are no samples to drop."""
        self._refuse_in_training("gather_for_metrics")
        return input_data

    def reduce(self, tensor: Any, *args: Any, **options: Any) -> Any:
        """Returns the tensor of an evaluation, as `gather` does."""
        self._refuse_in_training("reduce")
        return super().reduce(tensor, *args, **options)

    def _refuse_in_training(self, method: str) -> None:
        if self.job.micro is not None and not self.evaluations:
            raise RuntimeError(
                f"accelerator.{method} was called in a training loop, where ranks have different numbers of "
                "micro-batches: use job.loss for the loss of the global batch, accelerator.backward(loss, weight=...) "
                "for a mean over tokens, and job.reduce or job.gather where accelerator.sync_gradients"
            )

    # -- ranks that wait

    def wait_for_everyone(self) -> None:
        """Waits for the other ranks; not in a process that is not admitted, nor in the middle of a global batch."""
        if self.sync_gradients and not self._saves_alone:
            self._largest(0.0)

    def _largest(self, number: float) -> float:
        """Returns the largest number of all ranks; this rank's own where it has none to wait for yet."""
        return if_admitted(lambda: float(self.job.reduce(number, op="max")), number)

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Lets the processes of a machine in one after the other: the first one downloads, the others find it done."""
        with self.job.first_on_node():
            yield

    local_main_process_first = main_process_first

    # -- files

    def save_state(self, output_dir: str | None = None, *args: Any, **options: Any) -> Any:
        """Saves models, optimizers and schedulers in Accelerate's format, on rank 0; call it on all ranks."""
        save, number = partial(super().save_state, output_dir, *args, **options), self._next_number()

        def alone() -> Any:
            if number is not None:
                self.project_configuration.iteration = number
                # what a lost rank 0 has left of this very checkpoint
                shutil.rmtree(self._checkpoints / f"checkpoint_{number}", ignore_errors=True)
            self._saves_alone = True
            try:
                return save()
            finally:
                self._saves_alone = False

        return self._write("saving a state", alone)

    def _write(self, what: str, write: Callable[[], Any]) -> Any:
        """Has rank 0 write, or the next one to be it if that is lost meanwhile; all ranks call it."""

        def on_rank_0() -> Any:
            self.show_rank()
            return write()

        return self.job._write_on_main(what, on_rank_0, 5)

    @property
    def _checkpoints(self) -> Path:
        return Path(self.project_configuration.project_dir, "checkpoints")

    def _next_number(self) -> int | None:
        """Returns the number that Accelerate is to give its next checkpoint, the same on all ranks, if it numbers them.

        It follows those of all ranks that were rank 0.
        """
        project = self.project_configuration
        if not project.automatic_checkpoint_naming:
            return None
        names = [path.name for path in self._checkpoints.glob("checkpoint_*")]
        numbers = [int(found[1]) for name in names if (found := re.fullmatch(r"checkpoint_(\d+)", name))]
        number = max([project.iteration, *(number + 1 for number in numbers)])
        return int(self._largest(number)) if self.sync_gradients else number

    def save_model(self, *args: Any, **options: Any) -> None:
        """Saves a model, on rank 0; call it on all ranks."""
        self._write("saving a model", partial(super().save_model, *args, **options))

    def save(self, *args: Any, **options: Any) -> None:
        """Saves an object, on rank 0; call it on all ranks."""
        self._write("saving an object", partial(super().save, *args, **options))

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Is refused: the job knows its position.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            "accelerator.skip_first_batches: the job resumes where it was; for a checkpoint of your own, call "
            "job.start_at(epoch, step) before the training loop"
        )
