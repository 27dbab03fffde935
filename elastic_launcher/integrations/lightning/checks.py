"""What an elastic job can't do for a Trainer, refused by name before it trains."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.utils.data import DataLoader

from elastic_launcher.torch.data.stock_loader import Data, read_loader

PRECISIONS = (Precision, MixedPrecision, DoublePrecision, HalfPrecision)
COPIES = "it keeps a copy of the weights, which a process that joins would not have"
CLOCK = "it decides by the clock of one process"
CALLBACKS = {
    "StochasticWeightAveraging": COPIES,
    "WeightAveraging": COPIES,
    "BaseFinetuning": "it gives the optimizer more parameters later, which a process that joins would not have",
    "ModelPruning": "it replaces parameters, which a process that joins would have unpruned",
    "Timer": f"{CLOCK}; stop the job with `elastic-launcher stop`, or set max_epochs",
    "GradientAccumulationScheduler": "the job accumulates by itself; set global_batch_size of init",
    "BatchSizeFinder": "the global batch is that of init; init(max_batch_per_gpu='auto') finds what fits on a GPU",
    "LearningRateFinder": "find the rate in one process first",
}


def check(trainer: Any) -> None:
    """Refuses what can't be as it is in one process.

    Raises:
        ValueError: For options of the Trainer.
        TypeError: For callbacks, precisions and modules.
    """
    if trainer.accumulate_grad_batches != 1:
        raise ValueError(
            f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}): the job accumulates by itself, as "
            "far as the global batch needs it; leave it out, and make global_batch_size of init so many times larger"
        )
    if trainer.reload_dataloaders_every_n_epochs:
        raise ValueError(
            "Trainer(reload_dataloaders_every_n_epochs=...): the job has one training loader; leave it out"
        )
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        raise ValueError(f"Trainer(val_check_interval=<a time>): {CLOCK}; give a number of batches")
    precision = trainer.precision_plugin
    if type(precision) not in PRECISIONS or precision.precision == "16-true":
        raise TypeError(
            f"the precision plugin {type(precision).__name__} ({precision.precision}) was not tried with an elastic "
            "job; use precision='32-true', '64-true', 'bf16-true', 'bf16-mixed' or '16-mixed'"
        )
    for callback in trainer.callbacks:
        for name in CALLBACKS.keys() & {kind.__name__ for kind in type(callback).__mro__}:
            raise TypeError(f"an elastic job takes no callback {name}: {CALLBACKS[name]}")
        if isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None:
            raise ValueError(f"ModelCheckpoint(train_time_interval=...): {CLOCK}; give every_n_train_steps")
    module = trainer.lightning_module
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise TypeError("training_step(self, dataloader_iter): the job gives batches; take a batch")
    if is_overridden("backward", module):
        raise TypeError(
            f"{type(module).__name__}.backward: the job makes the backward pass, and would not call it; leave it out, "
            "and change the loss, or gradients in on_after_backward"
        )


def read_training(loader: Any, batch: int) -> Data:
    """Returns the data of a training loader.

    Raises:
        TypeError: For data that can only be read forward, samplers that the job can't follow, and other loaders.
        ValueError: If its batches are not the global batch.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"the training loader is a {type(loader).__name__}; give a torch DataLoader of a map-style data set"
        )
    data = read_loader(loader)
    if loader.batch_size not in (1, batch):
        raise ValueError(
            f"batch_size of the training loader is {loader.batch_size}, and the job's global batch {batch}: one "
            "batch is one optimizer step, over all ranks. Leave batch_size out, or change "
            "global_batch_size of init"
        )
    return data
