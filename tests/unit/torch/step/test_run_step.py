"""`job.run_step` trains as the loop over the loader does, and what a script may know of its position."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastic_launcher.torch.data.loader import ElasticLoader
from elastic_launcher.torch.job import Job
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import BATCH, EPOCHS, FEATURES, SEED, X, Y, batches, linear

STEPS = len(batches(0))
Prepared = tuple[nn.Module, torch.optim.Optimizer, ElasticLoader]


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def prepared(job: Job, model: nn.Module | None = None) -> Prepared:
    model = linear() if model is None else model
    model, optimizer = job.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
    return model, optimizer, job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)


def backward(job: Job, model: nn.Module, batch: Any) -> None:
    x, y = batch
    job.backward(functional.cross_entropy(model(x), y))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_steps_by_call_train_the_plain_model(world_size: int) -> None:
    plain = build()
    models = [copy.deepcopy(plain) for _ in range(world_size)]
    stepper = torch.optim.Adam(plain.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            stepper.zero_grad()
            functional.cross_entropy(plain(x), y).backward()
            stepper.step()

    def body(group: ThreadGroup) -> list[tuple[int, int, int, bool]]:
        job = thread_job(group, BATCH, 3)
        model, optimizer, loader = prepared(job, models[group.rank])
        seen = []
        for epoch in job.epochs(EPOCHS):
            while job.run_step(loader, lambda batch: backward(job, model, batch)):
                assert job.sync_gradients
                seen.append((epoch, job.step_in_epoch, job.step, job.over))
                optimizer.step()
        assert job.over
        return seen

    for seen in run_ranks(world_size, body):
        expected = [(e, i, STEPS * e + i, False) for e in range(EPOCHS) for i in range(1, STEPS + 1)]
        assert seen == expected
    for model in models:
        for name, values in plain.state_dict().items():
            assert model.state_dict()[name].numpy() == pytest.approx(values.numpy(), rel=1e-9), name


def test_the_body_sees_where_an_attempt_begins_and_ends() -> None:
    def body(group: ThreadGroup) -> list[tuple[bool, bool, bool, bool]]:
        job = thread_job(group, 6, 2)
        model, optimizer, loader = prepared(job)
        assert job.micro is None
        seen = []

        def work(batch: Any) -> None:
            assert job.micro is not None
            micro = job.micro
            backward(job, model, batch)
            seen.append((micro.first, micro.last, micro.rehearsal, micro.dropped))

        assert job.run_step(loader, work)
        optimizer.step()
        return seen

    middle = (False, False, False, False)
    assert run_ranks(1, body) == [[(True, False, False, False), middle, (False, True, False, False)]]


def test_a_loop_that_is_not_asked_for_more_steps_is_left_as_by_break() -> None:
    def body(group: ThreadGroup) -> list[tuple[int, int, bool]]:
        job = thread_job(group, BATCH, BATCH)
        model, optimizer, loader = prepared(job)
        found = []
        for epoch in job.epochs(2):
            for _ in range(2):
                assert job.run_step(loader, lambda batch: backward(job, model, batch))
                optimizer.step()
            found.append((epoch, job.step, job.over))
        return found

    assert run_ranks(2, body) == [[(0, 2, False), (1, 4, False)]] * 2


def test_a_step_by_call_over_another_loader_begins_another_loop() -> None:
    def body(group: ThreadGroup) -> list[int]:
        job = thread_job(group, BATCH, BATCH)
        model, optimizer, loader = prepared(job)
        other = job.dataloader(TensorDataset(X[:24], Y[:24]))
        seen = []
        for _ in job.epochs(1):
            assert job.run_step(loader, lambda batch: backward(job, model, batch))
            optimizer.step()
            while job.run_step(other, lambda batch: backward(job, model, batch)):
                optimizer.step()
                seen.append(job.step_in_epoch)
            for batch in loader:
                backward(job, model, batch)
                optimizer.step()
        return [*seen, job.step]

    assert run_ranks(2, body) == [[1, 2, 1 + 2 + STEPS]] * 2


def test_a_stop_ends_steps_by_call_on_all_ranks() -> None:
    def body(group: ThreadGroup) -> tuple[int, bool]:
        job = thread_job(group, BATCH, BATCH)
        model, optimizer, loader = prepared(job)
        for _ in job.epochs(9):
            while job.run_step(loader, lambda batch: backward(job, model, batch)):
                optimizer.step()
                if job.step == 7 and group.rank == 1:
                    job.stop()
            if job.over:
                break
        return job.step, job.over

    assert run_ranks(3, body) == [(7, True)] * 3


def test_values_are_reduced_and_evaluated_between_two_steps_by_call() -> None:
    def body(group: ThreadGroup) -> list[float]:
        job = thread_job(group, BATCH, BATCH)
        model, optimizer, loader = prepared(job)
        seen = []
        while job.run_step(loader, lambda batch: backward(job, model, batch)):
            optimizer.step()
            counted = job.evaluate(lambda x, y: {"sum": float(len(x))}, loader)["count"]
            seen.append(job.reduce(1.0, op="sum") + counted)
        return seen

    assert run_ranks(2, body) == [[2.0 + len(X)] * STEPS] * 2


def test_an_exception_in_the_body_leaves_the_loop() -> None:
    def body(group: ThreadGroup) -> int:
        job = thread_job(group, BATCH, BATCH)
        model, optimizer, loader = prepared(job)

        def breaks(batch: Any) -> None:
            raise KeyError("mine")

        for epoch in job.epochs(2):
            if not epoch:
                assert job.run_step(loader, lambda batch: backward(job, model, batch))
                optimizer.step()
                with pytest.raises(KeyError, match="mine"):
                    job.run_step(loader, breaks)
            else:
                while job.run_step(loader, lambda batch: backward(job, model, batch)):
                    optimizer.step()
        return job.step

    assert run_ranks(2, body) == [1 + STEPS] * 2


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda job, loader: None, "the loop body ended without job.backward"),
        (lambda job, loader: job.run_step(loader, print), "job.run_step was called by its own body"),
        (lambda job, loader: next(iter(loader)), "two training loaders are iterated at once"),
    ],
)
def test_what_a_body_may_not_do_is_refused(work: Any, said: str) -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        _, _, loader = prepared(job)
        for _ in job.epochs(1):
            job.run_step(loader, lambda batch: work(job, loader))

    with pytest.raises(RuntimeError, match=said):
        run_ranks(1, body)


def test_a_loader_of_torch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"job.run_step needs a loader made by job.dataloader, got list"):
        run_ranks(1, lambda group: thread_job(group, 4, 4).run_step([], print))  # type: ignore[arg-type]
