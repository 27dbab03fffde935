"""With virtual ranks a training comes to the same bits at any number of ranks.

Ranks are threads here (`thread_group`), processes in tests/local.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job

VIRTUAL = 4
BATCH, MOST, SAMPLES, FEATURES = 24, 4, 62, 6  # an epoch ends with a step of 14 samples
X = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (SAMPLES,), generator=torch.Generator().manual_seed(2))


def build(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Makes a model with batch norm and dropout, whose gradients are rounded differently in any other order."""
    torch.manual_seed(3)
    layers = (nn.Linear(FEATURES, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Dropout(0.3), nn.Linear(33, 3))
    return nn.Sequential(*layers).to(dtype)


@dataclass
class Result:
    """What a rank's training came to.

    Attributes:
        state: Weights and buffers.
        losses: `job.loss` of each step.
        sums: Of the evaluation.
        total: What `job.track` has summed up.
    """

    state: dict[str, torch.Tensor]
    losses: list[float] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    total: float = 0.0


Step = Callable[[Job, nn.Module, torch.Tensor, torch.Tensor], None]


def plain(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    job.backward(functional.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y))


def train(
    world_size: int,
    virtual_ranks: int = VIRTUAL,
    step: Step = plain,
    model: Callable[[], nn.Module] = build,
    batch: int = BATCH,
) -> list[Result]:
    models = [model() for _ in range(world_size)]

    def body(group: ThreadGroup) -> Result:
        job = thread_job(group, batch, MOST, seed=5, virtual_ranks=virtual_ranks)
        mine = models[group.rank]
        mine, optimizer = job.prepare(mine, torch.optim.AdamW(mine.parameters(), lr=0.02))
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=7)
        total = torch.zeros(())
        job.track({"total": total}, op="sum")
        result = Result({})
        for _ in job.epochs(2):
            for x, y in loader:
                total += x.abs().sum()
                step(job, mine, x, y)
                optimizer.step()
                if job.sync_gradients:
                    result.losses.append(job.loss)
        mine.eval()
        dtype = next(mine.parameters()).dtype
        found = job.evaluate(
            lambda x, y: {"loss": functional.cross_entropy(mine(x.to(dtype)).float(), y, reduction="sum")}, loader
        )
        result.sums, result.total, result.state = found, total.item(), mine.state_dict()
        return result

    return run_ranks(world_size, body)


def assert_equal(mine: Result, other: Result) -> None:
    differing = [name for name in mine.state if not torch.equal(mine.state[name], other.state[name])]
    assert differing == []
    assert mine.losses == other.losses
    assert mine.sums == other.sums
    assert mine.total == other.total


@pytest.fixture(scope="module")
def alone() -> Result:
    return train(1)[0]


@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_weights_statistics_losses_and_evaluation_are_bit_equal(alone: Result, world_size: int) -> None:
    for found in train(world_size):
        assert_equal(found, alone)


def test_without_virtual_ranks_they_are_not(alone: Result) -> None:
    """The test can tell: sums in another order, and other random numbers, come to other bits."""
    one, two = train(1, virtual_ranks=0)[0], train(2, virtual_ranks=0)[0]
    assert any(not torch.equal(one.state[name], two.state[name]) for name in one.state)
