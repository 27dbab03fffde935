"""What a job refuses, at the call that brings it, in a message that names what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from elastic_launcher.torch.job import Job
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, X, Y

DATA = TensorDataset(X[:8], Y[:8])


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(X)


class Own(torch.optim.LBFGS):
    """A script's own kind of it."""


def linear() -> nn.Linear:
    return nn.Linear(FEATURES, 3).double()


def job_alone() -> Job:
    return run_ranks(1, lambda group: thread_job(group, 4, 4))[0]


@pytest.fixture
def torch_world() -> Iterator[None]:
    """Torch's own default group, of one rank, as a script that shards or wraps would have made it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (lambda: torch.optim.LBFGS(linear().parameters()), ["LBFGS", "first-order optimizer"]),
        (lambda: Own(linear().parameters()), ["LBFGS", "first-order optimizer"]),
        (lambda: nn.Embedding(5, 3, sparse=True), ["the model", "Embedding(..., sparse=False)"]),
        (lambda: nn.Sequential(nn.EmbeddingBag(5, 3, sparse=True)), ["0 makes", "EmbeddingBag(..., sparse=False)"]),
        (lambda: nn.Sequential(linear(), nn.SyncBatchNorm(3)), ["1 is a SyncBatchNorm", "BatchNorm2d"]),
        (
            lambda: nn.Sequential(nn.LazyLinear(3)),
            ["0.weight is not initialised", "one forward pass", "before the optim"],
        ),
        (lambda: nn.LazyBatchNorm1d(affine=False), ["running_mean is not initialised", "one forward pass"]),
        (
            lambda: torch.optim.SGD(nn.LazyLinear(3).parameters(), lr=0.1),
            ["parameter 0 of SGD is not initialised", "one forward pass"],
        ),
        (lambda: nn.DataParallel(linear()), ["DataParallel", "bare module"]),
        (lambda: DataLoader(DATA), ["DataLoader", "job.dataloader"]),
        (lambda: linear().parameters(), ["generator", "models, optimizers, schedulers and GradScaler"]),
    ],
)
def test_prepare_refuses(thing: Callable[[], Any], said: list[str]) -> None:
    with pytest.raises(TypeError) as raised:
        job_alone().prepare(thing())
    assert [text for text in said if text not in str(raised.value)] == [], raised.value


def data_parallel() -> nn.Module:
    return nn.parallel.DistributedDataParallel(linear())


def with_a_dtensor() -> nn.Module:
    model = nn.Sequential(linear())
    weight = distribute_tensor(model[0].weight.detach(), init_device_mesh("cpu", (1,)), [Shard(0)])
    model[0].weight = nn.Parameter(weight)
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (data_parallel, ["DistributedDataParallel", "bare module"]),
        (with_a_dtensor, ["not sharded by fully_shard as a whole", "tensor parallelism"]),
    ],
)
@pytest.mark.usefixtures("torch_world")
def test_prepare_refuses_what_torch_has_wrapped_or_sharded(make: Callable[[], nn.Module], said: list[str]) -> None:
    model = make()
    with pytest.raises(TypeError) as raised:
        job_alone().prepare(model)
    assert [text for text in said if text not in str(raised.value)] == [], raised.value


@pytest.mark.parametrize(
    ("data", "options", "kind", "said"),
    [
        (Endless(), {}, TypeError, ["Endless", "map-style data set", "__getitem__"]),
        (DataLoader(DATA), {}, TypeError, ["a loader already", "`dataset`"]),
        (iter([1]), {}, TypeError, ["no __len__ and no __getitem__", "map-style data set"]),
        ([], {}, ValueError, ["data set (list) is empty", "at least one sample"]),
        (X[:3], {"drop_last": True}, ValueError, ["3 samples", "global batch of 4", "drop_last"]),
        (DATA, {"sampler": [0]}, TypeError, ["job.dataloader takes no sampler=", "shuffle= and seed="]),
        (DATA, {"batch_sampler": [[0]]}, TypeError, ["job.dataloader takes no batch_sampler=", "shuffle= and seed="]),
        (DATA, {"batch_size": 2}, TypeError, ["job.dataloader takes no batch_size=", "init()"]),
        (DATA, {"generator": torch.Generator()}, TypeError, ["job.dataloader takes no generator=", "seed="]),
        (DATA, {"persistent_workers": False}, TypeError, ["no persistent_workers=False", "leave it out"]),
        (DATA, {"multiprocessing_context": "spawn"}, TypeError, ["no multiprocessing_context=", "leave it out"]),
        (DATA, {"foo": 1}, TypeError, ["job.dataloader takes no foo=", "it takes shuffle, seed, drop_last"]),
        (DATA, {"num_workers": -1}, ValueError, ["num_workers is -1", "0 or more"]),
        (DATA, {"num_workers": "2"}, ValueError, ["num_workers is '2'", "a whole number, 0 or more"]),
        (DATA, {"prefetch_factor": 0}, ValueError, ["prefetch_factor is 0", "1 or more"]),
        (DATA, {"timeout": -1}, ValueError, ["timeout is -1", "0 seconds"]),
    ],
)
def test_dataloader_refuses(data: Any, options: dict[str, Any], kind: type[Exception], said: list[str]) -> None:
    with pytest.raises(kind) as raised:
        job_alone().dataloader(data, **options)
    assert [text for text in said if text not in str(raised.value)] == [], raised.value


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("done", "job.log: the values are str; give a dict of numbers by name"),
        (0.5, "job.log: the values are float; give a dict of numbers by name"),
        ([("loss", 0.5)], "job.log: the values are list; give a dict of numbers by name"),
        ({"loss": "low"}, "job.log: 'loss' is str; it must be a number"),
    ],
)
def test_job_log_refuses_what_has_no_numbers_by_name(values: Any, said: str) -> None:
    with pytest.raises(TypeError) as raised:
        job_alone().log(values)
    assert str(raised.value) == said


def test_workers_live_on_as_a_script_may_say() -> None:
    assert job_alone().dataloader(DATA, persistent_workers=True).size == len(DATA)


def test_no_prefetch_factor_is_the_default_one_as_in_torch() -> None:
    assert job_alone().dataloader(DATA, num_workers=0, prefetch_factor=None).ahead == 0


def test_the_length_of_a_loader_is_refused_and_tells_the_numbers_that_there_are() -> None:
    loader = job_alone().dataloader(DATA)
    with pytest.raises(TypeError, match="loader.steps_per_epoch is the number of optimizer steps"):
        len(loader)
    assert loader


def test_a_loop_over_a_test_set_is_refused_and_names_the_call() -> None:
    with pytest.raises(RuntimeError, match=r"a test set say, is job.evaluate\(fn, loader\)"):
        in_the_loop(lambda job, model, optimizer, loss: None)


def in_the_loop(body: Callable[[Job, nn.Module, Any, torch.Tensor], None], model: nn.Module | None = None) -> None:
    """Runs ``body(job, model, optimizer, loss)`` as the loop body of a training with one rank."""

    def train(group: ThreadGroup) -> None:
        job = thread_job(group, 4, 4)
        module = linear() if model is None else model
        optimizer = job.prepare(torch.optim.SGD(module.parameters(), lr=0.1))
        for x, _ in job.dataloader(DATA):
            body(job, module, optimizer, module(x).sum())

    run_ranks(1, train)


def other_loader(job: Job, *_: Any) -> None:
    next(iter(job.dataloader(DATA)))


def closure(job: Job, model: nn.Module, optimizer: Any, loss: torch.Tensor) -> None:
    job.backward(loss)
    optimizer.step(lambda: loss)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (lambda job, m, o, loss: job.backward(loss.expand(2)), ValueError, ["scalar loss", "shape (2,)"]),
        (lambda job, m, o, loss: job.backward(1.0), ValueError, ["scalar loss", "float"]),
        (lambda job, m, o, loss: job.backward(loss, weight=-1), ValueError, ["weight is -1.0", "0 or more"]),
        (
            lambda job, m, o, loss: job.backward(loss, optimizer=torch.optim.SGD(m.parameters())),
            ValueError,
            ["not prepared", "job.prepare(optimizer)"],
        ),
        (lambda job, m, o, loss: o.step(), RuntimeError, ["before job.backward(loss)"]),
        (closure, ValueError, ["optimizer.step(closure)", "then optimizer.step()"]),
        (lambda *_: None, RuntimeError, ["without job.backward(loss)", "once for each micro-batch"]),
        (other_loader, RuntimeError, ["two training loaders", "StackDataset or ConcatDataset"]),
    ],
)
def test_the_loop_refuses(body: Callable[..., None], kind: type[Exception], said: list[str]) -> None:
    with pytest.raises(kind) as raised:
        in_the_loop(body)
    assert [text for text in said if text not in str(raised.value)] == [], raised.value


def test_a_sparse_gradient_of_the_scripts_own_is_refused_in_backward() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 3, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.embedding(torch.zeros(len(x), dtype=torch.long), self.weight, sparse=True)

    with pytest.raises(TypeError, match=r"shaped \(5, 3\), has a sparse gradient; use sparse=False"):
        in_the_loop(lambda job, m, o, loss: job.backward(loss), Table())


def test_backward_outside_the_loop_and_a_loop_without_an_optimizer_are_refused() -> None:
    job = job_alone()
    with pytest.raises(RuntimeError, match=r"job\.backward\(\) was called outside the training loop"):
        job.backward(torch.ones((), requires_grad=True))
    with pytest.raises(RuntimeError, match=r"no optimizer was prepared: call job\.prepare\(model, optimizer\)"):
        next(iter(job.dataloader(DATA)))


def test_what_a_script_by_itself_keeps_in_job_state_is_refused_as_with_ranks_where_it_cannot_travel() -> None:
    def body(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        job.state["seen"] = {1, 2}
        job.backward(loss)
        optimizer.step()

    with pytest.raises(TypeError, match=r"job\.state\.seen: builtins\.set cannot be carried.*joiners and checkpoints"):
        in_the_loop(body)
