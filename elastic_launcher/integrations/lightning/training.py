"""One call of `fit`: Lightning's loops on top, the job's steps below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from lightning.pytorch.trainer import call

from elastic_launcher.integrations.lightning.progress import Progress
from elastic_launcher.integrations.lightning.state import TrainerState
from elastic_launcher.integrations.lightning.step_logs import StepLogs, StepResults
from elastic_launcher.integrations.lightning.stream import ENDLESS, Steps, Stream
from elastic_launcher.torch import Job

_numbers: Iterator[int] = count()  # of calls of fit: the same on all ranks


class Training:
    """Trains a module in one call of `fit`.

    Args:
        trainer: Lightning's Trainer.
        job: The job.
        weight: Returns what the loss of a micro-batch is a mean over; its samples if None.
    """

    def __init__(self, trainer: Any, job: Job, weight: Callable[[Any], float] | None) -> None:
        self.automatic: bool = trainer.lightning_module.automatic_optimization
        self._trainer = trainer
        self._job = job
        self._weight = weight
        self._stream: Stream | None = None
        self._progress = Progress(trainer, job)
        self._results = StepResults()
        self._logs = StepLogs(job, tracked=self.automatic)
        self._batch: Any = None
        self._given = False  # whether the batch is what Lightning was given for this step
        trainer.fit_loop.epoch_loop._results = self._results
        number = next(_numbers)
        job.register(f"lightning.fit{number}.logs", self._logs)
        job.register(f"lightning.fit{number}", TrainerState(trainer, self._results))

    def steps(self, loader: Any) -> Steps:
        """Returns what Lightning is to take for the training loader."""
        self._loader = loader
        return Steps(loader.dataset, loader.steps_per_epoch, self.begin_epoch, self.begin_step)

    def begin_epoch(self) -> None:
        """Begins an epoch.

        Raises:
            StopIteration: Where the training is over.
        """
        if self._stream is None:
            epochs = self._trainer.fit_loop.max_epochs
            self._stream = Stream(
                self._job, self._loader, ENDLESS if epochs < 0 else epochs, self._work_on_spare, self._logs.before_step
            )
        if not self._stream.begin_epoch():
            self._stop()
        self._trainer.strategy.show_rank()
        self._progress.begin_epoch()

    def _stop(self) -> None:
        self._trainer.should_stop = True
        raise StopIteration

    def begin_step(self) -> Any:
        """Begins a step; returns the first micro-batch of this rank.

        Raises:
            StopIteration: Where the job is over.
        """
        assert self._stream is not None
        if not self._stream.begin_step():
            self._stop()
        self._trainer.strategy.show_rank()
        self._progress.begin_step()
        self._given = True
        return self._stream.batch if self._stream.batch is not None else self._batch

    # -- one step

    def whole(self, closure: Callable[[], Any]) -> Any:
        """Runs Lightning's closure for each micro-batch, up to the step's gradient."""
        assert self._stream is not None
        while self._stream.batch is not None:
            result = closure()
            if self._job.sync_gradients:
                return result
            self._next()
        return self._without_work(closure)

    def _without_work(self, closure: Callable[[], Any]) -> Any:
        """Runs Lightning's closure where the gradient is there already, which it must leave as it is."""
        optimizers = self._trainer.optimizers
        for optimizer in optimizers:
            optimizer.zero_grad = lambda *_, **__: None
        try:
            return closure()
        finally:
            for optimizer in optimizers:
                del optimizer.zero_grad

    def _next(self) -> None:
        assert self._stream is not None
        if not self._stream.next():
            self._stop()
        self._given = False

    def training_step(self, step: Callable[..., Any], batch: Any, *arguments: Any) -> Any:
        """Runs `training_step` for the micro-batch that is to be worked on."""
        assert self._stream is not None
        if self._stream.batch is None:
            return torch.tensor(self._job.loss)
        self._batch = batch if self._given else self._to_device(self._stream.batch)
        self._results.logs = self._logs
        self._logs.begin_micro_batch()
        output = step(self._batch, *arguments)
        if output is None:
            self._job.backward(None, weight=0)
        return output

    def _to_device(self, batch: Any) -> Any:
        trainer = self._trainer
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradient of a micro-batch."""
        assert self._stream is not None
        if self._stream.batch is None:
            return
        self._job.backward(loss, weight=None if self._weight is None else self._weight(self._batch))

    def end_step(self) -> None:
        """Logs what came of the step."""
        self._results.end_step(self._logs)
        assert self._stream is not None
        self._stream.end_step()

    def _work_on_spare(self, batch: Any) -> None:
        trainer = self._trainer
        self._given = False
        output = call._call_strategy_hook(trainer, "training_step", batch, self._job.step_in_epoch)
        if self.automatic and output is not None:
            loss = output["loss"] if isinstance(output, dict) else output
            call._call_strategy_hook(trainer, "backward", loss, trainer.optimizers[0])

    def finish(self) -> None:
        """Ends the training of this `fit` on all ranks."""
        if self._stream is not None:
            fit = self._trainer.fit_loop
            self._stream.finish(stop=not 0 <= fit.max_epochs <= fit.epoch_progress.current.completed)
