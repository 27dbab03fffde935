"""What a job refuses of a sharded model, at the call that brings it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from elastic_launcher.torch.shard.node import find_node
from tests.support.thread_group import run_ranks, thread_job

pytestmark = pytest.mark.usefixtures("node_of_one")


def job_alone() -> Job:
    return run_ranks(1, lambda group: thread_job(group, 4, 4))[0]


def sharded() -> nn.Module:
    model = nn.Linear(2, 1)
    fully_shard(model)
    return model


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu")


def finds_its_limit(job: Job) -> None:
    job._session.shares.finds_limit = True
    job.prepare(sharded())


def sharded_late(job: Job) -> None:
    model = job.prepare(nn.Linear(2, 1))
    fully_shard(model)
    train(job, job.prepare(torch.optim.SGD(model.parameters(), lr=0.1)))


def optimizer_made_before(job: Job) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    train(job, job.prepare(model, optimizer)[1])


def train(job: Job, optimizer: torch.optim.Optimizer) -> None:
    for _ in job.dataloader(TensorDataset(torch.ones(4, 2))):
        raise AssertionError("it began to train")


def has_virtual_ranks(job: Job) -> None:
    job._session.virtual_ranks = 4
    job.prepare(sharded())


def measures_noise(job: Job) -> None:
    job._session.measure_noise()
    job.prepare(sharded())


def measures_noise_later(job: Job) -> None:
    job.prepare(sharded())
    job._session.measure_noise()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda job: job.prepare(nn.Linear(2, 1), sharded()), "shard all of them by fully_shard"),
        (lambda job: job.prepare(sharded(), nn.Linear(2, 1)), "shard all of them by fully_shard"),
        (lambda job: job.prepare(sharded(), scaler()), "a GradScaler is not supported with a sharded model"),
        (lambda job: job.prepare(scaler(), sharded()), "a GradScaler is not supported with a sharded model"),
        (sharded_late, "a model was sharded after job.prepare: call fully_shard"),
        (optimizer_made_before, r"Make the optimizer after it, of model\.parameters\(\) alone"),
        (has_virtual_ranks, "deterministic= is not supported with a sharded model"),
        (finds_its_limit, 'max_batch_per_gpu="auto" is not supported with a sharded model'),
        (measures_noise, "an adaptive batch is not supported with a sharded model"),
        (measures_noise_later, "an adaptive batch, is not supported with a sharded model"),
    ],
)
def test_a_job_refuses(act: Callable[[Job], Any], words: str) -> None:
    with pytest.raises((TypeError, RuntimeError), match=words):
        act(job_alone())


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.set_requires_gradient_sync(False),
        lambda model: model[0].set_requires_gradient_sync(False, recurse=False),
        lambda model: model.set_gradient_divide_factor(2.0),
    ],
)
def test_a_prepared_model_sums_its_gradient_in_each_pass(change: Callable[[Any], None]) -> None:
    """A script that accumulates by itself would train nothing: its gradients never come."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    fully_shard(model[0])
    fully_shard(model)
    job_alone().prepare(model)
    with pytest.raises(RuntimeError, match="of a prepared model would change its gradient.*Leave the call out"):
        change(model)


def test_a_model_that_was_told_not_to_sum_before_does_so_once_it_is_prepared() -> None:
    job, model = job_alone(), sharded()
    model.set_requires_gradient_sync(False)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for (x,) in job.dataloader(TensorDataset(torch.ones(4, 2))):
        job.backward(model(x).sum())
        assert all(parameter.grad.to_local().any() for parameter in model.parameters())
        optimizer.step()


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda job, loss, optimizer: job.backward(None, weight=0), "needs a loss with a gradient"),
        (lambda job, loss, optimizer: job.backward(loss.detach(), weight=0), "needs a loss with a gradient"),
        (lambda job, loss, optimizer: job.backward(loss, optimizer=optimizer), "takes no optimizer"),
        (lambda job, loss, optimizer: job.backward(loss.bfloat16()), "the loss of a sharded model is bfloat16"),
    ],
)
def test_backward_refuses(give: Callable[..., None], words: str) -> None:
    job = job_alone()
    model, optimizer = job.prepare(model := sharded(), torch.optim.SGD(model.parameters(), lr=0.1))
    for (x,) in job.dataloader(TensorDataset(torch.ones(4, 2))):
        with pytest.raises(ValueError, match=words):
            give(job, model(x).mean(), optimizer)
        return


def test_a_group_of_several_nodes_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter([[b"1", b"2"]])
    monkeypatch.setattr(
        "elastic_launcher.torch.collectives.group.Group.all_gather_bytes", lambda group, mine: next(names)
    )
    with pytest.raises(TypeError, match=r"make it by elastic\.init_node_group"):
        find_node(lambda reason: None)


def test_a_group_that_was_not_made_for_the_node_is_refused_by_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_NODE", "1")
    with pytest.raises(TypeError, match=r"not made for this node alone; make it by elastic\.init_node_group"):
        find_node(lambda reason: None)


def test_several_nodes_of_plain_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(TypeError, match=r"has 1 ranks, and this node 2; .* under plain torchrun .* trains on one"):
        find_node(lambda reason: None)
