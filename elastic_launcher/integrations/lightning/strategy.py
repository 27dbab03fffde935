"""The strategy with which Lightning's Trainer trains an elastic job."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch.optim import Optimizer

from elastic_launcher.integrations.jobs import refuse_deterministic
from elastic_launcher.integrations.lightning.checks import check, read_training
from elastic_launcher.integrations.lightning.evaluation import Evaluation
from elastic_launcher.integrations.lightning.rank_zero import become_rank_zero, choose_versions, show_progress
from elastic_launcher.integrations.lightning.ranks import Ranks, broadcasted, checked_text, reduced
from elastic_launcher.integrations.lightning.training import Training
from elastic_launcher.torch import Job


class ElasticStrategy(Ranks, SingleDeviceStrategy):
    """Trains on all ranks of an elastic job: `Trainer(strategy=ElasticStrategy(job))`.

    To Lightning each process is alone, and one batch is one optimizer step of the job, whatever the number of ranks.

    Args:
        job: What `elastic_launcher.torch.init` has returned.
        weight: Returns what the loss of a batch is a mean over, its number of tokens say; its samples if None.
        share_validation: Whether ranks share the batches of validation and test. Without it each rank evaluates all of
            them: for modules that collect outputs in lists of their own.
        **options: Of Lightning's strategies: ``checkpoint_io``, ``precision_plugin``.
    """

    strategy_name = "elastic"

    def __init__(
        self,
        job: Job,
        *,
        weight: Callable[[Any], float] | None = None,
        share_validation: bool = True,
        **options: Any,
    ) -> None:
        refuse_deterministic(job, "Lightning")
        super().__init__(device=job.device, **options)
        self.job = job
        self.local_rank = job.local_rank
        self._weight = weight
        self._share = share_validation
        self._training: Training | None = None
        self._evaluations: dict[int, Evaluation] = {}  # by the loop
        self._trainer: Any = None
        self._sigterm: Any = None
        self._prepared: list[Any] = []  # modules and the scaler, which a second fit has too
        self._shows_progress = False
        self._restored: dict[str, Any] | None = None  # loops of the checkpoint with which the next fit starts
        self.show_rank()

    def show_rank(self) -> None:
        """Has Lightning write files on rank 0 alone; where ranks have met, another process may have become it."""
        before, rank_zero_only.rank = rank_zero_only.rank, self.global_rank  # type: ignore[attr-defined]
        if self.is_global_zero and before and self._trainer is not None:
            become_rank_zero(self._trainer, self.job.step)

    def between_steps(self, in_epoch: bool = False) -> None:
        """Shows the rank, and the progress bar where that is 0, before an epoch or a step in it."""
        self.show_rank()
        if self.is_global_zero and not self._shows_progress:
            self._shows_progress = True
            show_progress(self._trainer, in_epoch)

    def leave(self) -> None:
        """Notes that this process leaves the job: it writes no files on its way out, and waits for nobody."""
        self.left = True

    def setup_environment(self) -> None:
        """Has loggers choose their folder, and the processes of a machine prepare data one after the other."""
        super().setup_environment()
        assert self.lightning_module is not None
        trainer: Any = self.lightning_module.trainer
        choose_versions(trainer)
        connector = trainer._data_connector
        connector.prepare_data = partial(self._prepare_data, type(connector).prepare_data, connector)

    def _prepare_data(self, prepare: Callable[[Any], None], connector: Any) -> None:
        """Runs `prepare_data` in this process too: there is no group in which it could wait for local rank 0."""
        self.local_rank = 0  # the only one on which Lightning runs it
        try:
            with self.job.first_on_node():
                prepare(connector)
        finally:
            self.local_rank = self.job.local_rank

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Saves a checkpoint of Lightning on rank 0, or on the next one to be it if that is lost meanwhile."""
        save = partial(super().save_checkpoint, checkpoint, filepath, storage_options=storage_options)
        self.job._write_on_main(f"saving the checkpoint {filepath}", save, 5)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Removes a checkpoint of Lightning as `save_checkpoint` saves it."""
        self.job._write_on_main(f"removing the checkpoint {filepath}", partial(super().remove_checkpoint, filepath), 5)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Loads a checkpoint of Lightning, on each rank; the job starts where that was."""
        assert self.lightning_module is not None
        checkpoint = super().load_checkpoint(*args, **kwargs)
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            self._restored = checkpoint.get("loops", {}).get("fit_loop")
        return checkpoint

    def setup(self, trainer: Any) -> None:
        """Moves the module to the device, makes its optimizers, and prepares all of them for the job.

        Raises:
            RuntimeError: For another `fit` after one that has ended the job.
            TypeError: For what an elastic job can't do, as ValueError.
        """
        self._trainer = trainer
        fits = trainer.state.fn == TrainerFn.FITTING
        if fits:
            check(trainer)
            if self._training is not None and self._training.stopped:
                raise RuntimeError(
                    "the last fit has ended before max_epochs (by max_steps, EarlyStopping or trainer.should_stop), "
                    "which ends the job on all ranks: no other fit can follow it. Bound it by max_epochs alone"
                )
            self._training = Training(trainer, self.job, self._weight, restored=self._restored)
            self._restored = None
        super().setup(trainer)
        self.precision_plugin.clip_grad_by_value = self._clip_by_value  # type: ignore[method-assign]
        self._sigterm = signal.getsignal(signal.SIGTERM)
        if fits and self._training is not None:
            assert self.lightning_module is not None
            schedulers = [config.scheduler for config in self.lr_scheduler_configs]
            scaler = getattr(self.precision_plugin, "scaler", None)
            lasting = [one for one in (self.lightning_module, scaler) if one is not None and one not in self._prepared]
            self._prepared += lasting
            self.job.prepare(*lasting, *self.optimizers, *schedulers)
            self._training.prepared()
        self._evaluation(trainer).begin()

    def _clip_by_value(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clips the gradient of the global batch; before that is complete there is none, which torch would refuse."""
        if self.job.sync_gradients:
            type(self.precision_plugin).clip_grad_by_value(self.precision_plugin, optimizer, clip_val)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Returns the steps of the job in the place of the training loader."""
        trainer = self._trainer
        if trainer.predicting or (not trainer.training and not self._share):
            return dataloader
        if not trainer.training:
            return self._evaluation(trainer).share(dataloader)
        assert self._training is not None
        data = read_training(dataloader, self.job.global_batch_size)
        return self._training.steps(self.job.dataloader(data.dataset, shuffle=data.shuffle, **data.options))

    def _evaluation(self, trainer: Any) -> Evaluation:
        if trainer.state.fn == TrainerFn.FITTING:
            loop = trainer.fit_loop.epoch_loop.val_loop
        else:
            loop = trainer.validate_loop if trainer.state.fn == TrainerFn.VALIDATING else trainer.test_loop
        if id(loop) not in self._evaluations:
            self._evaluations[id(loop)] = Evaluation(loop, self.job)
        return self._evaluations[id(loop)]

    def _restore_sigterm(self) -> None:
        """Has SIGTERM mean what it meant before: Lightning's handler would end the work of this process alone."""
        signal.signal(signal.SIGTERM, self._sigterm)

    on_train_start = on_validation_start = on_test_start = on_predict_start = _restore_sigterm

    def training_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """Runs the module's `training_step` on a micro-batch, without automatic optimization on each of a step's."""
        assert self._training is not None
        return self._training.training_step(super().training_step, *args, **kwargs)

    def backward(
        self, closure_loss: torch.Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Adds the gradient of a micro-batch.

        Raises:
            TypeError: For other arguments of `manual_backward` than ``retain_graph``.
        """
        assert self._training is not None and self.lightning_module is not None
        if args or kwargs.keys() - {"retain_graph"}:
            raise TypeError("manual_backward takes a loss and retain_graph= in an elastic job, nothing else")
        self.pre_backward(closure_loss)
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        if self._training.backward(loss, **kwargs):  # hooks see the gradient of the global batch, once
            self.precision_plugin.post_backward(loss, self.lightning_module)
            self.post_backward(loss)
        return loss.detach()

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Steps an optimizer with the gradient of the global batch."""
        training, precision, module = self._training, self.precision_plugin, self.lightning_module
        assert training is not None and module is not None
        result = training.whole(closure) if training.automatic else closure()
        if self.job.sync_gradients and getattr(precision, "scaler", None) is not None:
            precision.optimizer_step(optimizer, model=module, closure=lambda: result, **kwargs)
        elif self.job.sync_gradients:
            precision._after_closure(module, optimizer)
            optimizer.step(**kwargs)
        training.stepped()
        if training.automatic:
            training.after_step()
        return result

    # -- what Lightning asks of several processes

    @property
    def _talks(self) -> bool:
        """Whether the ranks can bring something together now: not before this process is admitted."""
        return self.job.rank is not None and not self.left and not (self._training is not None and self._training.over)

    def _refuse_in_step(self, what: str) -> None:
        if self._training is not None and self._training.in_step:
            raise RuntimeError(
                f"{what} in a training step: ranks have different numbers of micro-batches in it. Log values with "
                "self.log, which brings them together; or call it where a step is done, in on_train_batch_end say"
            )

    def alike(self, fx: str, name: str, value: torch.Tensor) -> torch.Tensor:
        """Returns a value that a module logs at an epoch's end, the same on all ranks.

        Raises:
            RuntimeError: If it differs between ranks: it was computed from a part of the samples.
        """
        if not self._talks or self._trainer.sanity_checking:
            return value
        found = self.job.reduce({"most": value, "least": -value}, op="max")
        self.show_rank()
        most, least = float(found["most"]), -float(found["least"])
        if math.isfinite(most - least) and not math.isclose(most, least, rel_tol=1e-5, abs_tol=1e-9):
            raise RuntimeError(
                f"self.log({name!r}) in {fx} gets {least:g} on one rank and {most:g} on another: each has seen a part "
                "of the samples. Log it in the step, or use a metric of torchmetrics; for a validation you may pass "
                "share_validation=False to ElasticStrategy, so that each rank evaluates all batches. What is no "
                "result of samples, a time say, can be logged with rank_zero_only=True"
            )
        return torch.full_like(value, most)

    def reduce(self, tensor: Any, *args: Any, reduce_op: Any = "mean", **kwargs: Any) -> Any:
        """Returns the mean or the sum of a value over all ranks.

        Whole numbers are returned as they are: Lightning asks so for the lengths of loaders, at other times on a rank
        that joins.
        """
        self._refuse_in_step("strategy.reduce")
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not self._talks:
            return tensor
        found = reduced(self.job, tensor, reduce_op)
        self.show_rank()
        return found

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Returns whether all ranks, or any, decide for something."""
        self._refuse_in_step("a decision of all ranks")
        if not self._talks:
            return decision
        found = bool(self.job.reduce(float(decision), op="min" if all else "max"))
        self.show_rank()
        return found

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Returns rank 0's number; texts and paths are the same on all ranks.

        Raises:
            TypeError: For anything else.
        """
        if not isinstance(obj, (bool, int, float)):
            return checked_text(obj)
        self._refuse_in_step("strategy.broadcast")
        return broadcasted(self.job, obj, src) if self._talks else obj

    def barrier(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Waits for all ranks where one has written a file that others may read, and where a script asks for it.

        Lightning has more of them, by name, which a rank that joins meets when the others don't.
        """
        if name in (None, "Trainer.save_checkpoint") and self._talks:
            self._refuse_in_step("a barrier, or save_checkpoint,")
            self.job.reduce(0.0)
            self.show_rank()

    def on_train_end(self) -> None:
        """Ends the training on all ranks."""
        if self._training is not None:
            self._training.finish()
