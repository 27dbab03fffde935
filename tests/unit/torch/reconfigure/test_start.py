"""A new job starts where its script says, as if it had trained up to there, and not after it has begun."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from elastic_launcher.torch.membership.reconcile import RankStatus, compare_starts
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import BATCH, SEED, X, Y, batches, linear

STEPS = len(batches(0))
Row = tuple[int, int, int, int, float, float]


def trained(group: ThreadGroup, start: tuple[int, int] | None) -> list[Row]:
    job = thread_job(group, BATCH, BATCH)
    model = linear()
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
    if start is not None:
        job.start_at(*start)
    rows = []
    for epoch in job.epochs(3):
        for x, _ in loader:
            drawn = float(torch.rand(()))
            job.backward(model(x).square().mean())
            optimizer.step()
            at = job._session.position
            rows.append((epoch, job.step_in_epoch, job.step, at.samples, drawn, float(x.sum())))
    assert job.over
    return rows


@pytest.mark.parametrize("start", [(0, 0), (0, 2), (1, 0), (1, STEPS - 1), (2, 3), (3, 0), (5, 0)])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_job_that_starts_later_does_what_is_left(world_size: int, start: tuple[int, int]) -> None:
    whole = run_ranks(world_size, lambda group: trained(group, None))
    rest = run_ranks(world_size, lambda group: trained(group, start))
    for all_rows, rows in zip(whole, rest, strict=True):
        assert rows == all_rows[start[0] * STEPS + start[1] :]


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ((-1, 0), "epoch is -1; it must be a whole number, 0 or more"),
        ((1, 0.5), "step is 0.5; it must be a whole number, 0 or more"),
        ((1, STEPS), rf"an epoch has {STEPS} steps; for the beginning of the next one give \(2, 0\)"),
    ],
)
def test_a_position_that_is_none_is_refused(start: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_ranks(1, lambda group: trained(group, start))


def test_a_start_is_refused_once_the_job_has_begun() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        for _ in job.epochs(1):
            job.start_at(1)

    with pytest.raises(RuntimeError, match=r"called after job.epochs or a training loop had begun; call it before"):
        run_ranks(1, body)


@pytest.mark.parametrize("operations", [(-1, -1), (-1, 4), (-1, -1, -1)])
def test_ranks_agree_on_the_start_of_a_new_job(operations: tuple[int, ...]) -> None:
    same = [RankStatus(operations=number, start=[2, 3]) for number in operations]
    compare_starts(same)
    different = [*same[:-1], RankStatus(operations=operations[-1])]
    if max(operations) >= 0:
        compare_starts(different)  # who comes to a job that trains takes its position
        return
    with pytest.raises(RuntimeError, match=rf"rank 0: job.start_at\(2, 3\), .*rank {len(operations) - 1}: no job"):
        compare_starts(different)
