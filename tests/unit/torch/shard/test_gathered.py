"""A forward pass that leaves a sharded model's parameters gathered has the next one use no old values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from tests.support.thread_group import run_ranks, thread_job

pytestmark = pytest.mark.usefixtures("node_of_one")
X = torch.arange(16.0, dtype=torch.float64).reshape(8, 2)


def losses(between: Callable[[Job, nn.Module], object]) -> list[float]:
    """Trains, and calls something between each backward pass and the optimizer's step."""
    torch.manual_seed(1)
    job = run_ranks(1, lambda group: thread_job(group, 4, 4))[0]
    model: nn.Module = nn.Linear(2, 1).double()
    fully_shard(model)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001))
    found = []
    for _ in job.epochs(3):
        for (x,) in job.dataloader(TensorDataset(X)):
            job.backward(model(x).square().mean())
            between(job, model)
            optimizer.step()
            found.append(job.loss)
    return found


def evaluated(job: Job, model: nn.Module) -> None:
    job.evaluate(lambda x: {"sum": model(x).sum()}, job.dataloader(TensorDataset(X)))


def gathered(job: Job, model: nn.Module) -> None:
    job.gather(lambda x: model(x), job.dataloader(TensorDataset(X)))


def by_the_script(job: Job, model: nn.Module) -> None:
    with torch.no_grad():
        model(X)


@pytest.mark.parametrize("between", [evaluated, gathered, by_the_script])
def test_what_runs_before_the_optimizer_leaves_nothing_old(between: Callable[[Job, nn.Module], object]) -> None:
    plain = losses(lambda job, model: None)
    assert plain[-1] < plain[0]
    assert losses(between) == plain
