"""Lightning's counters, set by where the job is: a process that joins or resumes has trained none of its steps."""

from __future__ import annotations

from typing import Any

from elastic_launcher.torch import Job


class Progress:
    """The counters of Lightning's training loops in one call of `fit`.

    Args:
        trainer: Lightning's Trainer.
        job: The job.
    """

    def __init__(self, trainer: Any, job: Job) -> None:
        self._trainer = trainer
        self._job = job

    def begin_epoch(self) -> None:
        """Counts the epochs that are done."""
        fit = self._trainer.fit_loop
        for loop in (fit, fit.epoch_loop, fit.epoch_loop.val_loop, *_optimizations(fit)):
            for flag in ("_restarting", "_loaded_from_state_dict", "_resuming_from_checkpoint"):
                if hasattr(loop, flag):
                    setattr(loop, flag, False)
        _count(fit.epoch_progress.current, self._job.epoch)
        _count(fit.epoch_progress.total, self._job.epoch)

    def begin_step(self) -> None:
        """Counts the steps that are done, as the next one begins."""
        epoch, ahead = self._trainer.fit_loop.epoch_loop, int(self._job.sync_gradients)  # a joiner's gradient is there
        in_epoch, in_all = self._job.step_in_epoch - ahead, self._job.step - ahead
        batches, steps = epoch.batch_progress, epoch.automatic_optimization.optim_progress.optimizer
        self._trainer.fit_loop._data_fetcher.fetched = in_epoch
        _count(batches.current, in_epoch)
        _count(batches.total, in_all)
        epoch._batches_that_stepped = in_all
        if self._trainer.lightning_module.automatic_optimization:
            for progress in (steps.step, steps.zero_grad):
                _count(progress.current, in_epoch)
                _count(progress.total, in_all)


def _optimizations(fit: Any) -> tuple[Any, Any]:
    return fit.epoch_loop.automatic_optimization, fit.epoch_loop.manual_optimization


def _count(progress: Any, done: int) -> None:
    for name in vars(progress):
        setattr(progress, name, done)
