"""A rank is a straggler when its own time of a step is twice the median, by the step and by the sample, for long."""

from __future__ import annotations

import pytest

from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.health.monitor import Watch
from elastic_launcher.coordinator.health.stragglers import LONG_SECONDS, Change, Slow, factors, judge
from elastic_launcher.coordinator.model.observations import MemberSlow
from tests.support.played_job import training


def vitals(own: float, samples: int = 8, steps: int = 20) -> Vitals:
    return Vitals(own=own, per_sample=own / samples, steps=steps)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({1: vitals(0.1), 2: vitals(0.1), 3: vitals(0.3)}, {1: 1.0, 2: 1.0, 3: 3.0}),
        ({1: vitals(0.1), 2: vitals(0.4)}, {1: 1.0, 2: 4.0}),
        ({1: vitals(0.1, 1), 2: vitals(0.2, 2)}, {1: 1.0, 2: 1.0}),  # twice the samples
        ({1: vitals(0.1), 2: vitals(0.3), 3: vitals(0.3)}, {1: 1 / 3, 2: 1.0, 3: 1.0}),
        ({1: vitals(0.1), 2: vitals(0.4, steps=5)}, {}),  # too few steps to say
        ({1: vitals(0.1), 2: Vitals()}, {}),  # it has no samples
        ({1: vitals(0.1)}, {}),
    ],
)
def test_how_slow_each_rank_is(told: dict[int, Vitals], expected: dict[int, float]) -> None:
    assert factors(told) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        pytest.param([(0, 3.0), (9, 3.0)], [], id="not for long enough"),
        pytest.param([(0, 3.0), (11, 2.5)], [Change(2, 2.5, False)], id="for long"),
        pytest.param([(0, 3.0), (11, 2.5), (30, 2.5)], [Change(2, 2.5, False)], id="told once"),
        pytest.param([(0, 3.0), (9, 1.9), (11, 3.0), (20, 3.0)], [], id="with a pause between"),
        pytest.param([(0, 3.0), (11, 3.0), (12, 1.8)], [Change(2, 3.0, False)], id="a little better is not over"),
        pytest.param(
            [(0, 3.0), (11, 3.0), (12, 1.2), (13, 3.0), (24, 4.0)],
            [Change(2, 3.0, False), Change(2, 1.2, True), Change(2, 4.0, False)],
            id="over and again",
        ),
    ],
)
def test_what_is_told_of_a_rank(series: list[tuple[float, float]], expected: list[Change]) -> None:
    slow, found = Slow(), list[Change]()
    for now, factor in series:
        slow, changes = judge(slow, {1: 1.0, 2: factor, 3: 1.0}, now)
        found += changes
    assert found == expected


def test_who_is_not_judged_any_more_is_not_told_of() -> None:
    slow, _ = judge(Slow(), {1: 1.0, 2: 3.0}, 0.0)
    slow, changes = judge(slow, {}, LONG_SECONDS)
    assert (dict(slow.since), changes) == ({}, ())


def test_a_straggler_is_an_event_with_its_rank_and_node() -> None:
    job, watch = training(3, nproc=2), Watch(10.0, 60.0, 0.0)
    for second in range(13):
        for number in job.state.group:
            watch.hear(number, second, vitals(0.5 if number == 4 else 0.1))
        for one in watch.look(job.state, second):
            job.feed(one)
            assert isinstance(one, MemberSlow)
    assert job.events("straggler") == [
        {"member": 4, "rank": 3, "node": 2, "factor": 5.0, "step_seconds": 0.5, "over": False}
    ]
