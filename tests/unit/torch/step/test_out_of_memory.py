"""A micro-batch that is too large for memory is done again in smaller ones, and the step's gradient is the same."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.torch.data.micro_batches import MicroBatch
from elastic_launcher.torch.step.memory import reserve_optimizer_state
from elastic_launcher.torch.step.rehearsal import find_limit
from tests.support.scripts.memory_train import Narrow
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job

SAMPLES, BATCH, EPOCHS = 27, 12, 2
X = torch.randn(SAMPLES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
Y = X.sum(1, keepdim=True)
UNTRAINED = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
STEPS = EPOCHS * math.ceil(SAMPLES / BATCH)


def plain() -> list[torch.Tensor]:
    model = copy.deepcopy(UNTRAINED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        for start in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            (model(X[start : start + BATCH]) - Y[start : start + BATCH]).square().mean().backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()]


def train(
    group: ThreadGroup, fits: dict[int, int], where: str, micro: int = BATCH, norm: nn.Module | None = None
) -> tuple[list[torch.Tensor], int, list[int]]:
    """Returns the weights, the steps, and the sizes of the micro-batches that came to their end."""
    job = thread_job(group, BATCH, micro)
    model = copy.deepcopy(UNTRAINED) if norm is None else nn.Sequential(copy.deepcopy(norm), copy.deepcopy(UNTRAINED))
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    sizes = []
    for _ in job.epochs(EPOCHS):
        for x, y in job.dataloader(TensorDataset(X, Y)):
            most = fits.get(group.rank, SAMPLES) if job.step else SAMPLES  # the first step has room
            with job.micro_batch() if where == "forward" else nullcontext():
                job.backward((Narrow.apply(model(x), most, where) - y).square().mean())
                assert len(x) <= most or where == "backward"
            optimizer.step()
            optimizer.zero_grad()
            sizes.append(len(x))
    return [p.detach() for p in model.parameters()], job.step, sizes


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("micro", [BATCH, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("fits", [{0: 2}, {0: 1, 1: 2}, {1: 3}])
def test_the_step_is_the_same_in_smaller_micro_batches(
    where: str, micro: int, world_size: int, fits: dict[int, int]
) -> None:
    ranks = run_ranks(world_size, lambda group: train(group, fits, where, micro))
    for rank, (parameters, steps, sizes) in enumerate(ranks):
        assert steps == STEPS
        assert max(sizes[-BATCH // world_size // 4 :]) <= fits.get(rank, micro)
        for mine, right in zip(parameters, plain(), strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("micro", [1, BATCH])
def test_a_rank_without_a_share_works_on_no_more_samples_than_fit(micro: int) -> None:
    """The last step of an epoch has three samples, and four ranks."""
    for parameters, steps, sizes in run_ranks(
        4, lambda group: train(group, dict.fromkeys(range(4), 1), "forward", micro)
    ):
        assert steps == STEPS and sizes[-1] == 1
        for mine, right in zip(parameters, plain(), strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_single_sample_that_does_not_fit_ends_the_training_and_says_what_to_do(where: str) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as raised:
        run_ranks(1, lambda group: train(group, {0: 0}, where))
    assert "Use a device with more memory" in raised.value.__notes__[0]


def test_an_evaluation_keeps_to_what_fits() -> None:
    def body(group: ThreadGroup) -> tuple[list[int], Any]:
        job, sizes = thread_job(group, BATCH, BATCH), list[int]()
        job._session.shares.known_limit = 4 + group.rank
        found = job.evaluate(lambda x, y: sizes.append(len(x)) or {"y": y.sum()}, job.dataloader(TensorDataset(X, Y)))
        return sizes, found

    (one, found), (other, _) = run_ranks(2, body)
    assert (max(one), max(other), sum(one) + sum(other)) == (4, 5, SAMPLES)
    assert found["y"] == pytest.approx(float(Y.sum()), rel=1e-12)


def test_with_batch_norm_no_micro_batch_comes_to_have_one_sample() -> None:
    norm = nn.BatchNorm1d(3).double()
    for _, steps, sizes in run_ranks(2, lambda group: train(group, {0: 3, 1: 3}, "backward", norm=norm)):
        assert steps == STEPS
        assert min(sizes) >= 2 and max(sizes[-4:]) <= 3
    with pytest.raises(torch.OutOfMemoryError):
        run_ranks(1, lambda group: train(group, {0: 2}, "backward", norm=norm))


@pytest.mark.parametrize("norm", [None, "batch norm"])
@pytest.mark.parametrize("most", [1, 2, 7, 64, 1000])
def test_the_largest_micro_batch_that_fits_is_found_by_doubling_and_bisection(most: int, norm: str | None) -> None:
    def found(group: ThreadGroup, fits: int) -> tuple[int | None, list[int]]:
        session, tries = thread_job(group, 1000, 1000)._session, list[int]()
        session.shares.normalizes = norm

        def try_once(size: int, known: int) -> Generator[MicroBatch, None, MicroBatch | None]:
            assert known < size <= most and known <= max(fits, session.shares.least_micro_batch)
            tries.append(size)
            micro = MicroBatch(0, 1000, last=True, rehearsal=True)
            yield micro
            return micro if size <= fits else None

        for _ in find_limit(session, most, try_once):
            pass
        return session.shares.known_limit, tries

    least = 1 if norm is None else 3
    for fits in {1, 2, 3, most // 3, most - 1, most} - {0}:
        [(limit, tries)] = run_ranks(1, lambda group, fits=fits: found(group, fits))
        assert limit is None if fits >= most or most <= least else least <= limit <= max(fits, least)
        assert limit is None or fits - limit <= max(1, limit // 8)
        assert len(tries) <= 14 and tries[:1] == [min(most, 2 * least)][: most > least]


def test_an_optimizer_state_that_does_not_fit_ends_the_search_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def narrow(size: int, **_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def body(group: ThreadGroup) -> None:
        job, model = thread_job(group, BATCH, BATCH), copy.deepcopy(UNTRAINED)
        job.prepare(model, torch.optim.Adam(model.parameters()))
        monkeypatch.setattr(torch, "empty", narrow)
        reserve_optimizer_state(job._session)

    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as raised:
        run_ranks(1, body)
    elements = sum(p.numel() for p in UNTRAINED.parameters())
    assert f'max_batch_per_gpu="auto" keeps {elements * 8 * 2} bytes free' in raised.value.__notes__[0]
    assert "give max_batch_per_gpu as a number" in raised.value.__notes__[0]


def test_what_follows_a_complete_step_in_the_block_is_raised() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        model = copy.deepcopy(UNTRAINED)
        model, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in job.dataloader(TensorDataset(X, Y)):
            with job.micro_batch():
                job.backward((model(x) - y).square().mean())
                raise torch.OutOfMemoryError("of the optimizer's state")

    with pytest.raises(torch.OutOfMemoryError, match="of the optimizer's state"):
        run_ranks(1, body)


def test_other_errors_pass_through_the_block() -> None:
    def body(group: ThreadGroup) -> Any:
        job = thread_job(group, BATCH, BATCH)
        with job.micro_batch():
            raise torch.OutOfMemoryError("outside of the loop")

    with pytest.raises(torch.OutOfMemoryError, match="outside of the loop"):
        run_ranks(1, body)
