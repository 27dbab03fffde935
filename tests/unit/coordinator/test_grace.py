"""A node that was told to go waits for the boundary if that comes in time."""

from __future__ import annotations

import pytest

from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.grace import NOTICE_GATHER_SECONDS, too_far
from elastic_launcher.coordinator.observations import NoticeExpires
from elastic_launcher.coordinator.watch import Watch
from tests.unit.coordinator.driver import training


@pytest.mark.parametrize(
    ("usual", "since", "formed", "left", "expected"),
    [
        (0.1, 0.05, False, 15.0, False),
        (10.0, 2.0, False, 15.0, False),  # 8 s to go, 13 s to have
        (20.0, 2.0, False, 15.0, True),
        (20.0, 19.5, True, 15.0, False),  # the step is almost done, and the others' group stands
        (20.0, 19.5, False, 15.0, True),  # it does not, so that it would be the boundary after that one
        (0.0, 0.0, False, 15.0, False),  # a first step, of which nobody knows how long it takes
        (0.0, 40.0, False, 2.0, True),
        (0.1, 40.0, True, 3.0, False),  # an evaluation
        (0.1, 40.0, True, 2.0, True),
    ],
)
def test_when_a_boundary_is_too_far(usual: float, since: float, formed: bool, left: float, expected: bool) -> None:
    assert too_far(usual, since, formed, left) is expected


@pytest.mark.parametrize(("usual", "expected"), [(30.0, [(2, 3)]), (0.1, [])])
def test_nodes_that_were_told_together_expire_together(usual: float, expected: list[tuple[int, ...]]) -> None:
    job = training(3)
    job.now = 0.0
    watch, found = Watch(10.0, 60.0, 0.0), []
    job.notice(2)
    job.notice(3)
    for tick in range(1, 12):
        now = job.now + tick / 20
        for number in job.state.group:
            watch.hear(number, now, Vitals(usual=usual, since=0.05))
        found += [one.nodes for one in watch.look(job.state, now) if isinstance(one, NoticeExpires)][:1]
        if found:
            break
    assert found == expected
    assert not found or now - job.now <= NOTICE_GATHER_SECONDS


def test_a_job_that_stops_keeps_time_to_save() -> None:
    job = training(1, grace_period=15.0)
    job.now = 0.0
    job.notice(1)
    watch = Watch(10.0, 60.0, 0.0)
    job.tick(10.5)
    watch.hear(1, job.now, Vitals(usual=0.1, since=9.0))
    assert watch.look(job.state, job.now) == []
    job.tick(1.0)
    assert [one.nodes for one in watch.look(job.state, job.now) if isinstance(one, NoticeExpires)] == [(1,)]
