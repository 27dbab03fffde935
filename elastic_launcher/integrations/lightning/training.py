"""One call of `fit`: Lightning's loops on top, the job's steps below."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

import torch
from lightning.pytorch.loops.optimization.automatic import Closure
from lightning.pytorch.trainer import call

from elastic_launcher.integrations.lightning.metrics import TrainingMetrics
from elastic_launcher.integrations.lightning.progress import Progress
from elastic_launcher.integrations.lightning.state import TrainerState
from elastic_launcher.integrations.lightning.step_logs import StepLogs, StepResults
from elastic_launcher.integrations.lightning.stream import ENDLESS, Steps, Stream
from elastic_launcher.torch import Job

SEVERAL = (
    "there are several training loaders, or one in a list or dict; give one, over a StackDataset or a ConcatDataset"
)
_numbers: Iterator[int] = count()  # of calls of fit: the same on all ranks


class Training:
    """Trains a module in one call of `fit`.

    Args:
        trainer: Lightning's Trainer.
        job: The job.
        weight: Returns what the loss of a micro-batch is a mean over; its samples if None.
        restored: What a checkpoint of Lightning's own says of its loops, where it has loaded one.

    Attributes:
        automatic: Whether Lightning steps the optimizer.
        stopped: Whether this call of `fit` has ended the job, with epochs left.
    """

    def __init__(
        self,
        trainer: Any,
        job: Job,
        weight: Callable[[Any], float] | None,
        *,
        restored: Mapping[str, Any] | None,
    ) -> None:
        self.automatic: bool = trainer.lightning_module.automatic_optimization
        self.stopped = False
        self._trainer = trainer
        self._job = job
        self._weight = weight
        self._restored = restored
        self._state: TrainerState | None = None
        self._stream: Stream | None = None
        self._loader: Any = None
        self._progress = Progress(trainer, job)
        self._results = StepResults(trainer.strategy.alike)
        self._logs = StepLogs(job, tracked=self.automatic)
        self._metrics = TrainingMetrics(trainer.lightning_module)
        self._batch: Any = None
        self._raw: Any = None  # the last batch of which nothing was kept
        self._given = False  # whether the batch is what Lightning was given for this step
        self._spare = False  # whether the present one is of those
        self._stepped = False  # whether an optimizer was called in this micro-batch, with manual optimization
        self._without_loss = False  # whether training_step returned None for the present one
        self._steps = 0  # of optimizers in the step with which this process joined
        trainer.fit_loop.epoch_loop._results = self._results

    def prepared(self) -> None:
        """Lets what Lightning remembers travel, after module and optimizers."""
        job, name = self._job, f"lightning.fit{next(_numbers)}"
        if self._metrics.metrics:
            job.track(lambda: self._metrics.tracked("sum"), op="sum")
            job.track(lambda: self._metrics.tracked("max"), op="max")
        job.register(f"{name}.progress", self._progress)
        job.register(f"{name}.logs", self._logs)
        job.register(f"{name}.metrics", self._metrics)
        self._state = TrainerState(self._trainer, job, self._results)
        job.register(name, self._state)

    def steps(self, loader: Any) -> Steps:
        """Returns what Lightning is to take for the training loader.

        Raises:
            TypeError: If there are several.
        """
        if self._loader is not None:
            raise TypeError(SEVERAL)
        self._loader = loader
        return Steps(loader.dataset, loader.steps_per_epoch, self.begin_epoch, self.begin_step)

    def begin_epoch(self) -> None:
        """Begins an epoch.

        Raises:
            StopIteration: Where the training is over.
            TypeError: If there are several loaders.
        """
        if self._stream is None:
            self._stream = self._begin()
        if not self._stream.begin_epoch():
            self._stop()
        self._progress.begin_epoch()
        self._trainer.strategy.between_steps()

    def _begin(self) -> Stream:
        trainer = self._trainer
        if not isinstance(trainer.fit_loop._combined_loader.iterables, Steps):
            raise TypeError(SEVERAL)
        self._progress.begin(self._restored, self._loader.steps_per_epoch)
        epochs = trainer.fit_loop.max_epochs
        left = ENDLESS if epochs < 0 else max(0, epochs - self._progress.first_epoch)
        return Stream(self._job, self._loader, left, self._work_on_spare, self._before_step, trainer.strategy.leave)

    @property
    def in_step(self) -> bool:
        """Whether a step runs."""
        return self._stream is not None and self._stream.in_step

    @property
    def over(self) -> bool:
        """Whether the job has ended before Lightning did."""
        return self._stream is not None and self._stream.over

    def _before_step(self) -> None:
        self._logs.before_step()
        self._metrics.before_step()

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
        self._progress.begin_step()
        self._results.samples = self._samples()
        self._trainer.strategy.between_steps(in_epoch=True)
        self._given = True
        return self._raw if self._joined else self._stream.batch

    def _samples(self) -> int:
        """Returns how many samples the step that begins has over all ranks."""
        job = self._job
        return self._loader.samples(job.step_in_epoch - job.sync_gradients)  # the gradient of a joiner is there

    # -- one step

    def whole(self, closure: Callable[[], Any]) -> Any:
        """Runs Lightning's closure for each micro-batch, up to the step's gradient."""
        if self._joined:
            result = self._without_work(closure)
        else:
            result = self._up_to_gradient(partial(self._once, closure))
        self._end_step()
        whole = torch.tensor(self._job.loss) if result is None else torch.full_like(result, self._job.loss)
        if isinstance(closure, Closure) and closure._result is not None:
            closure._result.loss = whole  # hooks see the loss of the step
        return whole

    def _once(self, closure: Callable[[], Any]) -> Any:
        result = closure()
        if self._without_loss:
            self._job.backward(None, weight=0)  # after Lightning has cleared the gradients
        return result

    def _manual(self, step: Callable[..., Any], batch: Any, *arguments: Any) -> Any:
        """Runs `training_step` for each micro-batch, with the optimizers' steps in it; returns what the last gave."""
        progress = self._trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress

        def once() -> Any:
            before = progress.state_dict()
            output = self._work(step, batch, *arguments)
            if not self._job.sync_gradients:
                progress.load_state_dict(before)  # its optimizers have not stepped
            return output

        output = None if self._joined else self._up_to_gradient(once)
        self._end_step()
        self.after_step()
        return output

    def _up_to_gradient(self, work: Callable[[], Any]) -> Any:
        assert self._stream is not None
        while True:
            with self._job.micro_batch():
                result = work()
            if self._job.sync_gradients:
                return result
            if not self._stream.next():
                self._stop()
            self._given = False

    @property
    def _joined(self) -> bool:
        """Whether this process has joined with the present step, whose gradient is there."""
        assert self._stream is not None
        return self._stream.batch is None

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

    def training_step(self, step: Callable[..., Any], batch: Any, *arguments: Any) -> Any:
        """Runs `training_step`: for one micro-batch, or with manual optimization for all of the step."""
        if self._spare:
            return self._work(step, batch, *arguments)
        if not self.automatic:
            return self._manual(step, batch, *arguments)
        return torch.tensor(self._job.loss) if self._joined else self._work(step, batch, *arguments)

    def _work(self, step: Callable[..., Any], batch: Any, *arguments: Any) -> Any:
        assert self._stream is not None
        self._batch = batch if self._given else self._to_device(self._stream.batch)
        self._results.logs = self._logs
        self._logs.begin_micro_batch()
        self._metrics.note()
        self._stepped = False
        output = step(self._batch, *arguments)
        self._metrics.check()
        self._without_loss = output is None and self.automatic
        return output

    def _to_device(self, batch: Any) -> Any:
        trainer = self._trainer
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)

    def backward(self, loss: torch.Tensor, *, retain_graph: bool = False) -> bool:
        """Adds the gradient of a micro-batch; returns whether hooks are to see the step's gradient now."""
        if self._stream is not None and self._joined:
            return True
        if self._stepped:
            raise RuntimeError(
                "training_step calls manual_backward after an optimizer has stepped: this loss would be made with "
                "weights that only the last micro-batch of a step has. Make all losses and their backward passes "
                "first, and step all optimizers then"
            )
        weight = None if self._weight is None else self._weight(self._batch)
        self._job.backward(loss, weight=weight, optimizer=self._only(), retain_graph=retain_graph)
        if not self.automatic:
            self._metrics.note_backward()
        elif self._job.sync_gradients:
            self._results.logs = None
        return self._job.sync_gradients and not (self._spare and self.automatic)  # there they follow once more

    def _only(self) -> Any:
        """Returns the optimizer whose parameters alone are trained now, where there are several of them."""
        if len(self._trainer.optimizers) == 1:
            return None
        trained = [
            optimizer
            for optimizer in self._trainer.optimizers
            if any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])
        ]
        return trained[0] if len(trained) == 1 else None

    def stepped(self) -> None:
        """Notes that an optimizer was called."""
        self._stepped = not self.automatic
        self._steps += self._job.sync_gradients

    def _end_step(self) -> None:
        """Logs what came of the step."""
        self._results.end_step(self._logs, self._metrics)
        assert self._stream is not None
        self._stream.end_step()
        if self.automatic:
            self._progress.end_step()

    def after_step(self) -> None:
        """Lets a rank that has to take the last step of an epoch over still find the metrics of that epoch.

        If rank 0 is lost here, another one writes them.
        """
        if self._job.step_in_epoch >= self._trainer.num_training_batches:
            self._job.reduce(0.0)
            self._trainer.strategy.show_rank()

    def _work_on_spare(self, batch: Any) -> None:
        """Works on a micro-batch of which nothing is kept: in the rehearsal, or as this process joins."""
        trainer, epoch = self._trainer, self._trainer.fit_loop.epoch_loop
        self._given, self._spare, self._steps, self._raw = False, True, 0, batch
        if self._job.rank is not None:
            self._progress.begin_epoch()
            self._progress.begin_step()  # what training_step decides by the step, it decides as on the other ranks
        try:
            with self._job.micro_batch():
                arguments = epoch._build_kwargs(OrderedDict(), batch, self._job.step_in_epoch)
                output = call._call_strategy_hook(trainer, "training_step", *arguments.values())
                loss = output["loss"] if isinstance(output, Mapping) else output
                if self._without_loss:
                    self._job.backward(None, weight=0)
                elif self.automatic:
                    call._call_strategy_hook(trainer, "backward", loss, trainer.optimizers[0])
        finally:
            self._spare = False
        if self._job.sync_gradients and not self.automatic:
            progress = epoch.manual_optimization.optim_step_progress
            for counted in (progress.total, progress.current):
                counted.increment_by(self._steps)

    def finish(self) -> None:
        """Ends the training of this `fit` on all ranks."""
        if self._state is not None:
            self._state.ended = True
        if self._stream is not None:
            fit = self._trainer.fit_loop
            ended = 0 <= fit.max_epochs <= fit.epoch_progress.current.completed
            self.stopped = not ended and not self._job.over
            self._stream.finish(stop=self.stopped)
            self._logs.close()
            self._metrics.close()
