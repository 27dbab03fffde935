"""Lightning modules, their data and trainers, of the kinds that the adapter promises; in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassPrecision, MulticlassRecall

SAMPLES, BATCH, MICRO = 203, 24, 5  # the last step of an epoch has 11 samples


class Classifier(lightning.LightningModule):
    """A small network, trained with AdamW and a schedule by steps, and validated.

    Args:
        middle: More layers.
    """

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

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self.net(x)
        self.log("val_loss", functional.cross_entropy(logits, y))
        self.log("val_least", logits.min(), reduce_fx="min")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Measured(Classifier):
    """One that uses metrics of torchmetrics, rates that follow a metric of the validation, and a hook for gradients."""

    def __init__(self) -> None:
        super().__init__(nn.Dropout(0.0))
        self.train_accuracy = MulticlassAccuracy(3)
        self.val_accuracy, self.val_area = MulticlassAccuracy(3), MulticlassAUROC(3)
        self.val_means = nn.ModuleList([MeanMetric(), MeanMetric()])
        self.train_both = MetricCollection([MulticlassPrecision(3), MulticlassRecall(3)], prefix="train_")
        self.val_both = self.train_both.clone(prefix="val_")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self.net(x)
        loss = functional.cross_entropy(logits, y)
        self.train_accuracy(logits, y)
        self.log("accuracy", self.train_accuracy, on_step=True, on_epoch=True)
        self.train_both(logits, y)
        self.log_dict(self.train_both, on_step=True, on_epoch=True)
        return {"loss": loss, "logits": logits.detach()}

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad *= 0.9

    def on_train_epoch_end(self) -> None:
        self.log("once", self.trainer.callback_metrics["accuracy_epoch"] / 2)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        x, y = batch
        logits = self.net(x)
        self.log("val_loss", functional.cross_entropy(logits, y))
        self.val_accuracy.update(logits, y)
        self.val_area.update(logits.softmax(1), y)
        self.val_both.update(logits, y)
        self.val_means[dataloader_idx].update(logits.mean())
        self.log(f"mean{dataloader_idx}", self.val_means[dataloader_idx], add_dataloader_idx=False)

    def on_validation_epoch_end(self) -> None:
        self.log("val_accuracy", self.val_accuracy.compute())
        self.log("val_area", self.val_area.compute())
        self.log_dict(self.val_both.compute())
        for metric in (self.val_accuracy, self.val_area, self.val_both):
            metric.reset()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.1)
        epochs = {"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "epoch"}
        return [optimizer], [epochs, {"scheduler": plateau, "monitor": "val_loss/dataloader_idx_0"}]


class Estimated(Classifier):
    """One whose schedule is as long as the training."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.RMSprop(self.parameters(), 0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Manual(Classifier):
    """One that steps its optimizer and its schedule itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        logits = self.net(x)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=0.3, gradient_clip_algorithm="norm")
        optimizer.step()
        self.lr_schedulers().step()
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", logits.abs().max(), reduce_fx="max")


class Adversaries(lightning.LightningModule):
    """Two networks with an optimizer each, which step after both losses."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(6, 3), nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        made = functional.softplus(-self.critic(self.generator(x))).mean()
        self.manual_backward(made)
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        real = functional.one_hot(y, 3).to(x)
        wrong, right = self.critic(self.generator(x).detach()), self.critic(real)
        told = (functional.softplus(wrong) + functional.softplus(-right)).mean()
        self.manual_backward(told)
        self.untoggle_optimizer(second)
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        self.log_dict({"made": made, "told": told}, on_step=True, on_epoch=True)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.generator.parameters(), 0.02), torch.optim.SGD(self.critic.parameters(), 0.05)]


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


MODULES: Mapping[str, Callable[[], Any]] = {
    "adam": Classifier,
    "measured": Measured,
    "estimated": Estimated,
    "manual": Manual,
    "adversaries": Adversaries,
}


def deciding(folder: Path) -> list[Any]:
    """Returns callbacks that save, stop and log."""
    return [
        ModelCheckpoint(folder, monitor="val_loss", save_top_k=2, save_last=True),
        ModelCheckpoint(folder, filename="mid-{step}", every_n_train_steps=5, save_top_k=-1),
        EarlyStopping("val_loss", patience=1, min_delta=0.02),
        LearningRateMonitor("step"),
    ]


def samples(count: int, seed: int = 0) -> Any:
    """Returns a data set; always the same."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    return TensorDataset(x, y)


def data(kind: str) -> dict[str, Any]:
    """Returns the loaders of a module, as `fit` takes them."""
    loaders: dict[str, Any] = {"train_dataloaders": DataLoader(samples(SAMPLES), batch_size=BATCH)}
    if kind != "adversaries":
        held_out = [DataLoader(samples(count, seed=count), batch_size=10) for count in (47, 15)]
        loaders["val_dataloaders"] = held_out if kind == "measured" else held_out[0]
    return loaders


def train(
    kind: str,
    folder: Path,
    epochs: int,
    *callbacks: Any,
    strategy: Any = "auto",
    ckpt_path: Any = None,
    again: int = 0,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """Trains a module, in ``again`` epochs of a second `fit` too, and validates it; returns it and its history."""
    torch.manual_seed(3)
    module, history = MODULES[kind](), History()
    trainer = make_trainer(folder, epochs, history, *callbacks, strategy=strategy, **options)
    loaders = data(kind)
    trainer.fit(module, **loaders, ckpt_path=ckpt_path)
    if again:
        trainer.fit_loop.max_epochs += again
        trainer.fit(module, **loaders)
    if "val_dataloaders" in loaders and not options.get("fast_dev_run"):
        found = trainer.validate(module, loaders["val_dataloaders"], verbose=False)
        history.rows.append([-1, *(value for one in found for _, value in sorted(one.items()))])
    return module, history.rows


def make_trainer(folder: Path, epochs: int, *callbacks: Any, strategy: Any = "auto", **options: Any) -> Any:
    """Returns a Trainer that logs to a file."""
    return lightning.Trainer(
        **{
            "accelerator": "cpu" if strategy == "auto" else "auto",
            "strategy": strategy,
            "max_epochs": epochs,
            "logger": CSVLogger(folder, "log"),
            "log_every_n_steps": 3,
            "callbacks": list(callbacks),
            "enable_progress_bar": False,
            "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
            "enable_model_summary": False,
            **options,
        }
    )


def train_with_fabric(strategy: Any, *epochs: Any, after: Any = lambda fabric: None) -> Any:
    """Trains a network in loops over Fabric; returns it.

    Args:
        strategy: Of Fabric.
        *epochs: What each loop goes over.
        after: Called after each loop.
    """
    torch.manual_seed(3)
    fabric = lightning.Fabric(accelerator="cpu" if strategy == "auto" else "auto", strategy=strategy)
    network = Classifier().net
    optimizer = torch.optim.AdamW(network.parameters(), 0.01)
    model, optimizer = fabric.setup(network, optimizer)
    loader = fabric.setup_dataloaders(data("adam")["train_dataloaders"])
    for one in epochs:
        for _ in one:
            for x, y in loader:
                optimizer.zero_grad()
                fabric.backward(functional.cross_entropy(model(x), y))
                fabric.clip_gradients(model, optimizer, max_norm=0.3)
                optimizer.step()
        after(fabric)
    return network
