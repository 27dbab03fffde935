"""Adaptive trainings: they choose the batch of most goodput, by what they measured, and end when they have to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.adaptive.throughput import ThroughputModel
from elastic_launcher.quota.allocation.worth import Settings
from elastic_launcher.quota.simulation.adaptive_batch import DECISION_SECONDS, AdaptiveBatch, step_seconds
from elastic_launcher.quota.simulation.courses import Application, FixedBatch, Rows
from elastic_launcher.quota.simulation.physics import InProcess, Restart, Spread
from elastic_launcher.quota.simulation.policies import Elastic
from elastic_launcher.quota.simulation.simulate import Job, simulate

MACHINES = {"a": 4, "b": 4}
NOISY, CLEAR = (1.0, 99.0), (1.0, 1e-6)  # squared norm and variance of a gradient


def rows(*values: tuple[float, ...]) -> Rows:
    return np.array(values, dtype=np.float64)


def application(*epochs: tuple[float, float]) -> Application:
    """Returns one with 1,000 steps of 8 samples in each epoch, of some noise.

    A step takes 0.1 s and 0.01 s for each sample, and 0.1 s more where there are several GPUs.
    """
    times: dict[Spread, Rows] = {(1,): rows((2, 0.12, 0.0), (32, 0.42, 0.0))}
    larger = {
        (machines, machines * each): rows((2, 0.22, 0.1), (32, 0.52, 0.1))
        for machines in (1, 2)
        for each in (1, 2, 4)
        if machines * each > 1
    }
    table = rows(*((1000.0 * (number + 1), *noise) for number, noise in enumerate(epochs)))
    return Application(times, {**larger, (1, 1): times[1,]}, {8: table, 256: table}, most=32)


def test_a_batch_begins_small_and_becomes_the_one_of_most_goodput() -> None:
    training = AdaptiveBatch(application(NOISY, NOISY)).begin()
    first = training.train((4,), DECISION_SECONDS / 2)
    assert training.batch == 8
    assert first == pytest.approx(1 / (0.1 + 0.02 + 0.1))
    assert training.train((4,), DECISION_SECONDS) > 2 * first
    assert training.batch > 64


def test_where_gradients_agree_the_smallest_batch_stays() -> None:
    training = AdaptiveBatch(application(CLEAR)).begin()
    training.train((4,), 60.0)
    assert training.batch == 8


def test_a_batch_follows_the_noise_of_another_epoch() -> None:
    training = AdaptiveBatch(application(CLEAR, NOISY)).begin()
    training.train((4,), training.seconds_left((4,)) * 0.9)
    assert (training.epoch, training.batch > 64) == (1, True)


def test_a_batch_that_has_no_place_on_other_gpus_gives_way_at_once() -> None:
    small = replace(application(NOISY), epochs={4: application(NOISY).epochs[8], 32: application(NOISY).epochs[8]})
    training = AdaptiveBatch(small).begin()
    training.train((1,), 1.0)
    assert training.batch == 4
    training.train((4,), 1.0)
    assert training.batch >= 8  # two samples for each GPU at least


def test_all_know_as_much_as_was_measured() -> None:
    course = AdaptiveBatch(application(NOISY))
    training = course.begin()
    assert training.model is None
    training.train((1,), 1.0)
    assert training.model is not None
    speeds = training.model.speeds(4)
    counts = np.arange(1, 9)
    assert speeds.curve(counts).tolist() == sorted(speeds.curve(counts).tolist())
    assert speeds.curve(np.array([1, 4])).tolist() == [1.0, speeds.at(1, 4)]
    unknown = speeds.at(1, 4)
    training.train((4,), 1.0)
    assert training.model.speeds(4).at(1, 4) < unknown, "synchronizing costs something, as it sees now"


def test_a_whole_training_is_never_slower_than_at_one_batch() -> None:
    course = AdaptiveBatch(application(CLEAR, NOISY))
    for spread in ((1,), (4,), (4, 4)):
        fixed = [FixedBatch(course.application, batch) for batch in course.batches(sum(spread))[0].tolist()]
        least = min(one.steps / one.rate(spread) for one in fixed)
        assert course.steps / course.rate(spread) <= least * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.01, 500.0), min_size=1, max_size=8),
    st.sampled_from([(1,), (3,), (2, 4)]),
    st.lists(st.sampled_from([NOISY, CLEAR, (1.0, 8.0)]), min_size=1, max_size=3),
)
def test_how_far_it_is_does_not_depend_on_how_often_it_is_looked_at(
    parts: list[float], spread: tuple[int, ...], epochs: list[tuple[float, float]]
) -> None:
    course = AdaptiveBatch(application(*epochs))
    often, once = course.begin(), course.begin()
    left = once.seconds_left(spread)
    for seconds in parts:
        often.train(spread, seconds)
    once.train(spread, sum(parts))
    assert often.done == pytest.approx(once.done) and often.epoch == once.epoch
    assert sum(parts) + once.seconds_left(spread) == pytest.approx(max(left, sum(parts)))
    once.train(spread, left)
    assert once.steps_left == pytest.approx(0.0, abs=1e-6)


@given(
    st.floats(0.0, 1.0), st.floats(1e-6, 0.1), st.floats(0.0, 1.0), st.floats(0.0, 0.1), st.floats(1.0, 10.0),
    st.sampled_from([(1, 1), (1, 4), (3, 8)]),
)  # fmt: skip
def test_a_step_takes_what_the_throughput_model_says(
    fixed: float, each: float, across: float, per_rank: float, overlap: float, places: tuple[int, int]
) -> None:
    model = ThroughputModel(fixed, each, across, per_rank, across / 2, per_rank / 2, overlap)
    sizes, counts = np.array([1, 8, 500]), np.array([1, 3, 2])
    expected = [model.step_seconds(*places, *one) for one in zip(sizes.tolist(), counts.tolist(), strict=True)]
    assert step_seconds(model, *places, sizes, counts) == pytest.approx(expected)


@pytest.mark.parametrize("in_process", [False, True])
def test_adaptive_jobs_share_machines_and_end_sooner(in_process: bool) -> None:
    shared = application(NOISY, NOISY)
    physics = InProcess() if in_process else Restart()

    def mean(jobs: list[Job]) -> float:
        results = [
            simulate(order, MACHINES, Elastic(Settings(in_process=in_process)), physics) for order in (jobs, jobs[::-1])
        ]
        assert results[0] == results[1]
        assert all(one.rho >= 0.9 for one in results[0].outcomes)
        return results[0].mean_completion_time

    adaptive = AdaptiveBatch(shared)
    assert mean([Job(f"job-{n}", 100.0 * n, adaptive, 4, 8) for n in range(4)]) < 0.7 * mean(
        [Job(f"job-{n}", 100.0 * n, FixedBatch(shared, 8), 4, 8) for n in range(4)]
    )
