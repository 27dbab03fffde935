"""Tensors that forward passes change are as in one process, on any number of ranks, and undone with what is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from elastic_launcher.torch.state.tracked import Tracked
from elastic_launcher.torch.state.training_state import StateMismatch, TrainingState
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, SAMPLES, X, Y, linear

BATCH, MICRO = 10, 2
SIZES = (1, 2, 3, 7)  # with 7 ranks of 10 samples in micro-batches of two; a rank without a share comes with 12


class Metrics:
    """What a framework keeps of a training, by operation."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.mean = torch.zeros(FEATURES, dtype=dtype)
        self.total = torch.zeros((), dtype=dtype)
        self.count = torch.zeros(2, dtype=torch.int64)
        self.most = torch.full((), float("-inf"), dtype=dtype)
        self.longest = torch.tensor(-5)

    def update(self, x: torch.Tensor, y: torch.Tensor, total: bool = True) -> None:
        x = x.detach().to(self.mean.dtype)
        self.mean += 0.3 * (x.mean(0) - 0.5)  # a change that is linear in the samples, so that one process has the same
        if total:
            self.total = self.total + x.sum()
        self.count[0] += len(x)
        self.count[1] += int(y.sum())
        self.most = torch.maximum(self.most, x.max())
        self.longest = torch.maximum(self.longest, y.max() - 4)

    def track(self, job: Job) -> None:
        job.track({"mean": self.mean}, op="mean")
        job.track(lambda: {"most": self.most, "longest": self.longest}, op="max")
        job.track(lambda: [self.total, self.count], op="sum")

    def values(self) -> list[torch.Tensor]:
        return [self.mean, self.total, self.count, self.most, self.longest]


def train(
    job: Job, model: nn.Module, metrics: Metrics, update: Callable[[Job, Any, Any], bool] = lambda *_: True
) -> list[list[torch.Tensor]]:
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.dataloader(TensorDataset(X, Y), seed=7)
    metrics.track(job)
    seen = []
    for _ in job.epochs(2):
        for x, y in loader:
            metrics.update(x, y)
            loss = model(x.to(next(model.parameters()).dtype)).square().mean()
            job.backward(loss) if update(job, x, y) else job.backward(None, weight=0)
            if job.sync_gradients:
                seen.append([value.clone() for value in metrics.values()])
            optimizer.step()
    return seen


def expected(dtype: torch.dtype, counts: Callable[[torch.Tensor], torch.Tensor] | None = None) -> list[Any]:
    metrics, found = Metrics(dtype), []
    for _ in range(2):
        for start in range(0, SAMPLES, BATCH):
            x, y = X[start : start + BATCH], Y[start : start + BATCH]
            if counts is not None:
                x, y = x[counts(x)], y[counts(x)]
            metrics.update(x, y)
            found.append([value.clone() for value in metrics.values()])
    return found


def assert_close(mine: list[Any], wanted: list[Any], precision: float) -> None:
    assert len(mine) == len(wanted)
    for step, (some, others) in enumerate(zip(mine, wanted, strict=True)):
        for one, other in zip(some, others, strict=True):
            assert one.dtype == other.dtype
            assert one.double().numpy() == pytest.approx(other.double().numpy(), rel=precision, abs=precision), step


@pytest.mark.parametrize("world_size", SIZES)
@pytest.mark.parametrize(("weights", "metrics"), [(torch.float64,) * 2, (torch.float32, torch.float64)])
def test_metrics_are_those_of_one_process(world_size: int, weights: torch.dtype, metrics: torch.dtype) -> None:
    models = [linear(1, weights) for _ in range(world_size)]

    def body(group: ThreadGroup) -> list[Any]:
        return train(thread_job(group, BATCH, BATCH), models[group.rank], Metrics(metrics))

    for seen in run_ranks(world_size, body):
        assert_close(seen, expected(metrics), 1e-12)


def test_a_rank_without_a_share_and_one_that_leaves_its_micro_batch_out_leave_no_trace() -> None:
    models = [linear(1) for _ in range(3)]

    def body(group: ThreadGroup) -> tuple[list[Any], list[Any]]:
        job = thread_job(group, 2, 1)
        metrics = Metrics(torch.float64)
        out = train(job, models[group.rank], metrics, lambda job, x, y: bool(x[0, 0] > 0))
        return out, metrics.values()

    seen = run_ranks(3, body)
    kept = [number for number in range(SAMPLES) if X[number, 0] > 0]
    for rows, values in seen:
        assert values[2].tolist() == [2 * len(kept), 2 * int(Y[kept].sum())]
        assert float(values[1]) == pytest.approx(2 * float(X[kept].sum()), rel=1e-12)
        assert float(values[3]) == float(X[kept].max())
        assert all(torch.equal(a, b) for a, b in zip(rows[-1], seen[0][0][-1], strict=True))


def test_several_reductions_of_a_step_count_each_change_once() -> None:
    models = [linear(1) for _ in range(2)]

    def body(group: ThreadGroup) -> list[float]:
        job = thread_job(group, BATCH, 3)
        model = models[group.rank]
        optimizers = [torch.optim.SGD([p], lr=0.01) for p in model.parameters()]
        model, *optimizers = job.prepare(model, *optimizers)
        total, seen = torch.zeros((), dtype=torch.float64), []
        job.track([total], op="sum")
        for _ in job.epochs(1):
            for x, _ in job.dataloader(TensorDataset(X, Y), seed=7):
                for optimizer in optimizers:
                    total += x.sum()
                    job.backward(model(x).square().mean(), optimizer=optimizer)
                    optimizer.step()
                if job.sync_gradients:
                    seen.append(float(total))
        return seen

    sums = [2 * float(X[: start + BATCH].sum()) for start in range(0, SAMPLES, BATCH)]
    assert run_ranks(2, body) == [[pytest.approx(one, rel=1e-12) for one in sums]] * 2


def test_a_tensor_that_comes_in_a_forward_pass_counts_from_nothing() -> None:
    models = [linear(1) for _ in range(2)]

    def body(group: ThreadGroup) -> list[Any]:
        job = thread_job(group, BATCH, MICRO)
        sums: dict[str, torch.Tensor] = {}
        model, optimizer = job.prepare(models[group.rank], torch.optim.SGD(models[group.rank].parameters(), lr=0.01))
        job.track(lambda: sums, op="sum")
        for _ in job.epochs(1):
            for x, _ in job.dataloader(TensorDataset(X, Y), seed=7):
                sums["x"] = sums.get("x", torch.zeros(FEATURES, dtype=torch.float64)) + x.sum(0)
                job.backward(model(x).square().mean())
                optimizer.step()
        return sums["x"].tolist()

    assert run_ranks(2, body) == [pytest.approx(X.sum(0).tolist(), rel=1e-12)] * 2


def test_a_largest_value_that_falls_is_that_of_the_ranks_with_samples() -> None:
    """Of each step's batch alone, say: a rank without samples keeps that of the step before out."""

    def body(group: ThreadGroup) -> torch.Tensor:
        job, model, most = thread_job(group, 1, 1), linear(1), torch.zeros((), dtype=torch.float64)
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        job.track([most], op="max")
        for _ in job.epochs(1):
            for (x,) in job.dataloader(TensorDataset(X[:8])):
                most.copy_(x.max())
                job.backward(model(x).square().mean())
                optimizer.step()
        return most

    for found in run_ranks(3, body):
        assert found == X[7].max()


def test_no_number_spreads_as_the_largest() -> None:
    models = [linear(1, torch.float32) for _ in range(2)]

    def body(group: ThreadGroup) -> float:
        job = thread_job(group, 2, 1)
        model, optimizer = job.prepare(models[group.rank], torch.optim.SGD(models[group.rank].parameters(), lr=0.01))
        most = torch.zeros(())
        job.track([most], op="max")
        for x, _ in job.dataloader(TensorDataset(X[:2], Y[:2])):
            most.copy_(torch.tensor(float("nan")) * (-1 if group.rank else 0) if group.rank else torch.tensor(3.0))
            job.backward(model(x.float()).mean())
            optimizer.step()
        return float(most)

    assert all(most != most for most in run_ranks(2, body))


@pytest.mark.parametrize(
    ("tensors", "op", "kind", "said"),
    [
        ([torch.zeros(2)], "median", ValueError, "op is 'median'; it must be mean, sum or max"),
        ({"n": torch.zeros(2, dtype=torch.int64)}, "mean", TypeError, r"'n' is int64\[2\]; op='mean' takes a dense"),
        ([torch.zeros(2, dtype=torch.bool)], "sum", TypeError, r"'0' is bool\[2\]; op='sum' takes a dense tensor"),
        ([1.0], "sum", TypeError, "'0' is float; it must be a tensor"),
        (3, "sum", TypeError, "takes a dict or a list of tensors, or a function that returns one, got 3"),
        ([nn.Parameter(torch.zeros(2))], "sum", ValueError, r"'0' is trained \(requires_grad\)"),
    ],
)
def test_what_can_not_be_tracked_is_refused(tensors: Any, op: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        Tracked().add(tensors, op)


def test_tensors_are_tracked_from_a_loop_on_and_keep_their_shape() -> None:
    def grows(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        model = linear(1)
        model, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        kept = [torch.zeros(1)]
        job.track(lambda: kept, op="sum")
        for x, _ in job.dataloader(TensorDataset(X, Y)):
            with pytest.raises(RuntimeError, match="job.track was called in a training loop; call it before"):
                job.track([torch.zeros(1)])
            kept[0] = torch.zeros(2)
            job.backward(model(x).mean())

    with pytest.raises(RuntimeError, match=r"the tensor 0.0 given to job.track was float32\[1\] when the step began"):
        run_ranks(1, grows)


@pytest.mark.parametrize("keep_own", [False, True], ids=["a joiner", "one that keeps its own objects"])
def test_values_are_handed_over_as_copies(keep_own: bool) -> None:
    def build(value: float, name: str = "sum") -> tuple[torch.Tensor, TrainingState]:
        tensor, tracked = torch.full((2,), value), Tracked()
        tracked.add({name: tensor}, "sum")
        return tensor, TrainingState(tracked=tracked)

    (theirs, sender), (mine, receiver) = build(3.0), build(5.0)
    captured = sender.capture()
    theirs += 1.0
    receiver.finish(captured.header, captured.tensors, keep_own)
    assert mine.tolist() == [3.0, 3.0]
    receiver.finish({**captured.header, "tracked": ["dict", []]}, captured.tensors)
    assert mine.tolist() == [3.0, 3.0]
    with pytest.raises(StateMismatch, match=r"job.track does not take .*: 0.sum there, 0.other here"):
        build(5.0, "other")[1].finish(captured.header, captured.tensors)


def test_values_of_another_shape_are_not_spread_over_ours() -> None:
    mine, theirs = Tracked(), Tracked()
    mine.add({"seen": torch.zeros(3)}, "sum")
    theirs.add({"seen": torch.ones(())}, "sum")
    with pytest.raises(ValueError, match=r"^0\.seen is float32\[\] there, float32\[3\] here$"):
        mine.load_state_dict(theirs.state_dict())
    assert mine.tensors()[0].tolist() == [0, 0, 0]
