"""A node that was told to go waits for the boundary if that comes in time."""

from __future__ import annotations

import math
import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.control.messages import Halted, Save
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.health.monitor import Watch
from elastic_launcher.coordinator.model.actions import Order
from elastic_launcher.coordinator.model.deadlines import NOTICE_GATHER_SECONDS, time_to_save, too_far
from elastic_launcher.coordinator.model.ending import Restart, Stopping
from elastic_launcher.coordinator.model.observations import (
    Interrupted,
    NodeNoticed,
    NoticeExpires,
    Observation,
    StopAsked,
)
from elastic_launcher.coordinator.rules.ending import RESTART
from tests.support.played_job import Job, training


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


def hurried(job: Job, watch: Watch, vitals: Vitals) -> bool:
    """Returns whether all are told by now not to wait for the end of the step; some had notice, and go with them."""
    for number in job.state.group:
        watch.hear(number, job.now, vitals)
    for seen in watch.look(job.state, job.now):
        job.feed(seen)
    told = [one for one in job.actions if isinstance(one, Order) and one.order == Save(halt=True, at_once=True)]
    assert [one.members for one in told] in ([], [job.state.group])
    return bool(told)


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize(
    ("stop", "usual", "hurry_after"),
    [
        (StopAsked(0.0, "SIGTERM", 30.0), 30.0, 0.0),  # 28 s to the boundary, 20 s until it has to be saved
        (StopAsked(0.0, "SIGTERM", 30.0), 0.0, 16.0),  # a first step: nobody knows how long it takes
        (StopAsked(0.0, "SIGTERM", 600.0), 30.0, 558.0),  # then, a step that has just begun ends too late
        (StopAsked(0.0, "stopped by `elastic-launcher stop`"), 90.0, 0.0),
        (StopAsked(0.0, "stopped by `elastic-launcher stop`"), 30.0, 28.0),
        (Interrupted(0.0, signal.SIGTERM), 90.0, 0.0),
    ],
)
def test_a_job_that_stops_drops_the_step_whose_end_is_too_far(
    stop: Observation, usual: float, hurry_after: float, noticed: bool
) -> None:
    job, watch = training(3, grace_period=1000.0), Watch(2000.0, 2000.0, 0.0)
    job.now = 0.0
    if noticed:
        job.feed(NodeNoticed(0.0, 2, "signal"))
    job.feed(stop)
    if hurry_after:
        job.tick(hurry_after - 0.1)
        assert not hurried(job, watch, Vitals(usual=usual, since=2.0))
        job.tick(0.2)
    assert hurried(job, watch, Vitals(usual=usual, since=2.0))
    assert job.finish is None
    job.report(1, Halted(10))
    assert job.finish is not None and job.finish.exit_code in (75, 130)


def test_a_job_that_is_saved_to_restart_drops_no_step() -> None:
    job = training(1)
    job.now = 0.0
    halting = replace(job.state, stopping=Stopping(RESTART, "restarting (hint)", 60.0), restart=Restart("hint", 0.0))
    watch = Watch(100.0, 100.0, 0.0)
    watch.hear(1, 59.0, Vitals(usual=90.0, since=2.0))
    assert watch.look(halting, 59.0) == []


@pytest.mark.parametrize(("within", "by"), [(5.0, 5.0), (0.0, 0.0), (30.0, 15.0), (math.inf, 15.0)])
def test_a_node_has_no_more_time_than_its_notice_gives_it(within: float, by: float) -> None:
    job = training(3, grace_period=15.0)
    job.feed(NodeNoticed(job.now, 2, "its pod is being deleted", within))
    assert job.state.nodes[2].leave_by == job.now + by
    told_before = training(3, grace_period=15.0)
    told_before.feed(NodeNoticed(told_before.now, 2, "signal"))
    told_before.feed(NodeNoticed(told_before.now, 2, "its pod is being deleted", within))
    assert told_before.state.nodes[2].leave_by == told_before.now + by
    assert len(told_before.events("notice")) == 1


@given(st.floats(0.1, 1e6))
def test_the_time_to_save_is_some_and_leaves_some(within: float) -> None:
    assert 0 < time_to_save(within) < within


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
