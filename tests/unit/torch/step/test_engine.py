"""Steps by explicit calls, and a batch size that changes in mid-epoch, train as one plain process does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastic_launcher.batch_schedule import BatchSchedule, DataPass
from elastic_launcher.sampling import indices
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.state.position import Position
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, SAMPLES, SEED, X, Y

EPOCHS, MICRO = 3, 4
SCHEDULE = BatchSchedule(((0, 12), (2, 7), (9, 30)))


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = nn.Linear(FEATURES, 3).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_plain(shuffle: bool) -> tuple[torch.Tensor, int]:
    """Returns the weights after all epochs of plain torch, and the number of steps."""
    model, optimizer = model_and_optimizer()
    whole = DataPass(SCHEDULE, SAMPLES)
    for epoch in range(EPOCHS):
        order = torch.from_numpy(indices(SAMPLES, SEED, epoch, 0, SAMPLES, shuffle))
        for step in range(whole.steps):
            samples = whole.samples(step)
            taken = order[samples.start : samples.start + samples.count]
            optimizer.zero_grad()
            functional.cross_entropy(model(X[taken]), Y[taken]).backward()
            optimizer.step()
        whole = whole.following()
    return model.state_dict()["weight"], whole.first_step


def scheduled_job(group: ThreadGroup) -> tuple[Job, nn.Module, torch.optim.Optimizer]:
    job = thread_job(group, 12, MICRO)
    job._session.schedule = SCHEDULE
    return job, *job.prepare(*model_and_optimizer())


def by_calls(group: ThreadGroup) -> tuple[torch.Tensor, int]:
    job, model, optimizer = scheduled_job(group)
    engine = job._engine
    for _ in job.epochs(EPOCHS):
        assert engine.begin_loop(TrainingData("tensors", SAMPLES)) and engine.admit()
        while engine.begin_step():
            for micro in engine.micro_batches():
                _, start, size = micro.piece
                engine.begin_micro_batch(micro)
                optimizer.zero_grad()
                engine.backward(functional.cross_entropy(model(X[start : start + size]), Y[start : start + size]))
                optimizer.step()
                engine.end_micro_batch(micro)
            assert engine.end_step()
        engine.end_loop()
        engine.close_loop()
    return model.state_dict()["weight"], job.step


def by_loader(group: ThreadGroup) -> tuple[torch.Tensor, int]:
    job, model, optimizer = scheduled_job(group)
    loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            job.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
    return model.state_dict()["weight"], job.step


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize(("train", "shuffle"), [(by_calls, False), (by_loader, True)], ids=["calls", "loader"])
def test_a_batch_that_changes_in_mid_epoch_trains_the_plain_model(
    train: Callable[[ThreadGroup], Any], shuffle: bool, world_size: int
) -> None:
    weights, steps = train_plain(shuffle)
    for found, done in run_ranks(world_size, train):
        assert done == steps
        assert found.numpy() == pytest.approx(weights.numpy(), rel=1e-12)


def test_a_loop_that_the_ranks_end_together_has_no_further_step() -> None:
    """The pass would have one more step, if it were counted from the step at which they ended it."""

    def body(group: ThreadGroup) -> tuple[list[int], list[int]]:
        job, model, optimizer = scheduled_job(group)
        job._session.schedule = BatchSchedule(((0, 5), (4, SAMPLES - 10)))
        engine, begun, loops = job._engine, [], []
        job._session.move_to(Position(step=3, samples=15))
        for _ in job.epochs(1):
            assert engine.begin_loop(TrainingData("tensors", SAMPLES)) and engine.admit()
            while engine.begin_step():
                begun.append(job.step)
                for micro in engine.micro_batches():
                    _, start, size = micro.piece
                    engine.begin_micro_batch(micro)
                    if job.step == 4:
                        micro.dropped = True  # as agreed in its reduction
                        break
                    optimizer.zero_grad()
                    engine.backward(functional.cross_entropy(model(X[start : start + size]), Y[start : start + size]))
                    optimizer.step()
                    engine.end_micro_batch(micro)
                engine.end_step()
            engine.end_loop()
            engine.close_loop()
            loops.append(job._session.position.loop)
        return begun, loops

    assert run_ranks(1, body) == [([3, 4], [1])]


def test_a_batch_of_the_schedule_that_the_model_can_not_take_is_refused_before_the_loop() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, 4, 2)
        job._session.schedule = BatchSchedule(((0, 4), (1, 3), (2, 4)))
        model = nn.Sequential(nn.Linear(FEATURES, 3), nn.BatchNorm1d(3)).double()
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(ValueError, match="a step of 3 samples in micro-batches of at most 2"):
            job._engine.begin_loop(TrainingData("tensors", 15))

    run_ranks(1, body)


def test_a_loop_without_a_step_is_refused() -> None:
    def body(group: ThreadGroup) -> None:
        engine = scheduled_job(group)[0]._engine
        with pytest.raises(ValueError, match="the data set has 11 samples, fewer than one global batch of 12"):
            engine.begin_loop(TrainingData("tensors", 11, drop_last=True))

    run_ranks(1, body)


def test_a_second_loop_within_the_first_is_refused() -> None:
    def body(group: ThreadGroup) -> None:
        engine = scheduled_job(group)[0]._engine
        assert engine.begin_loop(TrainingData("tensors", SAMPLES))
        with pytest.raises(RuntimeError, match="two training loaders are iterated at once"):
            engine.begin_loop(TrainingData("others", SAMPLES))

    run_ranks(1, body)
