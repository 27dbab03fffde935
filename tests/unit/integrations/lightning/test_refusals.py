"""What can't be as it is in one process is refused by name, before it trains."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.utilities import CombinedLoader
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef
from torchmetrics.wrappers import Running

import elastic_launcher.torch as elastic
from elastic_launcher.integrations.lightning import ElasticFabricStrategy, ElasticStrategy
from tests.support.lightning_modules import BATCH, MICRO, Adversaries, Classifier, Manual, data, make_trainer, samples
from tests.support.thread_group import run_ranks, thread_job


class Thawing(BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        pass


@pytest.fixture
def strategy() -> Iterator[ElasticStrategy]:
    torch.set_default_dtype(torch.float64)
    yield ElasticStrategy(elastic.init(BATCH, MICRO))
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate_grad_batches": 2}, "the job accumulates by itself"),
        ({"reload_dataloaders_every_n_epochs": 1}, "one training loader"),
        pytest.param(
            {"val_check_interval": "00:00:05:00"},
            "by the clock",
            marks=pytest.mark.skipif(lightning.__version__ < "2.6", reason="takes no time before 2.6"),
        ),
        ({"callbacks": [Timer("00:01:00:00")]}, "no callback Timer"),
        ({"max_time": "00:01:00:00"}, "no callback Timer"),
        ({"callbacks": [StochasticWeightAveraging(0.1)]}, "no callback StochasticWeightAveraging"),
        ({"callbacks": [Thawing()]}, "no callback BaseFinetuning"),
        ({"callbacks": [GradientAccumulationScheduler({1: 2})]}, "no callback GradientAccumulationScheduler"),
        ({"callbacks": [ModelCheckpoint(train_time_interval=timedelta(1))]}, "train_time_interval"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_and_callbacks(strategy: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, 1, strategy=strategy, **{"enable_checkpointing": True, **options})
    with pytest.raises((ValueError, TypeError), match=message):
        trainer.fit(Classifier(), **data("adam"))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from samples(30)


@pytest.mark.parametrize(
    ("loaders", "message"),
    [
        (DataLoader(Stream(), batch_size=BATCH), "can only be read forward"),
        (
            DataLoader(samples(50), batch_size=7),
            "loader is 7, and the job's global batch 24",
        ),
        (DataLoader(samples(50), BATCH, sampler=WeightedRandomSampler([1.0] * 50, 50)), "WeightedRandomSampler"),
        ([samples(3)], "the training loader is a TensorDataset"),
        ({"a": DataLoader(samples(50), BATCH), "b": DataLoader(samples(50), BATCH)}, "several training loaders"),
        ({"a": DataLoader(samples(50), BATCH)}, "or one in a list or dict"),
        ([DataLoader(samples(50), BATCH)], "or one in a list or dict"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_training_data(strategy: Any, loaders: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make_trainer(tmp_path, 1, strategy=strategy).fit(Classifier(), loaders)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Stream(), batch_size=5), "map-style"),
        (DataLoader(samples(50), batch_size=5, shuffle=True), "shuffle=True"),
        ([[1, 2]], "can't those of a list"),
        (CombinedLoader([DataLoader(samples(9)), DataLoader(samples(9))], "max_size"), "side by side"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_validation_data_that_ranks_cannot_share(strategy: Any, loader: Any, message: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, 1, strategy=strategy)
    with pytest.raises(TypeError, match=f"{message}(.|\n)*share_validation=False"):
        trainer.fit(Classifier(), DataLoader(samples(50), BATCH), loader)


def test_validation_data_that_each_rank_evaluates_whole(strategy: Any, tmp_path: Path) -> None:
    whole = ElasticStrategy(strategy.job, share_validation=False)
    trainer = make_trainer(tmp_path, 1, strategy=whole)
    trainer.fit(Classifier(), DataLoader(samples(50), BATCH), DataLoader(Stream(), batch_size=5))
    assert "val_loss" in trainer.callback_metrics


class Late(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for _ in range(2):
            self.manual_backward(self.net(batch[0]).mean())
            optimizer.step()


class Listed(Classifier):
    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.metric = metric

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.net(batch[0])
        self.metric.update(logits.softmax(1), batch[1])
        return logits.mean()


class Measured(Listed):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0]).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.metric.update(self.net(batch[0])[:, 0], batch[1].double())


class Gathering(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.all_gather(self.net(batch[0])).mean()


class Reducing(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.trainer.strategy.reduce(self.net(batch[0]).mean())


class Skipping(Classifier):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 1 else None


class Idle(Classifier):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()


class Backward(Classifier):
    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        (loss / 2).backward()


class Graph(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(self.net(batch[0]).mean(), create_graph=True)


class Sending(Classifier):
    def on_train_batch_end(self, *_: Any) -> None:
        self.trainer.strategy.broadcast([1, 2])


class Alone(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch[0]).mean()
        self.log("loss", loss, rank_zero_only=True)
        return loss


class AloneInValidation(Classifier):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", self.net(batch[0]).mean(), rank_zero_only=True)


class Iterating(Classifier):
    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        return self.net(next(dataloader_iter)[0][0]).mean()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Late(), "manual_backward after an optimizer has stepped"),
        (Listed(MulticlassAUROC(3)), "state 'preds' is neither a sum nor a largest value"),
        (Measured(PearsonCorrCoef()), "can't be brought together over ranks"),
        (Listed(Running(MulticlassAccuracy(3), 3)), "covers the last updates"),
        (Measured(Running(MeanSquaredError(), 3)), "covers the last updates"),
        (Gathering(), "all_gather returns another shape"),
        (Reducing(), "strategy.reduce in a training step"),
        (Skipping(), "Lightning has left a step(.|\n)*on_train_batch_start returns -1"),
        (Idle(), "Lightning has left a step(.|\n)*optimizer_step"),
        (Backward(), "Backward.backward"),
        (Graph(), "takes a loss and retain_graph="),
        (Sending(), "not list"),
        (Alone(), "leave rank_zero_only out"),
        (AloneInValidation(), "in validation_step: each rank has a part of the batches"),
        (Iterating(), "dataloader_iter"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_module_does(strategy: Any, module: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        make_trainer(tmp_path, 2, strategy=strategy).fit(module.double(), **data("adam"))


@pytest.mark.parametrize("make", [MaxMetric, lambda: MeanMetric() + 1.0], ids=["largest", "composed"])
def test_a_metric_of_a_step_needs_sums(strategy: Any, make: Any, tmp_path: Path) -> None:
    class Logging(Listed):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.net(batch[0])
            self.metric(logits)
            self.log("metric", self.metric, on_step=True)
            return logits.mean()

    with pytest.raises(TypeError, match="Log it with on_step=False"):
        make_trainer(tmp_path, 1, strategy=strategy).fit(Logging(make()).double(), **data("adam"))


def test_another_fit_after_one_that_has_ended_the_job(strategy: Any, tmp_path: Path) -> None:
    trainer, module = make_trainer(tmp_path, 2, strategy=strategy, max_steps=3), Classifier()
    trainer.fit(module, **data("adam"))
    assert trainer.global_step == 3
    trainer.fit_loop.epoch_loop.max_steps = 9
    with pytest.raises(RuntimeError, match="no other fit can follow it"):
        trainer.fit(module, **data("adam"))


def test_values_of_one_rank_at_an_epoch_end_are_refused(
    strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(Classifier):
        def on_validation_epoch_end(self) -> None:
            self.log("own", torch.tensor(0.5))

    def reduce(values: Any, **_: Any) -> Any:
        return {"most": 0.75, "least": -0.5} if isinstance(values, dict) and "most" in values else kept(values, **_)

    kept = strategy.job.reduce
    monkeypatch.setattr(strategy.job, "reduce", reduce)
    with pytest.raises(RuntimeError, match=r"'own'\) in on_validation_epoch_end gets 0.5 on one rank and 0.75"):
        make_trainer(tmp_path, 1, strategy=strategy).fit(Own(), **data("adam"))


def test_a_precision_that_was_not_tried(strategy: Any, tmp_path: Path) -> None:
    from lightning.pytorch.plugins.precision import Precision

    class Other(Precision):
        pass

    trainer = make_trainer(tmp_path, 1, strategy=strategy, plugins=[Other()])
    with pytest.raises(TypeError, match=r"the precision plugin Other \(32-true\) was not tried"):
        trainer.fit(Adversaries(), DataLoader(samples(50), BATCH))


@pytest.mark.parametrize("kind", [ElasticStrategy, ElasticFabricStrategy])
def test_a_deterministic_job_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"init\(deterministic=2\): Lightning was not tried"):
        run_ranks(1, lambda group: kind(thread_job(group, BATCH, MICRO, virtual_ranks=2)))


@pytest.mark.usefixtures("node_of_one")
def test_a_sharded_model_is_refused(strategy: Any, tmp_path: Path) -> None:
    class Sharded(Adversaries):
        def configure_model(self) -> None:
            fully_shard(self)

    words = "sharded by fully_shard: Lightning was not tried with it"
    with pytest.raises(TypeError, match=words):
        make_trainer(tmp_path, 1, strategy=strategy).fit(Sharded(), DataLoader(samples(50), BATCH))
    fabric = lightning.Fabric(accelerator="cpu", strategy=ElasticFabricStrategy(strategy.job))
    with pytest.raises(TypeError, match=words):
        fabric.setup(fully_shard(torch.nn.Linear(2, 1)))
