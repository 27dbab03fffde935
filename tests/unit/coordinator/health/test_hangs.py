"""A rank that lives and gets no further inside a step is lost; who is not to be judged, or not waited for, is not."""

from __future__ import annotations

import pytest

from elastic_launcher.control.messages import Form
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.health.hangs import find_stuck, limit
from elastic_launcher.coordinator.health.monitor import Watch
from elastic_launcher.coordinator.model.observations import MemberStuck
from tests.support.played_job import Job, training


@pytest.mark.parametrize(
    ("usual", "floor", "expected"),
    [([], 60.0, 60.0), ([0.0, 0.5], 60.0, 60.0), ([0.5, 12.0], 60.0, 120.0), ([0.5], 3.0, 5.0)],
)
def test_too_long_is_ten_usual_steps_and_never_less_than_the_floor(
    usual: list[float], floor: float, expected: float
) -> None:
    assert limit(usual, floor) == expected


@pytest.mark.parametrize(
    ("at_work", "waits", "expected"),
    [
        ({2: 61.0}, {1: 61.0, 2: 0.0, 3: 60.5}, [2]),
        ({2: 59.0}, {1: 61.0, 2: 0.0}, []),  # not too long yet
        ({2: 61.0}, {1: 59.0, 2: 0.0}, []),  # the others have not waited so long
        ({}, {1: 61.0, 2: 0.0}, []),  # it evaluates, or compiles
        ({1: 61.0, 2: 61.0}, {1: 0.0, 2: 0.0}, []),  # nobody waits: all do the same
        ({1: 61.0}, {1: 0.0}, []),  # alone
        ({3: 61.0, 2: 70.0}, {1: 61.0, 2: 0.0, 3: 0.0}, [2, 3]),
    ],
)
def test_who_is_stuck(at_work: dict[int, float], waits: dict[int, float], expected: list[int]) -> None:
    assert find_stuck(at_work, waits, 60.0) == expected


def look(job: Job, told: dict[int, list[Vitals]], seconds: int, pause_at: int = -1) -> list[MemberStuck]:
    """Has members tell their vitals each second, the last ones again and again; returns who was found to be stuck."""
    watch, slept, found = Watch(10.0, 60.0, 0.0), 0.0, []
    for second in range(seconds):
        if second == pause_at:
            slept = 3600.0
        for number, series in told.items():
            watch.hear(number, second + slept, series[min(second, len(series) - 1)])
        found += [one for one in watch.look(job.state, second + slept) if isinstance(one, MemberStuck)]
    return found


WAITING = [Vitals(waits=float(second), usual=0.5) for second in range(200)]


def test_the_one_that_neither_waits_nor_gets_further_is_lost_and_the_step_is_done_again() -> None:
    job = training(3)
    found = look(job, {1: WAITING, 2: [Vitals(work=7, usual=0.5)], 3: WAITING}, 70)
    assert {one.member for one in found} == {2}
    job.feed(found[0])
    assert job.killed == [2]
    assert "made no progress in its step for 61 s while others waited for it" in job.events("node_lost")[0]["message"]
    job.break_step((1, 3), 1, 10)
    assert job.orders(Form)[-1].members == (1, 3)
    job.feed(found[-1])
    assert len(job.events("node_lost")) == 1


@pytest.mark.parametrize(
    "series",
    [
        pytest.param([Vitals(work=number, usual=0.5) for number in range(1, 200)], id="a new step each time"),
        pytest.param([Vitals(work=0, usual=0.5)], id="not to be judged"),
        pytest.param([Vitals(work=7, usual=20.0)], id="its steps are long"),
    ],
)
def test_nobody_else_is_lost(series: list[Vitals]) -> None:
    assert look(training(2), {1: WAITING, 2: series}, 150) == []


def test_a_machine_that_slept_has_nobody_stuck() -> None:
    waits = [Vitals(waits=3600.0 + second) for second in range(60)]
    assert look(training(2), {1: waits, 2: [Vitals(work=7)]}, 40, pause_at=5) == []
