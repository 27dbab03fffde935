"""What the training loop gives a script: random numbers, an end for all ranks at one step, an evaluation."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import SEED, X, Y, linear


def test_random_numbers_of_a_step_depend_on_seed_step_and_rank_alone() -> None:
    def body(group: ThreadGroup) -> list[float]:
        job = thread_job(group, 4, 4)
        model = linear()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[:8], Y[:8]), seed=SEED)
        drawn = []
        for _ in job.epochs(2):
            for x, y in loader:
                drawn.append(random.random() + float(torch.rand(())))
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
        return drawn

    once, again = run_ranks(1, body)[0], run_ranks(1, body)[0]
    assert once == again and len(set(once)) == len(once)


def test_a_redone_step_leaves_out_only_the_reductions_that_something_has_acted_on() -> None:
    """Two backward passes whose gradients add up, and an optimizer that acts on their sum."""

    def body(group: ThreadGroup) -> list[int]:
        job = thread_job(group, 4, 4)
        model = linear()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[:4], Y[:4]), seed=SEED)
        calls = []
        for _ in job.epochs(1):
            for x, y in loader:
                for _ in range(2):
                    job.backward(functional.cross_entropy(model(x), y))
                    calls.append(job._session.position.calls)
                optimizer.step()
                calls.append(job._session.position.calls)
        return calls

    assert run_ranks(2, body) == [[0, 0, 2]] * 2


def test_a_loop_that_is_left_by_break_counts_its_last_step_once() -> None:
    def body(group: ThreadGroup) -> list[tuple[int, bool]]:
        job = thread_job(group, 4, 4)
        model = linear()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[:16], Y[:16]), seed=SEED)
        found = []
        for _ in job.epochs(2):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                if job.step in (2, 4):
                    break
            found.append((job.step, job.sync_gradients))
        return found

    assert run_ranks(2, body) == [[(2, False), (4, False)]] * 2


@pytest.mark.parametrize("ended", [True, False])
def test_in_a_step_that_was_taken_over_nothing_acts_that_its_peer_left_out(ended: bool) -> None:
    """A script that leaves out the step of a gradient that is too large sees zeros here; ``ended``: the peer's whole
    body is in the state that it gave.
    """

    def body(group: ThreadGroup) -> bool:
        job = thread_job(group, 4, 4)
        model = linear()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = model.weight.detach().clone()
        for _ in job.epochs(1):
            for x, y in job.dataloader(TensorDataset(X[:4], Y[:4]), seed=SEED):
                job.backward(functional.cross_entropy(model(x), y))
                job._session.adopted({}, ended)
                optimizer.step()
        return torch.equal(model.weight, before)

    assert run_ranks(1, body) == [ended]


def test_a_script_can_stop_all_ranks_at_one_step() -> None:
    def body(group: ThreadGroup) -> int:
        job = thread_job(group, 4, 2)
        model = linear()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X, Y), seed=SEED)
        for _ in job.epochs(5):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                if job.step == 7 and job.rank == 1:
                    job.stop("enough")
        return job.step

    assert run_ranks(3, body) == [7, 7, 7]


def test_all_ranks_may_break_together_and_one_alone_is_named() -> None:
    def body(group: ThreadGroup, ranks: tuple[int, ...]) -> tuple[int, str]:
        job = thread_job(group, 4, 2)
        model = linear()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[:16], Y[:16]), seed=SEED)
        try:
            for _ in job.epochs(2):
                for x, y in loader:
                    job.backward(functional.cross_entropy(model(x), y))
                    optimizer.step()
                    if job.sync_gradients and job.step in (2, 5) and group.rank in ranks:
                        break
        except RuntimeError as error:
            return job.step, str(error)
        return job.step, ""

    assert run_ranks(2, lambda group: body(group, (0, 1))) == [(5, ""), (5, "")]
    outcomes = run_ranks(2, lambda group: body(group, (1,)))
    assert any("rank 1 left the training loop" in message for _, message in outcomes)


def test_evaluation_counts_each_sample_once_on_any_number_of_ranks() -> None:
    def body(group: ThreadGroup) -> dict[str, Any]:
        job = thread_job(group, 4, 3)
        loader = job.dataloader(TensorDataset(X[:10], Y[:10]))
        return job.evaluate(lambda x, y: {"sum": x.sum(), "by": torch.bincount(y, minlength=3)}, loader)

    for world_size in (1, 2, 3, 13):
        results = run_ranks(world_size, body)
        assert all(r["count"] == 10 for r in results)
        assert len({r["sum"] for r in results}) == 1
        assert results[0]["sum"] == pytest.approx(float(X[:10].sum()), rel=1e-12)
        assert results[0]["by"].tolist() == torch.bincount(Y[:10], minlength=3).tolist()
