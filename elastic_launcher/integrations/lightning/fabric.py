"""The strategy with which a loop over Lightning's Fabric trains an elastic job."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.fabric.wrappers import _unwrap_objects
from torch import nn
from torch.optim import Optimizer

from elastic_launcher.integrations.jobs import if_admitted, refuse_deterministic, refuse_sharded
from elastic_launcher.integrations.lightning.checks import read_training
from elastic_launcher.integrations.lightning.ranks import PresentRank, Ranks, broadcasted, checked_text, reduced
from elastic_launcher.torch import Job


class ElasticFabricStrategy(Ranks, SingleDeviceStrategy):
    """Trains on all ranks of an elastic job: `Fabric(strategy=ElasticFabricStrategy(job))`.

    The loop body runs once for each micro-batch of this rank, as in a script without Fabric; optimizers act where the
    step's gradient is complete.

    Args:
        job: What `elastic_launcher.torch.init` has returned.
        **options: Of Fabric's strategies: ``checkpoint_io``, ``precision``.
    """

    def __init__(self, job: Job, **options: Any) -> None:
        refuse_deterministic(job, "Lightning")
        super().__init__(device=job.device, **options)
        self.job = job
        self.local_rank = job.local_rank
        self._has_loader = False
        self._scales = False
        rank_zero_only.rank = PresentRank(self)  # type: ignore[attr-defined] # loggers write where it is 0

    def process_dataloader(self, dataloader: Any) -> Any:
        """Returns the job's loader of the training data.

        Raises:
            TypeError: For a second loader, and for data that the job can't follow.
            ValueError: If its batches are not the global batch.
        """
        if self._has_loader:
            raise TypeError(
                "fabric.setup_dataloaders got a second loader: it takes the training loader alone. For a validation "
                "use job.evaluate(fn, job.dataloader(dataset)), which the ranks share"
            )
        self._has_loader = True
        data = read_training(dataloader, self.job.global_batch_size)
        return self.job.dataloader(data.dataset, shuffle=data.shuffle, **data.options)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Prepares a module for the job.

        Raises:
            TypeError: For a sharded one.
        """
        refuse_sharded(module, "Lightning")
        self.job.prepare(module)
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Prepares an optimizer for the job."""
        self.job.prepare(optimizer)
        scaler = getattr(self.precision, "scaler", None)
        if scaler is not None and not self._scales:
            self._scales = True
            self.job.prepare(scaler)
        return optimizer

    def setup_module_and_optimizers(self, module: nn.Module, optimizers: list[Optimizer], *scheduler: Any) -> Any:
        """Prepares a module, its optimizers, and their schedule if that is given."""
        found = super().setup_module_and_optimizers(module, optimizers, *scheduler)
        for one in scheduler:
            if one is not None:
                self.job.prepare(one)
        return found

    def backward(
        self, tensor: torch.Tensor, module: nn.Module | None, *args: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Adds the gradient of a micro-batch, as `Job.backward` does; ``optimizer`` is what `Fabric.setup` returned."""
        scaler = getattr(self.precision, "scaler", None)
        loss = tensor if scaler is None else scaler.scale(tensor)
        self.job.backward(loss, *args, optimizer=_unwrap_objects(optimizer), **kwargs)

    def clip_gradients_value(self, *args: Any, **kwargs: Any) -> None:
        """Clips the gradient of the global batch; before that is complete there is none, which torch would refuse."""
        if self.job.sync_gradients:
            super().clip_gradients_value(*args, **kwargs)

    def save_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Saves a checkpoint of Fabric on rank 0, or on the next one to be it if that is lost meanwhile."""
        save = partial(super().save_checkpoint, path, *args, **kwargs)
        self.job._write_on_main(f"saving the checkpoint {path}", save, 5)

    def all_reduce(self, tensor: torch.Tensor, group: Any = None, reduce_op: Any = "mean") -> torch.Tensor:
        """Reduces a value over all ranks."""
        return reduced(self.job, tensor, reduce_op)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Returns rank 0's number, once this process is admitted; texts and paths are the same on all ranks.

        Raises:
            TypeError: For anything else.
        """
        if not isinstance(obj, (bool, int, float)):
            return checked_text(obj)
        return if_admitted(partial(broadcasted, self.job, obj, src), obj)

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Waits for the other ranks, once this process is admitted."""
        if_admitted(partial(self.job.reduce, 0.0), None)
