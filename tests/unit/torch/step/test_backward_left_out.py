"""A micro-batch is left out by one rule, wherever it is: the step's gradient is the mean over the others' samples."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.support.thread_group import ThreadGroup, run_ranks, thread_job

SAMPLES, BATCH, MICRO = 24, 12, 2
X = torch.randn(SAMPLES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
Y = X.sum(1, keepdim=True)


class OutOfMemory(RuntimeError):
    """Stands for torch.OutOfMemoryError."""


class Breaks(torch.autograd.Function):
    """Breaks off in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise OutOfMemory("CUDA out of memory")


UNTRAINED = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def build() -> nn.Module:
    return copy.deepcopy(UNTRAINED)


def plain(bad: int) -> list[torch.Tensor]:
    """Two steps of one process, without the two samples of the micro-batch that holds a bad one."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, SAMPLES, BATCH):
        good = [n for n in range(start, start + BATCH) if n // MICRO != bad // MICRO]
        optimizer.zero_grad()
        (model(X[good]) - Y[good]).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def trained(group: ThreadGroup, bad: int, backward: Callable[[Any, nn.Module, torch.Tensor, bool], None]) -> Any:
    job = thread_job(group, BATCH, MICRO)
    model = build()
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.dataloader(TensorDataset(torch.arange(SAMPLES), X, Y))
    for _ in job.epochs(1):
        for n, x, y in loader:
            loss = (model(x) - y).square().mean()
            backward(job, model, loss, bad in n.tolist())
            if bad in n.tolist() and backward is silently:
                continue
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach() for p in model.parameters()], job.step


def not_finite(job: Any, model: nn.Module, loss: torch.Tensor, bad: bool) -> None:
    loss = loss * float("nan") if bad else loss
    if torch.isfinite(loss):
        job.backward(loss)
    else:
        job.backward(None, weight=0)


def in_forward(job: Any, model: nn.Module, loss: torch.Tensor, bad: bool) -> None:
    try:
        if bad:
            raise OutOfMemory("CUDA out of memory")
        job.backward(loss)
    except OutOfMemory:
        job.backward(None, weight=0)


def in_backward(job: Any, model: nn.Module, loss: torch.Tensor, bad: bool) -> None:
    """The last layer's gradient has come when the pass breaks off."""
    if bad:
        loss = loss + Breaks.apply(model[0].weight).sum()
    try:
        job.backward(loss)
    except OutOfMemory:
        job.backward(None, weight=0)


def silently(job: Any, model: nn.Module, loss: torch.Tensor, bad: bool) -> None:
    if not bad:
        job.backward(loss)


@pytest.mark.parametrize("way", [not_finite, in_forward, in_backward])
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("bad", [0, 5, 11, 13, 23])  # a rank's first, middle and last micro-batch, in two steps
def test_a_micro_batch_is_left_out_at_any_position(way: Any, world_size: int, bad: int) -> None:
    for parameters, steps in run_ranks(world_size, lambda group: trained(group, bad, way)):
        assert steps == SAMPLES // BATCH
        for mine, right in zip(parameters, plain(bad), strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_step_of_which_everything_is_left_out_changes_nothing(world_size: int) -> None:
    def nothing(job: Any, model: nn.Module, loss: torch.Tensor, bad: bool) -> None:
        job.backward(None, weight=0)

    for parameters, steps in run_ranks(world_size, lambda group: trained(group, 0, nothing)):
        assert steps == SAMPLES // BATCH
        for mine, untrained in zip(parameters, build().parameters(), strict=True):
            assert torch.equal(mine, untrained)


@pytest.mark.parametrize("bad", [0, 2, 10])
def test_a_body_that_leaves_one_out_without_saying_so_is_refused_at_any_position(bad: int) -> None:
    with pytest.raises(RuntimeError, match=r"call job.backward\(None, weight=0\) in the place"):
        run_ranks(1, lambda group: trained(group, bad, silently))


def test_a_backward_pass_that_broke_off_can_not_be_forgotten() -> None:
    def swallowed(job: Any, model: nn.Module, loss: torch.Tensor, bad: bool) -> None:
        with contextlib.suppress(OutOfMemory):
            job.backward(Breaks.apply(loss) if bad else loss)

    def tried_again(job: Any, model: nn.Module, loss: torch.Tensor, bad: bool) -> None:
        try:
            job.backward(Breaks.apply(loss) if bad else loss)
        except OutOfMemory:
            job.backward(model[0].weight.sum())

    for way in (swallowed, tried_again):
        with pytest.raises(
            RuntimeError, match=r"job.backward broke off \(OutOfMemory\).*job.backward\(None, weight=0\)"
        ):
            run_ranks(1, lambda group, way=way: trained(group, 2, way))  # type: ignore[misc]


def test_no_loss_needs_the_weight_0() -> None:
    def without(job: Any, model: nn.Module, loss: torch.Tensor, bad: bool) -> None:
        job.backward(None)

    with pytest.raises(ValueError, match="job.backward got no loss; to leave a micro-batch out"):
        run_ranks(1, lambda group: trained(group, 2, without))


@pytest.mark.parametrize("unscales", [True, False])
@pytest.mark.parametrize("left_out", [0, 1])
def test_under_a_scaler_a_step_of_which_everything_is_left_out_changes_nothing(left_out: int, unscales: bool) -> None:
    def body(group: ThreadGroup) -> tuple[list[torch.Tensor], float, int]:
        job = thread_job(group, BATCH, BATCH)
        model, scaler = build(), torch.amp.GradScaler("cpu", init_scale=8.0)
        model, optimizer, scaler = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), scaler)
        for _ in job.epochs(1):
            for x, y in job.dataloader(TensorDataset(X, Y)):
                if job.step == left_out:
                    job.backward(None, weight=0)
                else:
                    job.backward(scaler.scale((model(x) - y).square().mean()))
                if unscales:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
        return [p.detach() for p in model.parameters()], scaler.get_scale(), job.step

    model = build()
    start = 0 if left_out else BATCH
    (model(X[start : start + BATCH]) - Y[start : start + BATCH]).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    parameters, scale, steps = run_ranks(1, body)[0]
    assert (scale, steps) == (8.0, 2)
    for mine, right in zip(parameters, model.parameters(), strict=True):
        torch.testing.assert_close(mine, right.detach(), rtol=1e-12, atol=1e-13)
