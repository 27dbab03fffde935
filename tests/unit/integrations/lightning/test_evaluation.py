"""Ranks that share the batches of a validation get what one process gets, also where ranks are lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MaxMetric, MeanMetric, MinMetric
from torchmetrics.classification import BinaryAUROC

from elastic_launcher.integrations.lightning.evaluation import Evaluation

SAMPLES, BATCH = 47, 10  # five batches
METRICS = {"mean": MeanMetric, "most": MaxMetric, "least": MinMetric, "area": BinaryAUROC, "rare": CatMetric}


class Ranks:
    """Brings values of threads together, each of which plays a rank."""

    def __init__(self, count: int) -> None:
        self.alive = list(range(count))
        self._given: dict[int, Any] = {}
        self._results: dict[int, Any] = {}
        self._changed = threading.Condition()

    def lose(self, member: int) -> None:
        """Takes a rank away."""
        with self._changed:
            self.alive.remove(member)
            self._complete()

    def exchange(self, member: int, value: Any) -> tuple[list[Any], list[int]]:
        """Returns what all living ranks have given, and which those are."""
        with self._changed:
            self._given[member] = value
            self._complete()
            assert self._changed.wait_for(lambda: member in self._results, 60)
            return self._results.pop(member)

    def _complete(self) -> None:
        if self._given and set(self._given) == set(self.alive):
            given = [self._given.pop(member) for member in self.alive]
            self._results.update(dict.fromkeys(self.alive, (given, list(self.alive))))
            self._changed.notify_all()


class Member:
    """The part of a job that an evaluation asks."""

    def __init__(self, ranks: Ranks, member: int, count: int) -> None:
        self._ranks, self._member = ranks, member
        self._known = list(range(count))

    @property
    def rank(self) -> int:
        return self._known.index(self._member)

    @property
    def world_size(self) -> int:
        return len(self._known)

    def _exchange(self, value: Any) -> list[Any]:
        given, self._known = self._ranks.exchange(self._member, value)
        return given

    def reduce(self, values: Any, op: str) -> Any:
        given = self._exchange(values)
        combine = {"sum": torch.sum, "max": torch.amax}[op]
        assert len({tuple(one) for one in given}) == 1  # the same names
        stacked = {name: torch.stack([torch.as_tensor(one[name]).double() for one in given]) for name in given[0]}
        return {name: combine(stacked[name], 0) for name in stacked}

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange(rows))


class Loop:
    """The part of Lightning's evaluation loop that an evaluation asks."""

    def __init__(self, module: nn.Module) -> None:
        connector = SimpleNamespace(_first_loop_iter=True)
        self.trainer = SimpleNamespace(
            strategy=SimpleNamespace(alike=lambda fx, name, value: value, show_rank=lambda: None, reduce=None),
            sanity_checking=False,
            training=True,
            lightning_module=module,
            _logger_connector=connector,
        )
        self.max_batches = [float("inf")]
        self._combined_loader = None
        self._is_sequential = True
        self._results: Any = None

    def _store_dataloader_outputs(self) -> None:
        pass

    def _evaluation_step(self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: None) -> None:
        x, y = batch
        for kind in ("mean", "sum", "max", "min"):
            reduce_fx = getattr(torch, kind)
            options = {"on_step": False, "on_epoch": True, "batch_size": len(x), "reduce_fx": reduce_fx}
            self._results.log("validation_step", kind, reduce_fx(x), **options)
        if batch_idx == 3:  # logged for one batch alone
            self._results.log("validation_step", "fourth", x.mean(), on_epoch=True, batch_size=len(x))
        for name, metric in self.trainer.lightning_module.named_children():
            if name != "rare" or batch_idx == 3:
                metric.update(x, y) if name == "area" else metric.update(x)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(SAMPLES, generator=generator)
    return DataLoader(TensorDataset(values, torch.randint(0, 2, (SAMPLES,), generator=generator)), BATCH)


def evaluated(ranks: Ranks, member: int, count: int, lost: Mapping[int, int]) -> dict[str, float] | None:
    """Evaluates as one rank; returns what came of it, or None for one that is lost after so many batches."""
    module = nn.ModuleDict({name: metric() for name, metric in METRICS.items()})
    loop = Loop(module)
    evaluation = Evaluation(loop, Member(ranks, member, count))  # type: ignore[arg-type]
    for number, batch in enumerate(evaluation.share(data())):
        if lost.get(member) == number:
            break
        loop._evaluation_step(batch, number, 0, None)
    if member in lost:
        ranks.lose(member)
        return None
    loop._store_dataloader_outputs()
    logged = {name: float(value) for name, value in loop._results.metrics(False)["callback"].items()}
    return {**logged, **{f"metric {name}": float(metric.compute().sum()) for name, metric in module.items()}}  # type: ignore[operator]


def evaluate(count: int, lost: Mapping[int, int]) -> list[dict[str, float] | None]:
    ranks, found = Ranks(count), [None] * count

    def play(member: int) -> None:
        found[member] = evaluated(ranks, member, count, lost)  # type: ignore[call-overload]

    threads = [threading.Thread(target=play, args=(member,)) for member in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


CASES = [
    (count, lost)
    for count in (1, 2, 3, 5, 7)
    for lost in ({}, {0: 0}, {2: 1}, {1: 1, 2: 0})
    if max(lost, default=0) < count and len(lost) < count
]
"""How many ranks there are, and which are lost after how many batches."""


@pytest.mark.parametrize(("count", "lost"), CASES, ids=str)
def test_each_rank_has_the_metrics_of_all_batches(count: int, lost: dict[int, int]) -> None:
    (expected,) = evaluate(1, {})
    assert expected is not None and set(expected) == {
        "mean",
        "sum",
        "max",
        "min",
        "fourth",
        *(f"metric {one}" for one in METRICS),
    }
    x, _ = data().dataset.tensors  # type: ignore[attr-defined]
    assert expected["mean"] == pytest.approx(float(x.mean()), rel=1e-12)
    for member, found in enumerate(evaluate(count, lost)):
        if member in lost:
            assert found is None
        else:
            assert found == pytest.approx(expected, rel=1e-9)
