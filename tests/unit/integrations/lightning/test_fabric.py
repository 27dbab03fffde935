"""A loop over Fabric in one process that accumulates: what Fabric alone does with whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric.loggers import CSVLogger
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader

import elastic_launcher.torch as elastic
from elastic_launcher.integrations.lightning import ElasticFabricStrategy
from tests.support.lightning_modules import BATCH, MICRO, Classifier, samples, train_with_fabric


@pytest.fixture
def job() -> Iterator[Any]:
    torch.set_default_dtype(torch.float64)
    yield elastic.init(BATCH, MICRO)
    torch.set_default_dtype(torch.float32)


def test_accumulating_equals_whole_batches_of_fabric(job: Any) -> None:
    ours = train_with_fabric(ElasticFabricStrategy(job), job.epochs(3))
    for one, other in zip(ours.parameters(), train_with_fabric("auto", range(3)).parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_scheduler_and_a_weight_come_along_and_rank_0_saves(job: Any, tmp_path: Path) -> None:
    fabric = lightning.Fabric(strategy=ElasticFabricStrategy(job))
    network = Classifier().net
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    model, optimizer, schedule = fabric.setup(network, optimizer, schedule)
    for _ in job.epochs(1):
        for x, _y in fabric.setup_dataloaders(DataLoader(samples(48), BATCH)):
            fabric.backward(model(x).mean(), weight=len(x))
            optimizer.step()
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    assert fabric.all_reduce({"loss": torch.tensor(2.0)}) == {"loss": torch.tensor(2.0)}
    fabric.save(tmp_path / "state.pt", {"model": model})
    assert torch.load(tmp_path / "state.pt")["model"].keys() == network.state_dict().keys()


def test_a_logger_writes_from_the_first_line_of_the_loop_on_whoever_is_rank_0(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = lightning.Fabric(
        strategy=ElasticFabricStrategy(job), loggers=CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    )
    network = Classifier().net
    model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), 0.1))
    for x, _y in fabric.setup_dataloaders(DataLoader(samples(48), BATCH)):
        if job.micro.first:
            fabric.log("begun", job.step, step=job.step)
        fabric.backward(model(x).mean())
        optimizer.step()
    (log,) = tmp_path.rglob("metrics.csv")
    assert log.read_text().split() == ["begun,step", "0,0", "1,1"]
    for rank, writes in ((1, False), (0, True), (None, False)):
        monkeypatch.setattr(type(job), "rank", rank)
        assert (rank_zero_only.rank == 0, rank_zero_only.rank > 0) == (writes, not writes)  # type: ignore[attr-defined]


def test_a_loader_with_other_batches_is_refused(job: Any) -> None:
    fabric = lightning.Fabric(strategy=ElasticFabricStrategy(job))
    with pytest.raises(ValueError, match="loader is 7, and the job's global batch 24"):
        fabric.setup_dataloaders(DataLoader(samples(48), 7))


def test_a_second_loader_and_what_sends_objects_are_refused(job: Any) -> None:
    fabric = lightning.Fabric(strategy=ElasticFabricStrategy(job))
    with pytest.raises(TypeError, match="use job.evaluate"):
        fabric.setup_dataloaders(DataLoader(samples(48), BATCH), DataLoader(samples(9)))
    with pytest.raises(TypeError, match="not dict"):
        fabric.broadcast({})
    assert fabric.broadcast("text") == "text"
    with pytest.raises(RuntimeError, match="all_gather returns another shape"):
        fabric.all_gather(torch.ones(1))


def test_gradients_are_clipped_by_value_where_they_are_complete(job: Any) -> None:
    def trained(strategy: Any) -> Any:
        torch.manual_seed(3)
        fabric, network = lightning.Fabric(accelerator="cpu", strategy=strategy), Classifier().net
        model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), 0.1))
        for x, y in fabric.setup_dataloaders(DataLoader(samples(48), BATCH)):
            optimizer.zero_grad()
            fabric.backward(torch.nn.functional.cross_entropy(model(x), y))
            fabric.clip_gradients(model, optimizer, clip_val=0.01)
            optimizer.step()
        return network

    ours, plain = trained(ElasticFabricStrategy(job)), trained("auto")
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_each_optimizer_has_a_loss_of_its_own(job: Any) -> None:
    def trained(strategy: Any) -> list[Any]:
        torch.manual_seed(3)
        fabric, networks = lightning.Fabric(accelerator="cpu", strategy=strategy), [Classifier().net, Classifier().net]
        made = [fabric.setup(network, torch.optim.SGD(network.parameters(), 0.1)) for network in networks]
        (one, first), (other, second) = made
        for x, y in fabric.setup_dataloaders(DataLoader(samples(48), BATCH)):
            outputs = one(x)
            errors = (other(x) - (outputs.detach() if strategy == "auto" else outputs)).square().mean()
            losses = {first: torch.nn.functional.cross_entropy(outputs, y), second: errors}
            for optimizer, loss in losses.items():
                optimizer.zero_grad()
                options = {} if strategy == "auto" else {"optimizer": optimizer, "retain_graph": True}
                fabric.backward(loss, **options)
            for optimizer in losses:
                optimizer.step()
        return [parameter for network in networks for parameter in network.parameters()]

    for ours, theirs in zip(trained(ElasticFabricStrategy(job)), trained("auto"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
