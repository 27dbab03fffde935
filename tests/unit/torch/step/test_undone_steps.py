"""What forward passes have changed goes with an attempt at a step that is dropped, and with no step that is done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.membership.reconcile import At, NextAction, RecoveryPlan
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, SAMPLES, SEED, X, Y, linear

BATCH = 10
STEPS = -(-SAMPLES // BATCH)


class Parts:
    """A model with batch norm, and sums over each epoch's samples."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 3)).double()
        self.model, self.optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.total, self.most = torch.zeros((), dtype=torch.float64), torch.zeros(())
        job.track(lambda: [self.total], op="sum")
        job.track({"most": self.most}, op="max")

    def values(self) -> list[torch.Tensor]:
        buffers = self.model.state_dict()
        return [value.clone() for value in (self.total, self.most, *buffers.values())]


def recover_alone(job: Job) -> Callable[..., RecoveryPlan]:
    def recover(error: Exception, at: At) -> RecoveryPlan:
        job._engine.recovery._resizer.drop()
        return RecoveryPlan(NextAction.AGAIN, 0, takes=False)

    return recover


def break_between_steps(job: Job, group: ThreadGroup, lost: set[int]) -> None:
    """Has a lost peer show when these steps are about to begin, with one rank."""

    def check() -> None:
        micro = job._session.micro
        if (micro is None or micro.rehearsal) and job.step in lost:
            lost.discard(job.step)
            raise GroupError("a peer was lost")

    group.check, job._engine.recovery.recover = check, recover_alone(job)  # type: ignore[method-assign]


def trained(lost: set[int]) -> list[list[torch.Tensor]]:
    """Trains two epochs, and returns the values after each step."""

    def body(group: ThreadGroup) -> list[list[torch.Tensor]]:
        job = thread_job(group, BATCH, BATCH)
        parts, seen = Parts(job), []
        loader = job.dataloader(TensorDataset(X, Y), seed=SEED)
        break_between_steps(job, group, lost)
        for _ in job.epochs(2):
            parts.total = torch.zeros((), dtype=torch.float64)  # the script begins its sums anew with each epoch
            parts.most.fill_(-1.0)
            for x, y in loader:
                parts.total = parts.total + x.sum()
                parts.most.copy_(torch.maximum(parts.most, x.max().float()))
                job.backward(nn.functional.cross_entropy(parts.model(x), y))
                parts.optimizer.step()
                seen.append(parts.values())
        return seen

    return run_ranks(1, body)[0]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(1, id="after the first step"),
        pytest.param(STEPS - 1, id="before the last step of an epoch"),
        pytest.param(STEPS, id="before the first step of an epoch, after the script's reset"),
    ],
)
def test_a_step_that_is_done_is_not_undone(step: int) -> None:
    wanted, found = trained(set()), trained({step})
    assert len(found) == len(wanted) == 2 * STEPS
    for mine, others in zip(found, wanted, strict=True):
        assert all(map(torch.equal, mine, others))


def test_a_dropped_attempt_leaves_nothing_of_what_its_body_did_afterwards() -> None:
    """The first of two reductions breaks off, and the body goes on to its second forward pass."""

    def body(group: ThreadGroup, breaks: bool) -> list[torch.Tensor]:
        job = thread_job(group, BATCH, BATCH)
        model = nn.Sequential(nn.BatchNorm1d(FEATURES), linear(3)).double()
        optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
        model, *optimizers = job.prepare(model, *optimizers)
        count = torch.zeros((), dtype=torch.int64)
        job.track([count], op="sum")
        reducer, reduce, left = job._session.reducer, job._session.reducer.reduce, int(breaks)
        reports, formations = SimpleNamespace(put=lambda report: None), SimpleNamespace(ready=lambda: None)
        job._session.member = SimpleNamespace(reports=reports, formations=formations)  # type: ignore[assignment]

        def broken(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise GroupError("a peer was lost")
            return reduce(*arguments, **named)

        reducer.reduce, job._engine.recovery.recover = broken, recover_alone(job)  # type: ignore[method-assign]
        for x, _ in job.dataloader(TensorDataset(X[:BATCH], Y[:BATCH]), seed=SEED):
            for optimizer in optimizers:
                count += len(x)
                job.backward(model(x).square().mean(), optimizer=optimizer)
            for optimizer in optimizers:
                optimizer.step()
        return [count, *model.state_dict().values()]

    wanted, found = (run_ranks(1, partial(body, breaks=breaks))[0] for breaks in (False, True))
    assert int(found[0]) == 4 * BATCH
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_flag_that_the_rehearsal_or_a_dropped_attempt_sets_is_put_back(dtype: torch.dtype) -> None:
    def body(group: ThreadGroup) -> list[bool]:
        job, seen = thread_job(group, BATCH, BATCH), []
        model = linear(3)
        model.register_buffer("begun", torch.zeros((), dtype=dtype))
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        session, engine = job._session, job._engine
        reducer, reduce = session.reducer, session.reducer.reduce

        def forward(x: torch.Tensor) -> torch.Tensor:
            seen.append(bool(model.begun))
            model.begun.fill_(True)
            return model(x).square().mean()

        def broken(*arguments: Any, **named: Any) -> Any:
            reducer.reduce = reduce  # type: ignore[method-assign]
            raise GroupError("a peer was lost")

        def admit() -> bool:
            session.membership = membership
            return True

        membership, session.membership = session.membership, None
        engine.admit = admit  # type: ignore[method-assign]
        reducer.reduce, engine.recovery.recover = broken, recover_alone(job)  # type: ignore[method-assign]
        for (x,) in job.dataloader(TensorDataset(X[: 2 * BATCH]), seed=SEED):
            job.backward(forward(x))
            optimizer.step()
        return seen

    rehearsed = [False, False]  # each try of the rehearsal begins as the first step does
    assert run_ranks(1, body) == [[*rehearsed, False, False, True]]


def test_what_a_rank_took_over_after_its_rehearsal_stays() -> None:
    def body(group: ThreadGroup) -> list[torch.Tensor]:
        job = thread_job(group, BATCH, BATCH)
        parts, session, engine = Parts(job), job._session, job._engine
        loader = job.dataloader(TensorDataset(X, Y), seed=SEED)
        break_between_steps(job, group, {0})
        membership, session.membership = session.membership, None
        assert engine.begin_loop(loader)
        for micro in engine.rehearse():
            engine.begin_micro_batch(micro)
            parts.total = parts.total + 1.0
            parts.model[0].running_mean += 1.0
            engine.backward(parts.model(X[:2]).sum())
        session.membership = membership
        assert [float(parts.total), float(parts.model[0].running_mean.sum())] == [0.0, 0.0]
        for tensor in (parts.total, parts.most, parts.model[0].running_mean):
            tensor.fill_(7.0)  # as a peer or a checkpoint has it
        assert engine.begin_step()
        return [parts.total, parts.most, parts.model[0].running_mean]

    assert all(bool((tensor == 7.0).all()) for tensor in run_ranks(1, body)[0])
