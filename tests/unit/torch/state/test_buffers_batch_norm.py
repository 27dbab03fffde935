"""Batch norm: its statistics follow the history of world sizes, and what has no weight leaves none of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.support.reference_step import replay_step
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import BATCH, EPOCHS, FEATURES, SEED, X, Y, batches


def build() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(  # over a length, so that one sample is enough for a rank
        nn.Unflatten(1, (1, FEATURES)),
        nn.Conv1d(1, 4, 2, bias=False),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    ).double()


def replay(world_size: int, max_batch: int, steps: int | None = None) -> nn.Module:
    """The reference: the ranks' micro-batches one after the other, in one process."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in [batch for epoch in range(EPOCHS) for batch in batches(epoch)][:steps]:

        def loss(part: slice, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            return functional.cross_entropy(model(x[part]), y[part])

        replay_step(model, loss, len(x), world_size, max_batch)
        optimizer.step()
        optimizer.zero_grad()
    return model


def train(
    group: ThreadGroup, model: nn.Module, max_batch: int, end_epoch: Callable[[nn.Module], object] = lambda model: None
) -> nn.Module:
    """Trains as a rank of a job."""
    job = thread_job(group, BATCH, max_batch)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            job.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        end_epoch(model)
    return model


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("max_batch", [12, 3])
def test_batch_norm_follows_the_history_of_world_sizes(world_size: int, max_batch: int) -> None:
    start = build()
    wanted = replay(world_size, max_batch).state_dict()

    for model in run_ranks(world_size, lambda group: train(group, copy.deepcopy(start), max_batch)):
        found = model.state_dict()
        for key, expected in wanted.items():
            assert torch.allclose(found[key].double(), expected.double(), rtol=1e-9, atol=1e-12), key


@pytest.mark.parametrize("end", ["stop", "break", "break within a step"])
def test_statistics_are_those_of_the_last_step_when_the_script_ends_the_training(end: str) -> None:
    """What ranks had run of the next step by then does not count, and all ranks are left with the same."""
    steps, world_size, max_batch = 3, 2, 3  # two micro-batches a rank
    start = build()
    wanted = replay(world_size, max_batch, steps).state_dict()

    def body(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, max_batch)
        model = copy.deepcopy(start)
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
        for _ in job.epochs(1):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                if job.step == steps and end == ("break" if job.sync_gradients else "break within a step"):
                    break
                if job.step == steps and end == "stop" and job.is_main:
                    job.stop()
        return model

    for model in run_ranks(world_size, body):
        for key, found in model.state_dict().items():
            assert torch.allclose(found.double(), wanted[key].double(), rtol=1e-9, atol=1e-12), key


def flat() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()


def train_flat(group: ThreadGroup, model: nn.Module, batch: int, micro: int) -> nn.Module:
    job = thread_job(group, batch, micro)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED):
        job.backward(functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize(("batch", "micro"), [(16, 16), (46, 46), (16, 3), (16, 2)], ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_no_rank_has_one_sample_alone_in_an_epochs_tail(world_size: int, batch: int, micro: int) -> None:
    """Tails of 2 and 4 samples, and full steps of 3 and 4 samples a rank."""
    start = flat()
    models = run_ranks(world_size, lambda group: train_flat(group, copy.deepcopy(start), batch, micro))
    for model in models:
        for found, first in zip(model.state_dict().values(), models[0].state_dict().values(), strict=True):
            assert torch.equal(found, first)


@pytest.mark.parametrize(("batch", "micro"), [(16, 1), (15, 2), (7, 2)])
def test_a_division_that_leaves_one_sample_alone_is_refused_before_training(batch: int, micro: int) -> None:
    with pytest.raises(
        ValueError, match=r"batch norm can't take statistics: 1 needs two\. Raise max_batch_per_gpu to 3"
    ):
        run_ranks(1, lambda group: train_flat(group, flat(), batch, micro))


def test_a_frozen_norm_takes_no_statistics_and_single_samples() -> None:
    def frozen() -> nn.Module:
        model = flat()
        model[1].eval()
        return model

    (alone,) = run_ranks(1, lambda group: train_flat(group, frozen(), 16, 16))
    for model in run_ranks(2, lambda group: train_flat(group, frozen(), 16, 1)):
        for name, found in model.state_dict().items():
            assert torch.allclose(found, alone.state_dict()[name], rtol=1e-12, atol=1e-14), name
        assert model[1].num_batches_tracked == 0 and torch.equal(model[1].running_mean, flat()[1].running_mean)


@pytest.mark.parametrize("poison", [float("nan"), 1.0])
def test_a_micro_batch_without_weight_leaves_no_trace(poison: float) -> None:
    """Weight 0, even with a NaN: gradients, buffers, loss and the other ranks' are as if it had not been."""

    def build() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

    def body(group: ThreadGroup, skip: bool) -> tuple[nn.Module, list[float]]:
        job = thread_job(group, 8, 4)
        model = copy.deepcopy(start)
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[:16], Y[:16]), seed=SEED)
        losses = []
        for _ in job.epochs(1):
            for number, (x, y) in enumerate(loader):
                bad = group.rank == 1 and number == 0 and skip
                loss = functional.cross_entropy(model(x * poison if bad else x), y)
                job.backward(loss, weight=0 if bad else len(x))
                optimizer.step()
                optimizer.zero_grad()
                losses.append(job.loss)
        return model, losses

    start = build()
    (first, losses), (second, _) = run_ranks(2, lambda group: body(group, True))
    assert all(math.isfinite(value) for value in losses)
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b) and bool(torch.isfinite(a.double()).all())
    plain = build()
    functional.cross_entropy(plain(X[:4]), Y[:4]).backward()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter -= 0.1 * (parameter.grad if parameter.grad is not None else 0)
    # the second step starts from what one rank's half made: weighed by its samples alone
    assert losses[0] == pytest.approx(float(functional.cross_entropy(build()(X[:4]), Y[:4]).detach()), rel=1e-12)


def replaced(world_size: int, part: nn.Module) -> tuple[list[int], str]:
    """Puts a part into the model after two steps; returns micro-batches of later ones, and what ended the script."""

    def body(group: ThreadGroup) -> tuple[list[int], str]:
        job, sizes = thread_job(group, 4, 1), []
        model = nn.Sequential(nn.Linear(FEATURES, 3), nn.Identity()).double()
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        try:
            for (x,) in job.dataloader(TensorDataset(X[:24])):
                if job.step > 2:
                    sizes.append(len(x))
                job.backward(model(x).square().mean())
                if job.sync_gradients and job.step == 2:
                    model[1] = copy.deepcopy(part)
        except (ValueError, TypeError) as error:
            return sizes, str(error)
        return sizes, ""

    return run_ranks(world_size, body)[0]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (nn.Identity(), ""),
        (nn.BatchNorm1d(3).double(), "1 needs two. Raise max_batch_per_gpu"),
        (nn.SyncBatchNorm(3).double(), "1 is a SyncBatchNorm, which waits for all ranks"),
    ],
)
@pytest.mark.filterwarnings("ignore:step . ended without")
def test_a_part_that_comes_later_is_looked_at_as_those_that_were_prepared(part: nn.Module, said: str) -> None:
    sizes, error = replaced(2, part)
    assert said in error and bool(error) == bool(said), error
    assert sizes == ([] if said else [1, 1] * 3)


@pytest.mark.parametrize("call", ["evaluate", "gather"])
def test_looking_at_data_in_training_mode_leaves_the_statistics_equal_on_all_ranks(call: str) -> None:
    """They are brought together in steps alone: what each rank's samples had changed would stay for ever."""

    def body(group: ThreadGroup) -> list[torch.Tensor]:
        job = thread_job(group, 8, 4)
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 1)).double()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X), seed=SEED)
        for _ in job.epochs(2):
            for (x,) in loader:
                job.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            before = [buffer.clone() for buffer in model.buffers()]
            if call == "evaluate":
                job.evaluate(lambda x: {"sum": model(x).sum()}, loader)
            else:
                job.gather(model, loader)
            assert all(map(torch.equal, model.buffers(), before))
        return list(model.buffers())

    first, second = run_ranks(2, body)
    assert all(map(torch.equal, first, second))


def test_a_forward_pass_outside_of_steps_on_one_rank_is_warned_of_once() -> None:
    start = build()

    def body(group: ThreadGroup) -> float:
        looks = (lambda model: model(X)) if group.rank == 1 else (lambda model: None)
        return float(train(group, copy.deepcopy(start), 12, looks).state_dict()["2.running_mean"].sum())

    said = r"the buffer 2\.running_mean on rank 1; the buffer 2\.running_var on rank 1 \(compared with rank 0\).*eval"
    with pytest.warns(UserWarning, match=said) as warned:
        first, second = run_ranks(2, body)
    assert first != second and len(warned) == 1
