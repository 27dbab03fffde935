"""Lightning modules, their data and trainers, of the kinds that the adapter promises; in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, MICRO = 203, 24, 5  # the last step of an epoch has 11 samples


class Classifier(lightning.LightningModule):
    """A small network, trained with AdamW and a schedule by steps."""

    def __init__(self, *middle: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *middle, nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self.net(x)
        loss = functional.cross_entropy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("accuracy", (logits.argmax(1) == y).double().mean(), on_step=False, on_epoch=True)
        self.log("largest", logits.abs().max(), on_step=True, on_epoch=True, reduce_fx="max")
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class History(Callback):
    """Keeps what callbacks see after each batch and epoch."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._note(trainer, batch_idx)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._note(trainer, -1)

    def _note(self, trainer: Any, batch_idx: int) -> None:
        rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        values = [float(value) for _, value in sorted(trainer.callback_metrics.items())]
        self.rows.append([trainer.current_epoch, batch_idx, trainer.global_step, *rates, *values])


MODULES: Mapping[str, Callable[[], Any]] = {"adam": Classifier}


def data(shuffle: bool = False) -> Any:
    """Returns the training loader of a module."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, 6, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=shuffle)


def train(kind: str, folder: Path, epochs: int, *callbacks: Any, strategy: Any = "auto") -> tuple[Any, list[Any]]:
    """Trains a module; returns it and its history."""
    torch.manual_seed(3)
    module, history = MODULES[kind](), History()
    trainer = lightning.Trainer(
        accelerator="cpu" if strategy == "auto" else "auto",
        strategy=strategy,
        max_epochs=epochs,
        logger=CSVLogger(folder, "log"),
        log_every_n_steps=3,
        callbacks=[history, *callbacks],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data())
    return module, history.rows
