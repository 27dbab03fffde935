"""A step that broke off in the second of its reductions: done again it is the same one, or all restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.membership.reconcile import At, NextAction, RankStatus, RecoveryPlan
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, SEED, X, Y


class Parts:
    """Two models, each with an optimizer, and a scaler, which may be switched off."""

    def __init__(self, job: Job, *, scales: bool = True) -> None:
        torch.manual_seed(0)
        first, second = nn.Linear(FEATURES, FEATURES).double(), nn.Linear(FEATURES, 3).double()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scales)
        self.first, self.second, *self.optimizers, self.scaler = job.prepare(first, second, *optimizers, scaler)


Body = Callable[[Job, Parts, torch.Tensor, torch.Tensor], None]


def unscaled_first(job: Job, parts: Parts, x: torch.Tensor, y: torch.Tensor) -> None:
    """Unscales each gradient when it is there, and steps in the end."""
    scaler = parts.scaler
    one, two = parts.optimizers
    job.backward(scaler.scale(functional.cross_entropy(parts.second(x), y)), optimizer=two)
    scaler.unscale_(two)
    job.backward(scaler.scale(parts.first(x).square().mean()), optimizer=one)
    scaler.unscale_(one)
    scaler.step(two)
    scaler.step(one)
    scaler.update()


def in_turn(job: Job, parts: Parts, x: torch.Tensor, y: torch.Tensor) -> None:
    """Steps the first optimizer with a part of the gradient that the second one uses."""
    job.backward(functional.cross_entropy(parts.second(parts.first(x)), y))
    parts.optimizers[0].step()
    job.backward(parts.second(x).square().mean())
    parts.optimizers[1].step()


def apart(job: Job, parts: Parts, x: torch.Tensor, y: torch.Tensor) -> None:
    """Has each optimizer step with a gradient of its own, which stays until the next step."""
    for model, optimizer in zip((parts.first, parts.second), parts.optimizers, strict=True):
        job.backward(model(x).square().mean(), optimizer=optimizer)
        optimizer.step()


def trained(body: Body, breaks: bool, *, scales: bool = True) -> tuple[list[torch.Tensor], int]:
    """Trains two steps on one rank; returns the weights, and how often was reduced.

    Args:
        body: Of the loop.
        breaks: Whether the second reduction breaks off, and the rank finds back to its peers.
        scales: Whether the scaler does anything: one for CUDA does not where there is none.
    """

    def run(group: ThreadGroup) -> tuple[list[torch.Tensor], int]:
        job = thread_job(group, 4, 4)
        parts = Parts(job, scales=scales)
        reducer, recovery = job._session.reducer, job._engine.recovery
        reduce, reductions = reducer.reduce, 0

        def broken(*arguments: Any, **named: Any) -> Any:
            nonlocal reductions
            reductions += 1
            if breaks and reductions == 2:
                raise GroupError("a peer was lost")
            return reduce(*arguments, **named)

        def recover(error: Exception, at: At) -> RecoveryPlan:
            recovery._resizer.drop()
            return RecoveryPlan(NextAction.AGAIN, 0, takes=False)

        reducer.reduce, recovery.recover = broken, recover  # type: ignore[method-assign]
        for _ in job.epochs(1):
            for x, y in job.dataloader(TensorDataset(X[:8], Y[:8]), seed=SEED):
                body(job, parts, x, y)
        return [parts.first.weight.detach(), parts.second.weight.detach()], reductions

    return run_ranks(1, run)[0]


@pytest.mark.parametrize(
    ("body", "again", "scales"),
    [
        pytest.param(unscaled_first, 2, True, id="unscaled"),
        pytest.param(unscaled_first, 2, False, id="switched-off"),
        pytest.param(apart, 1, True, id="apart"),
    ],
)
def test_a_step_that_breaks_off_between_two_optimizers_is_the_same_one_when_it_is_done_again(
    body: Body, again: int, scales: bool
) -> None:
    wanted, reductions = trained(body, breaks=False, scales=scales)
    found, more = trained(body, breaks=True, scales=scales)
    assert more == reductions + again
    assert all(map(torch.equal, found, wanted))


def test_where_an_optimizer_has_stepped_and_another_ones_gradient_is_lost_the_rank_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def left(reason: str) -> None:
        raise SystemExit(reason)

    monkeypatch.setattr("elastic_launcher.torch.session.leave", left)
    with pytest.raises(SystemExit, match="the gradient that another needs is lost"):
        trained(in_turn, breaks=True)


def test_a_scaler_whose_update_was_taken_over_begins_the_next_step_like_any_other() -> None:
    def body(group: ThreadGroup) -> int:
        job = thread_job(group, 4, 4)
        parts = Parts(job)
        scaler = parts.scaler
        for _ in job.epochs(1):
            for x, _ in job.dataloader(TensorDataset(X[:8], Y[:8]), seed=SEED):
                for model, optimizer in zip((parts.first, parts.second), parts.optimizers, strict=True):
                    job.backward(scaler.scale(model(x).square().mean()), optimizer=optimizer)
                    if optimizer is parts.optimizers[1] and not job._session.position.step:
                        job._session.adopted({}, ended=True)
                    scaler.step(optimizer)
                scaler.update()
        return job.step

    assert run_ranks(1, body) == [2]


@pytest.mark.parametrize("scales", [False, True])
def test_hooks_of_a_step_that_a_peer_has_done_change_what_is_the_scripts_own_alone(scales: bool) -> None:
    """An average of the weights moves once; the weights and the rate are the peer's already, after its hooks."""

    def body(group: ThreadGroup) -> tuple[list[float], list[float], list[float]]:
        job = thread_job(group, 4, 4)
        model = nn.Linear(FEATURES, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        job.prepare(model, optimizer, scaler)
        sums, rates, seen = [], [], []

        def after(stepped: torch.optim.Optimizer, *_: Any) -> None:
            with torch.no_grad():
                model.weight.mul_(0.5)
            stepped.param_groups[0]["lr"] *= 0.5
            seen.append(model.weight.sum().item())

        optimizer.register_step_post_hook(after)
        for x, _ in job.dataloader(TensorDataset(X[:12].float(), Y[:12]), seed=SEED):
            loss = model(x).square().mean()
            job.backward(scaler.scale(loss) if scales else loss)
            taken = {
                "optimizer 0": 1,
                "hooks of optimizer 0": 1,
                **({"scaler 0.step": 1, "scaler 0.update": 1} if scales else {}),
            }
            if job._session.position.step == 1:
                job._session.adopted(taken, ended=True)
            if scales:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            sums.append(model.weight.sum().item())
            rates.append(optimizer.param_groups[0]["lr"])
        return sums, rates, seen

    sums, rates, seen = run_ranks(1, body)[0]
    assert rates == [0.5, 0.5, 0.25]
    assert sums[1] == sums[0] and sums[2] != sums[1]
    assert seen == [sums[0], pytest.approx(sums[1] / 2), sums[2]]


class Averages:
    """Of weights, moved by hooks of optimizers and by the script."""

    def __init__(self, parts: Parts) -> None:
        self.values: list[float] = []
        for model, optimizer in zip((parts.first, parts.second), parts.optimizers, strict=True):
            optimizer.register_step_post_hook(lambda *_, model=model: self.take(model))

    def take(self, model: nn.Module) -> None:
        assert all(parameter.grad is not None for parameter in model.parameters())
        self.values.append(sum(parameter.sum().item() for parameter in model.parameters()))


def averaged(monkeypatch: pytest.MonkeyPatch, breaks: int, *, scales: bool) -> tuple[list[float], list[torch.Tensor]]:
    """Trains two steps; in the second, this rank loses the first reduction, which a peer completes and applies.

    Returns what was averaged, and the weights. ``breaks``: how many reductions break off, from that one on.
    """

    def body(group: ThreadGroup) -> tuple[list[float], list[torch.Tensor]]:
        job = thread_job(group, 4, 2)
        parts, session, recovery = Parts(job, scales=scales), job._session, job._engine.recovery
        averages, pairs = Averages(parts), list(zip((parts.first, parts.second), parts.optimizers, strict=True))
        reduce, gradients, reductions = session.reducer.reduce, list[torch.Tensor](), 0

        def broken(*arguments: Any, **named: Any) -> Any:
            nonlocal reductions
            reductions += 1
            if not 3 <= reductions < 3 + breaks:
                return reduce(*arguments, **named)
            if reductions == 3:
                reduce(*arguments, **named)
                scale = 8.0 if scales else 1.0
                gradients[:] = [parameter.grad / scale for parameter in parts.first.parameters()]
            raise GroupError("a peer was lost")

        def meet(*_: Any) -> tuple[RecoveryPlan, RankStatus]:
            takes = bool(gradients)
            if takes:
                with torch.no_grad():
                    for parameter, gradient in zip(parts.first.parameters(), gradients, strict=True):
                        parameter.add_(gradient, alpha=-0.1)
                gradients.clear()
                session.move_to(replace(session.position, calls=1, operations=session.position.operations + 1))
            acted = dict.fromkeys(("scaler 0.step", "optimizer 0", "hooks of optimizer 0"), 1)
            status = RankStatus(operations=session.position.operations, step=1, acted=acted, loss=1.0)
            return RecoveryPlan(NextAction.AGAIN, 0, takes=takes), status

        def recover(error: Exception, at: At) -> RecoveryPlan:
            recovery._resizer.drop()
            return recovery._meet(SimpleNamespace(replicas=None, rank=1), at)  # type: ignore[arg-type]

        session.reducer.reduce, recovery.recover = broken, recover  # type: ignore[method-assign]
        monkeypatch.setattr("elastic_launcher.torch.reconfigure.recovery.meet", meet)
        for _ in job.epochs(1):
            for x, _ in job.dataloader(TensorDataset(X[:8], Y[:8]), seed=SEED):
                for model, optimizer in pairs:
                    job.backward(parts.scaler.scale(model(x).square().mean()), optimizer=optimizer)
                    parts.scaler.step(optimizer)
                    if job.sync_gradients:
                        averages.take(model)
                parts.scaler.update()
        return averages.values, [parts.first.weight.detach(), parts.second.weight.detach()]

    return run_ranks(1, body)[0]


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("breaks", [1, 2])
def test_a_rank_that_lost_the_first_reduction_of_a_step_does_what_is_its_own_of_it_once_when_the_step_is_done_again(
    monkeypatch: pytest.MonkeyPatch, breaks: int, scales: bool
) -> None:
    wanted, weights = averaged(monkeypatch, 0, scales=scales)
    found, same = averaged(monkeypatch, breaks, scales=scales)
    assert found == wanted and len(found) == 8
    assert all(map(torch.equal, same, weights))


class TwoPasses(torch.optim.Optimizer):
    """A sharpness-aware optimizer, whose second half steps the one that it holds."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)

    def first_step(self) -> None:
        """Would go up the slope."""

    def second_step(self) -> None:
        self.base.step()


def test_hooks_run_on_a_rank_that_takes_half_of_a_sharpness_aware_step_over() -> None:
    def body(group: ThreadGroup) -> list[int]:
        job = thread_job(group, 4, 4)
        model, seen = nn.Linear(FEATURES, 3), list[int]()
        optimizer = job.prepare(model, TwoPasses(model.parameters()))[1]
        optimizer.base.register_step_post_hook(lambda *_: seen.append(job.step))
        acted: dict[str, int] = {}
        for x, _ in job.dataloader(TensorDataset(X[:12].float(), Y[:12]), seed=SEED):
            job.backward(model(x).square().mean())
            optimizer.first_step()
            job.backward(model(x).square().mean())
            if job.step == 2:
                job._session.adopted(acted, ended=True)
            optimizer.second_step()
            acted = dict(job._session.latest.acted)
        return seen

    assert run_ranks(1, body) == [[1, 2, 3]]
