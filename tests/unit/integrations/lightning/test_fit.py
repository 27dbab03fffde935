"""`fit` in one process that accumulates: what Lightning alone does with whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader

import elastic_launcher.torch as elastic
from elastic_launcher.integrations.lightning import ElasticStrategy
from elastic_launcher.integrations.lightning.state import TrainerState
from tests.support.lightning_modules import (
    BATCH,
    MICRO,
    MODULES,
    Classifier,
    Manual,
    data,
    deciding,
    make_trainer,
    samples,
    train,
)
from tests.support.thorough import thorough_but


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def strategy(micro: int = MICRO) -> ElasticStrategy:
    return ElasticStrategy(elastic.init(BATCH, micro))


def assert_same(ours: tuple[Any, list[Any]], theirs: tuple[Any, list[Any]]) -> None:
    """Fails unless weights and histories are equal."""
    assert len(ours[1]) == len(theirs[1])
    for row, expected in zip(ours[1], theirs[1], strict=True):
        assert row == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for one, other in zip(ours[0].parameters(), theirs[0].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"precision": "bf16-mixed"},
        pytest.param(lambda: {"precision": "bf16-true"}, marks=pytest.mark.thorough),
        lambda: {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=8.0))]},
    ],
    ids=["bf16-mixed", "bf16-true", "scaled"],
)
def test_whole_batches_in_other_precisions_are_those_of_lightning(make: Any, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    ours, rows = train("adam", tmp_path / "ours", 2, strategy=strategy(BATCH), **make())
    plain, expected = train("adam", tmp_path / "plain", 2, **make())
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-2 if one.dtype == torch.bfloat16 else 1e-5)
    assert rows[-1] == pytest.approx(expected[-1], rel=1e-2)


def test_a_data_module_and_a_dictionary_of_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    elastic_strategy = strategy()

    class Held(lightning.LightningDataModule):
        def prepare_data(self) -> None:
            with pytest.raises(
                RuntimeError, match=r"called inside job\.first_on_node"
            ):  # no other process is in it now
                elastic_strategy.job.reduce(0.0)
            (tmp_path / "data").touch()

        def setup(self, stage: str) -> None:
            assert (tmp_path / "data").exists()

        def train_dataloader(self) -> Any:
            return DataLoader(samples(50), batch_size=BATCH, shuffle=True)

        def val_dataloader(self) -> Any:
            return DataLoader(samples(20), batch_size=10)

    class Shaped(Classifier):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch[0][:, None], batch[1]

        def training_step(self, batch: Any) -> Any:  # type: ignore[override]
            assert batch[0].shape[1:] == (1, 6)
            return {"loss": self.net(batch[0][:, 0]).mean()}

        def validation_step(self, batch: Any) -> None:  # type: ignore[override]
            self.log("val_loss", self.net(batch[0][:, 0]).mean())

    trainer = make_trainer(tmp_path, 2, strategy=elastic_strategy)
    trainer.fit(Shaped(), datamodule=Held())
    assert trainer.global_step == 6 and "val_loss" in trainer.callback_metrics
    assert trainer.local_rank == 1


@pytest.mark.parametrize("kind", thorough_but(MODULES, "adam", "manual"))
def test_accumulating_equals_whole_batches_of_lightning(kind: str, tmp_path: Path) -> None:
    assert_same(train(kind, tmp_path / "ours", 3, strategy=strategy()), train(kind, tmp_path / "plain", 3))


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"limit_train_batches": 4, "limit_val_batches": 3},
        {"fast_dev_run": 2},
        pytest.param({"val_check_interval": 3}, marks=pytest.mark.thorough),
        pytest.param({"check_val_every_n_epoch": 2}, marks=pytest.mark.thorough),
        pytest.param({"max_steps": 13, "max_epochs": -1}, marks=pytest.mark.thorough),
        pytest.param({"precision": "64-true"}, marks=pytest.mark.thorough),
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_trainer_mean_what_they_mean(options: dict[str, Any], tmp_path: Path) -> None:
    ours = train("adam", tmp_path / "ours", 2, strategy=strategy(), **options)
    assert_same(ours, train("adam", tmp_path / "plain", 2, **options))


def test_callbacks_save_stop_and_log_as_in_lightning(tmp_path: Path) -> None:
    ours = train("adam", tmp_path / "ours", 9, *deciding(tmp_path / "ours"), strategy=strategy())
    theirs = train("adam", tmp_path / "plain", 9, *deciding(tmp_path / "plain"))
    assert_same(ours, theirs)
    assert theirs[1][-1][0] < 8
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {
        path.name for path in (tmp_path / "plain").iterdir()
    }
    logs = [
        (tmp_path / who / "log" / "version_0" / "metrics.csv").read_text().splitlines() for who in ("ours", "plain")
    ]
    assert len(logs[0]) == len(logs[1]) and logs[0][0] == logs[1][0]


@pytest.mark.parametrize("name", ["mid-step=10.ckpt", pytest.param("last.ckpt", marks=pytest.mark.thorough)])
def test_a_checkpoint_of_lightning_is_continued_where_it_was(name: str, tmp_path: Path) -> None:
    whole = train("adam", tmp_path / "plain", 3, *deciding(tmp_path / "plain")[:2])
    folder = tmp_path / "first"
    train("adam", folder, 2, *deciding(folder)[:2], strategy=strategy())
    rest, rows = train("adam", tmp_path / "rest", 3, strategy=strategy(), ckpt_path=folder / name)
    for one, other in zip(rest.parameters(), whole[0].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for row, expected in zip(rows, whole[1][-len(rows) :], strict=True):
        assert row[:3] == pytest.approx(expected[:3], rel=1e-9)
    assert rows[0][2] == (11 if name.startswith("mid") else 19)


@pytest.mark.thorough
def test_a_checkpoint_of_smaller_batches_is_continued_at_its_epoch(tmp_path: Path) -> None:
    loaders = {**data("adam"), "train_dataloaders": DataLoader(samples(203), batch_size=BATCH // 2)}
    trainer = make_trainer(tmp_path / "first", 2, *deciding(tmp_path / "first")[:1], accumulate_grad_batches=2)
    trainer.fit(Classifier(), **loaders)
    last = tmp_path / "first" / "last.ckpt"
    ours, rows = train("adam", tmp_path / "ours", 4, strategy=strategy(), ckpt_path=last)
    plain, expected = train("adam", tmp_path / "plain", 4, ckpt_path=last)
    assert_same((ours, rows[-2:]), (plain, expected[-2:]))
    assert [row[:3] for row in rows[:2]] == [[2, 0, 19], [2, 1, 20]]


@pytest.mark.thorough
def test_lightning_alone_continues_from_a_checkpoint_of_an_elastic_job(tmp_path: Path) -> None:
    whole = train("adam", tmp_path / "plain", 3)
    train("adam", tmp_path / "first", 2, *deciding(tmp_path / "first")[:1], strategy=strategy())
    rest = train("adam", tmp_path / "rest", 3, ckpt_path=tmp_path / "first" / "last.ckpt")
    for one, other in zip(rest[0].parameters(), whole[0].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_second_fit_goes_on(tmp_path: Path) -> None:
    def twice(who: str, strategy: Any) -> tuple[Any, list[Any]]:
        torch.manual_seed(3)
        module = Classifier()
        trainer = make_trainer(tmp_path / who, 2, strategy=strategy)
        trainer.fit(module, **data("adam"))
        trainer.fit_loop.max_epochs = 4
        trainer.fit(module, **data("adam"))
        return module, [[trainer.current_epoch, trainer.global_step]]

    assert_same(twice("ours", strategy()), twice("plain", "auto"))


def test_the_steps_of_a_fit_that_is_over_end_no_other_one(tmp_path: Path) -> None:
    """A process that joins another `fit` gets the state of this one, too."""
    ours = strategy()
    trainer = make_trainer(tmp_path, 2, strategy=ours, max_steps=18)
    trainer.fit(Classifier(), **data("adam"))
    assert trainer.global_step == 18 and trainer.current_epoch == 2
    (kept,) = (one for one in ours.job._session.state.registered.values() if isinstance(one, TrainerState))
    kept.load_state_dict(kept.state_dict())
    assert ours.job._session.stop_reason is None


def test_validate_gives_what_lightning_gives(tmp_path: Path) -> None:
    def validated(who: str, strategy: Any) -> Any:
        torch.manual_seed(3)
        trainer, module = make_trainer(tmp_path / who, 1, strategy=strategy), Classifier()
        return trainer.validate(module, DataLoader(samples(47), batch_size=10), verbose=False)

    (ours,), (theirs,) = validated("ours", strategy()), validated("plain", "auto")
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_the_loss_may_be_a_mean_over_something_else(tmp_path: Path) -> None:
    class Weighted(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            counts = y > 0
            loss = (torch.nn.functional.cross_entropy(self.net(x), y, reduction="none") * counts).sum() / counts.sum()
            self.log("loss", loss, on_step=True, on_epoch=True, batch_size=int(counts.sum()))
            return loss

    def trained(who: str, strategy: Any) -> tuple[Any, list[Any]]:
        torch.manual_seed(3)
        module = Weighted()
        trainer = make_trainer(tmp_path / who, 2, strategy=strategy)
        trainer.fit(module, DataLoader(samples(203), batch_size=BATCH))
        return module, [[float(trainer.callback_metrics["loss_epoch"])]]

    job = elastic.init(BATCH, MICRO)
    ours = trained("ours", ElasticStrategy(job, weight=lambda batch: float((batch[1] > 0).sum())))
    assert_same(ours, trained("plain", "auto"))


def test_two_backward_passes_through_one_graph(tmp_path: Path) -> None:
    class Twice(Manual):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer, hidden = self.optimizers(), self.net(batch[0])
            optimizer.zero_grad()
            self.manual_backward(hidden.square().mean(), retain_graph=True)
            self.manual_backward(hidden.mean())
            optimizer.step()

    def trained(who: str, strategy: Any) -> tuple[Any, list[Any]]:
        torch.manual_seed(3)
        module = Twice()
        make_trainer(tmp_path / who, 2, strategy=strategy).fit(module, DataLoader(samples(203), BATCH))
        return module, []

    assert_same(trained("ours", strategy()), trained("plain", "auto"))


def test_hooks_see_the_whole_gradient_once_and_the_loss_of_the_step(tmp_path: Path) -> None:
    class Watching(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[float] = []

        def _norm(self) -> float:
            return float(sum(p.grad.norm() for p in self.parameters() if p.grad is not None))

        def on_after_backward(self) -> None:
            self.seen.append(self._norm())

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.seen.append(self._norm())

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            assert batch[0].ndim == 2

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.seen += [batch_idx, float(outputs["loss"])]

    def seen(who: str, strategy: Any) -> list[float]:
        torch.manual_seed(3)
        module = Watching()
        make_trainer(tmp_path / who, 1, strategy=strategy).fit(module, **data("adam"))
        return module.seen

    assert seen("ours", strategy()) == pytest.approx(seen("plain", "auto"), rel=1e-9)


class ClippedByValue(Manual):
    """One that clips each gradient, whether it is there yet or not."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
        self.clip_gradients(optimizer, gradient_clip_val=0.02, gradient_clip_algorithm="value")
        optimizer.step()


def test_manual_optimization_may_clip_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "clipped by value", ClippedByValue)  # type: ignore[arg-type]
    ours = train("clipped by value", tmp_path / "ours", 2, strategy=strategy())
    assert_same(ours, train("clipped by value", tmp_path / "plain", 2))


class LogsOfSteps(Classifier):
    """One that logs in the hooks of a step; the last step of an epoch has fewer samples."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("of the script's batch", loss, on_step=True, on_epoch=True, batch_size=BATCH)
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.log("start", float(batch_idx), on_step=True, on_epoch=True)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [parameter.grad.norm() for parameter in self.parameters()]  # type: ignore[union-attr]
        self.log("norm", torch.stack(norms).norm(), on_step=True, on_epoch=True)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("end", outputs["loss"], on_epoch=True)
        self.log("weighed", outputs["loss"], on_epoch=True, batch_size=1 + batch_idx)


def test_an_epoch_mean_of_what_hooks_log_counts_the_samples_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODULES, "logs of steps", LogsOfSteps)  # type: ignore[arg-type]
    ours = train("logs of steps", tmp_path / "ours", 2, strategy=strategy())
    assert_same(ours, train("logs of steps", tmp_path / "plain", 2))


def test_memory_that_runs_out_halves_micro_batches(tmp_path: Path) -> None:
    class Large(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if len(batch[0]) > 3 and isinstance(self.trainer.strategy, ElasticStrategy):
                raise torch.OutOfMemoryError("a test")
            return super().training_step(batch, batch_idx)

    def trained(who: str, strategy: Any) -> tuple[Any, list[Any]]:
        torch.manual_seed(3)
        module = Large()
        trainer = make_trainer(tmp_path / who, 2, strategy=strategy)
        trainer.fit(module, **data("adam"))
        return module, [[float(trainer.callback_metrics["loss_epoch"])]]

    assert_same(trained("ours", strategy()), trained("plain", "auto"))


def test_a_micro_batch_without_a_loss_is_left_out(tmp_path: Path) -> None:
    class Choosy(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            wanted = batch[1] > 0
            if not wanted.any():
                return None
            return self.net(batch[0]).square().mean()

    class Chosen(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            wanted = batch[1] > 0
            return self.net(batch[0][wanted]).square().mean()

    def trained(module: Any, strategy: Any) -> tuple[Any, list[Any]]:
        make_trainer(tmp_path, 2, strategy=strategy).fit(module, DataLoader(samples(203), BATCH))
        return module, []

    torch.manual_seed(3)
    ours = Choosy()
    plain = Chosen()
    plain.load_state_dict(ours.state_dict())
    assert_same(trained(ours, strategy(micro=1)), trained(plain, "auto"))
