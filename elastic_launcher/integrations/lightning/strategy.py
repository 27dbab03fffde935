"""The strategy with which Lightning's Trainer trains an elastic job."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch.optim import Optimizer

from elastic_launcher.integrations.lightning.training import Training
from elastic_launcher.torch import Job
from elastic_launcher.torch.data.stock_loader import read_loader


class ElasticStrategy(SingleDeviceStrategy):
    """Trains on all ranks of an elastic job: `Trainer(strategy=ElasticStrategy(job))`.

    To Lightning each process is alone, and one batch is one optimizer step of the job, whatever the number of ranks.

    Args:
        job: What `elastic_launcher.torch.init` has returned.
        weight: Returns what the loss of a batch is a mean over, its number of tokens say; its samples if None.
        **options: Of Lightning's strategies: ``checkpoint_io``, ``precision_plugin``.
    """

    strategy_name = "elastic"

    def __init__(self, job: Job, *, weight: Callable[[Any], float] | None = None, **options: Any) -> None:
        accelerator = CUDAAccelerator() if job.device.type == "cuda" else CPUAccelerator()
        super().__init__(device=job.device, accelerator=accelerator, **options)
        self.job = job
        self.local_rank = job.local_rank
        self._weight = weight
        self._training: Training | None = None
        self._trainer: Any = None
        self._sigterm: Any = None
        self.show_rank()

    @property
    def global_rank(self) -> int:  # type: ignore[override]
        """The rank in the job; 1 before this process is admitted, since none is rank 0 then."""
        rank = self.job.rank
        return 1 if rank is None else rank

    @global_rank.setter
    def global_rank(self, rank: int) -> None:
        pass

    @property
    def is_global_zero(self) -> bool:
        """Whether this process is rank 0 now."""
        return self.global_rank == 0

    def show_rank(self) -> None:
        """Has Lightning write files on rank 0 alone; another process may have become it."""
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    def setup(self, trainer: Any) -> None:
        """Moves the module to the device, makes its optimizers, and prepares all of them for the job."""
        self._trainer = trainer
        super().setup(trainer)
        self._sigterm = signal.getsignal(signal.SIGTERM)
        if trainer.state.fn == TrainerFn.FITTING:
            assert self.lightning_module is not None
            schedulers = [config.scheduler for config in self.lr_scheduler_configs]
            scaler = getattr(self.precision_plugin, "scaler", None)
            self.job.prepare(self.lightning_module, *self.optimizers, *schedulers, *([scaler] if scaler else []))
            self._training = Training(trainer, self.job, self._weight)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Returns the steps of the job in the place of the training loader."""
        if not self._trainer.training:
            return dataloader
        assert self._training is not None
        data = read_loader(dataloader)
        return self._training.steps(self.job.dataloader(data.dataset, shuffle=data.shuffle, **data.options))

    def on_train_start(self) -> None:
        """Has SIGTERM mean what it meant before: Lightning's handler would end the training of this process alone."""
        signal.signal(signal.SIGTERM, self._sigterm)

    def training_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """Runs the module's `training_step` on a micro-batch, without automatic optimization on each of a step's."""
        assert self._training is not None
        return self._training.training_step(super().training_step, *args, **kwargs)

    def backward(
        self, closure_loss: torch.Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Adds the gradient of a micro-batch."""
        assert self._training is not None and self.lightning_module is not None
        self.pre_backward(closure_loss)
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        self._training.backward(loss)
        loss = self.precision_plugin.post_backward(loss, self.lightning_module)
        self.post_backward(loss)
        return loss

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Steps an optimizer with the gradient of the global batch."""
        training, module = self._training, self.lightning_module
        assert training is not None and module is not None
        if not training.automatic:
            closure()
            return optimizer.step(**kwargs)

        def whole() -> Any:
            result = training.whole(closure)
            training.end_step()
            return result

        result = self.precision_plugin._wrap_closure(module, optimizer, whole)
        optimizer.step(**kwargs)
        return result

    def on_train_end(self) -> None:
        """Ends the training on all ranks."""
        if self._training is not None:
            self._training.finish()
