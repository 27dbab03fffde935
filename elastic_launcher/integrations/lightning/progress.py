"""Lightning's counters, set by where the job is: a process that joins or resumes has trained none of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_launcher.torch import Job


class Progress:
    """The counters of Lightning's training loops in one call of `fit`.

    Args:
        trainer: Lightning's Trainer.
        job: The job.

    Attributes:
        first_epoch: The number of this call's first epoch.
    """

    def __init__(self, trainer: Any, job: Job) -> None:
        self.first_epoch = 0
        self._first_step = 0
        self._trainer = trainer
        self._job = job

    def state_dict(self) -> dict[str, int]:
        """Returns how far Lightning's counters are ahead of the job's."""
        return {"epoch": self.first_epoch, "step": self._first_step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Takes what `state_dict` has returned."""
        self.first_epoch, self._first_step = state["epoch"], state["step"]

    def begin(self, restored: Mapping[str, Any] | None, steps: int) -> None:
        """Begins `fit`: takes in what Lightning has counted before, in another `fit` or in a checkpoint of its own.

        Args:
            restored: What such a checkpoint says of Lightning's loops: the job starts where that was.
            steps: Steps of an epoch.
        """
        fit = self._trainer.fit_loop
        done = fit.epoch_loop.batch_progress.total.processed
        if self._trainer.lightning_module.automatic_optimization:
            done = fit.epoch_loop.global_step  # fewer than batches, where it has accumulated in another job
        if restored is None:
            self.first_epoch, self._first_step = fit.epoch_progress.current.processed, done - self._job.step
            return
        epochs, batches = restored["epoch_progress"]["current"], restored["epoch_loop.batch_progress"]
        epoch, step = epochs["processed"], 0
        if epochs["ready"] > epoch:  # it was saved in an epoch
            epoch, step = (epoch + 1, 0) if batches["is_last_batch"] else (epoch, batches["current"]["processed"])
        self._job.start_at(epoch, step)
        self._first_step = done - epoch * steps - step

    def begin_epoch(self) -> None:
        """Counts the epochs that are done."""
        fit = self._trainer.fit_loop
        for loop in (fit, fit.epoch_loop, fit.epoch_loop.val_loop, *_optimizations(fit)):
            if hasattr(loop, "reset_restart_stage"):  # from 2.5 on
                loop.reset_restart_stage()
            for flag in ("_restarting", "_loaded_from_state_dict", "_resuming_from_checkpoint"):
                if hasattr(loop, flag):
                    setattr(loop, flag, False)
        _count(fit.epoch_progress.current, self.first_epoch + self._job.epoch)
        _count(fit.epoch_progress.total, self.first_epoch + self._job.epoch)

    def begin_step(self) -> None:
        """Counts the steps that are done, as the next one begins."""
        epoch, ahead = self._trainer.fit_loop.epoch_loop, int(self._job.sync_gradients)  # a joiner's gradient is there
        in_epoch, in_all = self._job.step_in_epoch - ahead, self._first_step + self._job.step - ahead
        batches, steps = epoch.batch_progress, epoch.automatic_optimization.optim_progress.optimizer
        self._trainer.fit_loop._data_fetcher.fetched = in_epoch
        _count(batches.current, in_epoch)
        _count(batches.total, in_all)
        epoch._batches_that_stepped = in_all
        if self._trainer.lightning_module.automatic_optimization:
            for progress in (steps.step, steps.zero_grad):
                _count(progress.current, in_epoch)
                _count(progress.total, in_all)

    def end_step(self) -> None:
        """Counts the gradients of a step as cleared once, as in one process, not in each micro-batch."""
        cleared = self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.zero_grad
        _count(cleared.current, self._job.step_in_epoch)
        _count(cleared.total, self._first_step + self._job.step)


def _optimizations(fit: Any) -> tuple[Any, Any]:
    return fit.epoch_loop.automatic_optimization, fit.epoch_loop.manual_optimization


def _count(progress: Any, done: int) -> None:
    for name in vars(progress):
        setattr(progress, name, done)
