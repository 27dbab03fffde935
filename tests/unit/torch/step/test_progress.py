"""How many steps a job comes to, as its progress says."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import SEED, X, Y, linear

LOOP = 6  # steps


def totals(loops: int, epoch: int, step: int) -> list[int | None]:
    """Returns how many steps the job expects after each step, and last how many there were."""

    def body(group: ThreadGroup) -> list[int | None]:
        job = thread_job(group, 4, 4)
        model = linear()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[: 4 * LOOP], Y[: 4 * LOOP]), seed=SEED)
        progress, found = job._steps._engine.progress, []
        if epoch or step:
            job.start_at(epoch, step)
        for _ in job.epochs(5):
            for _ in range(loops):
                for x, y in loader:
                    job.backward(functional.cross_entropy(model(x), y))
                    optimizer.step()
                    data = job._session.data
                    assert data is not None
                    found.append(progress._total(data, LOOP))
        return [*found, job.step]

    return run_ranks(1, body)[0]


@pytest.mark.parametrize(("epoch", "step"), [(0, 0), (0, 4), (2, 0), (2, 1), (4, 5)])
def test_epochs_of_one_loop_wherever_the_job_starts(epoch: int, step: int) -> None:
    assert set(totals(1, epoch, step)) == {5 * LOOP}


def test_epochs_of_two_loops_once_the_first_epoch_is_over() -> None:
    found = totals(2, 0, 0)
    assert found[: LOOP - 1] == [5 * LOOP] * (LOOP - 1)
    assert set(found[2 * LOOP :]) == {10 * LOOP}
