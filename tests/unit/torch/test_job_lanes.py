"""Lanes and draws by weight train like one plain process, on any number of ranks, with any micro-batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, TensorDataset, WeightedRandomSampler

import elastic_launcher.torch as elastic
from elastic_launcher.torch.job import Job
from elastic_launcher.weighted_sampling import WeightedSampling
from tests.support.lane_batches import lane_batches
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import SAMPLES, SEED, X, Y, linear

LENGTHS, BATCH, EPOCHS = (7, 13, 11), 6, 2
FIRSTS = list(itertools.accumulate(LENGTHS, initial=0))
WORLDS = pytest.mark.parametrize(("world_size", "micro"), [(1, 6), (1, 2), (2, 6), (3, 1), (3, 6)])


def read(lane: int, epoch: int, start: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    for place in range(start, LENGTHS[lane]):
        number = FIRSTS[lane] + place
        yield X[number] + epoch, Y[number], number


def stream(**more: Any) -> Any:
    return elastic.lanes(read, lanes=len(LENGTHS), lengths=LENGTHS, **more)


def train(job: Job, loader: Any, batches: list[list[int]] | None = None) -> nn.Module:
    """Trains on a loader; writes down which samples each step had."""
    model = linear()
    model, optimizer = job.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
    for _ in job.epochs(EPOCHS):
        numbers: list[torch.Tensor] = []
        for x, y, number in loader:
            if job.micro is not None and job.micro.first:
                numbers.clear()
            numbers.append(number[: job.samples])
            job.backward(functional.cross_entropy(model(x), y))
            if job.sync_gradients:
                found = job.gather(torch.cat(numbers))
                if batches is not None and job.rank == 0:
                    batches.append(found.tolist())
            optimizer.step()
            optimizer.zero_grad()
    return model


def train_plain(batches: list[list[int]], shift: bool) -> nn.Module:
    """Returns what plain torch makes of these batches; each epoch's samples are shifted by its number."""
    model = linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step, numbers in enumerate(batches):
        x = X[numbers] + step * EPOCHS // len(batches) * shift
        optimizer.zero_grad()
        functional.cross_entropy(model(x), Y[numbers]).backward()
        optimizer.step()
    return model


def assert_same(models: list[nn.Module], plain: nn.Module) -> None:
    for model in models:
        for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert mine.detach().numpy() == pytest.approx(other.detach().numpy(), rel=1e-9)


@WORLDS
@pytest.mark.parametrize("shuffle", [False, True])
def test_lanes_train_like_one_plain_process(world_size: int, micro: int, shuffle: bool) -> None:
    batches: list[list[int]] = []

    def body(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, micro)
        return train(job, job.dataloader(stream(shuffle_block=4), shuffle=shuffle, seed=SEED), batches)

    models = run_ranks(world_size, body)
    expected = [[FIRSTS[lane] + place for lane, place in step] for step in lane_batches(LENGTHS, BATCH)]
    assert (batches == expected * EPOCHS) is not shuffle
    steps = len(expected)
    for first in (0, steps):
        assert sorted(itertools.chain(*batches[first : first + steps])) == list(range(sum(LENGTHS)))
    assert_same(models, train_plain(batches, True))


def test_a_shuffled_epoch_of_lanes_is_the_same_on_any_number_of_ranks() -> None:
    found = []
    for world_size in (1, 2, 3):
        batches: list[list[int]] = []

        def body(group: ThreadGroup, batches: list[list[int]] = batches) -> nn.Module:
            job = thread_job(group, BATCH, 2)
            return train(job, job.dataloader(stream(shuffle_block=4), shuffle=True, seed=SEED), batches)

        run_ranks(world_size, body)
        found.append(batches)
    assert found[0] == found[1] == found[2]


@WORLDS
@pytest.mark.parametrize("replacement", [False, True])
def test_draws_by_weight_train_like_one_plain_process(world_size: int, micro: int, replacement: bool) -> None:
    weights, draws = np.arange(SAMPLES) % 3, 20
    batches: list[list[int]] = []
    data = TensorDataset(X, Y, torch.arange(SAMPLES))

    def body(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, micro)
        loader = job.dataloader(data, weights=weights, num_samples=draws, replacement=replacement, seed=SEED)
        assert [loader.samples(step) for step in range(loader.steps_per_epoch)] == [6, 6, 6, 2]
        return train(job, loader, batches)

    models = run_ranks(world_size, body)
    drawn = [WeightedSampling(weights, draws, replacement).indices(SEED, epoch, 0, draws) for epoch in range(EPOCHS)]
    assert batches == [list(epoch[start : start + BATCH]) for epoch in drawn for start in range(0, draws, BATCH)]
    assert_same(models, train_plain(batches, False))


def test_a_sample_that_is_drawn_twice_is_augmented_in_two_ways() -> None:
    class Augmented(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return index, torch.rand(())

    job = run_ranks(1, lambda group: thread_job(group, 4, 4))[0]
    loader = job.dataloader(Augmented(X[:2]), weights=[0, 1], num_samples=4)
    numbers, drawn = loader.take((0, 0, 4))
    assert numbers.tolist() == [1] * 4 and len(set(drawn.tolist())) == 4
    parts = [loader.take((0, start, 2))[1] for start in (0, 2)]
    assert torch.equal(torch.cat(parts), drawn)


@pytest.mark.parametrize("shuffle", [False, True])
def test_lanes_are_evaluated_and_gathered_each_sample_once(shuffle: bool) -> None:
    def body(group: ThreadGroup) -> tuple[dict[str, Any], Any]:
        job = thread_job(group, BATCH, 4)
        loader = job.dataloader(stream(), shuffle=shuffle)
        sums = job.evaluate(lambda x, y, number: {"numbers": number.sum(), "x": x.sum()}, loader)
        return sums, job.gather(lambda x, y, number: number, loader)

    for sums, rows in run_ranks(2, body):
        count = sum(LENGTHS)
        assert sums == {"numbers": sum(range(count)), "x": pytest.approx(float(X[:count].sum())), "count": count}
        assert sorted(rows.tolist()) == list(range(count))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("collate", [None, lambda samples: [number for _, _, number in samples]])
def test_workers_read_what_the_rank_would(shuffle: bool, collate: Any) -> None:
    job = run_ranks(1, lambda group: thread_job(group, BATCH, 4))[0]
    alone, helped = (
        job.dataloader(stream(), shuffle=shuffle, collate_fn=collate, num_workers=workers) for workers in (0, 2)
    )
    pieces = [(1, start, min(4, sum(LENGTHS) - start)) for start in range(0, sum(LENGTHS), 4)]
    try:
        for number, piece in enumerate(pieces):
            helped.want(pieces[number : number + 3])
            mine, theirs = alone.take(piece), helped.take(piece)
            if collate is not None:
                assert mine == theirs
            else:
                assert all(map(torch.equal, mine, theirs))
    finally:
        helped.close()


def test_an_error_of_a_lane_comes_from_its_worker() -> None:
    job = run_ranks(1, lambda group: thread_job(group, BATCH, 4))[0]
    short = elastic.lanes(lambda lane, epoch, start: iter(range(start, 5)), lanes=2, lengths=[5, 9])
    loader = job.dataloader(short, num_workers=2)
    try:
        with pytest.raises(ValueError, match=r"lane 1 ended early: open\(1, 0, 4\) gave 1 samples"):
            loader.take((0, 6, 6))
    finally:
        loader.close()


class Stream(IterableDataset[int]):
    """Samples one after the other."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


DATA = TensorDataset(X, Y)


@pytest.mark.parametrize(
    ("dataset", "options", "error", "message"),
    [
        (
            Stream(),
            {},
            TypeError,
            r"IterableDataset.*map-style data set.*elastic.lanes\(open, lanes=.*integrations.streams",
        ),
        (DATA, {"sampler": WeightedRandomSampler([1.0], 1)}, TypeError, "sampler=.*weights=, num_samples="),
        (DATA, {"weights": [1.0, 2.0]}, ValueError, f"2 weights and {SAMPLES} samples; give one for each"),
        (DATA, {"weights": [1.0] * SAMPLES, "shuffle": True}, ValueError, "leave shuffle=True out"),
        (DATA, {"num_samples": 5}, TypeError, "only together with weights="),
        (DATA, {"replacement": False}, TypeError, "only together with weights="),
        (stream(), {"weights": [1.0] * 31}, TypeError, "no weights= for lanes"),
        (elastic.lanes(read, lanes=7, lengths=3), {}, ValueError, "7 lanes, and the global batch has 6 samples"),
    ],
)
def test_what_a_loader_can_not_be_made_of_is_refused(
    dataset: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    job = run_ranks(1, lambda group: thread_job(group, BATCH, 4))[0]
    with pytest.raises(error, match=message):
        job.dataloader(dataset, **options)


def test_ranks_must_have_the_same_lanes_and_weights() -> None:
    job = run_ranks(1, lambda group: thread_job(group, BATCH, 4))[0]
    names = {job.dataloader(one).name for one in (stream(), stream(shuffle_block=4))}
    names |= {job.dataloader(elastic.lanes(read, lanes=2, lengths=lengths)).name for lengths in ([3, 4], [4, 3])}
    names |= {job.dataloader(DATA, weights=np.arange(SAMPLES) + more).name for more in (1, 2)}
    assert len(names) == 6 and "TensorDataset by weights" in max(names)
    assert copy.copy(stream()).name == stream().name
