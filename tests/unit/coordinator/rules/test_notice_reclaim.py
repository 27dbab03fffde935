"""Nodes that a hint takes back by a time leave within the step where the next boundary comes too late for that."""

from __future__ import annotations

import math

import pytest

from elastic_launcher.control.messages import Halted, Save
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.health.monitor import Watch
from elastic_launcher.coordinator.model.deadlines import RESERVE_SECONDS
from elastic_launcher.coordinator.model.observations import NodeNoticed, NoticeExpires, TargetChanged
from elastic_launcher.coordinator.model.state import Target
from tests.support.played_job import Job, lose, training

LONG_STEP = Vitals(usual=60.0, since=1.0)


def reclaim(job: Job, nodes: int, left: float) -> None:
    """A hint leaves so many nodes, and may kill the others after so many seconds."""
    job.feed(TargetChanged(job.now, Target(nodes, by=job.now + left), "the hint allows too few"))


def expired(job: Job, vitals: Vitals = LONG_STEP) -> list[int]:
    """Returns the nodes that can't wait, by what each of the ranks tells now."""
    watch = Watch(10.0, 60.0, job.now)
    for number in job.state.group:
        watch.hear(number, job.now, vitals)
    found = [one for one in watch.look(job.state, job.now) if isinstance(one, NoticeExpires)]
    return [node for one in found for node in one.nodes]


@pytest.mark.parametrize(
    ("left", "vitals", "expected"),
    [
        (30.0, LONG_STEP, [2, 3]),
        (30.0, Vitals(usual=5.0, since=1.0), []),
        (math.inf, LONG_STEP, []),
        (30.0, Vitals(), []),  # a first step, of which nobody knows how long it takes
        (RESERVE_SECONDS, Vitals(), [2, 3]),
    ],
)
def test_nodes_that_are_taken_back_wait_for_a_boundary_that_comes_in_time(
    left: float, vitals: Vitals, expected: list[int]
) -> None:
    job = training(3)
    reclaim(job, 1, left)
    assert expired(job, vitals) == expected


def test_they_leave_within_the_step_and_nobody_is_blamed() -> None:
    job = training(3)
    reclaim(job, 1, 30.0)
    job.feed(NoticeExpires(job.now, tuple(expired(job))))
    job.break_step((1,), 1, 10)
    assert (job.form.mode, job.form.members, job.form.cause) == ("recover", (1,), "hint")
    job.complete(10)
    assert [(event["node"], event["cause"]) for event in job.events("node_left")] == [(2, "hint"), (3, "hint")]
    assert (job.events("node_lost"), job.state.broke, job.finish) == ([], 0, None)


@pytest.mark.parametrize("left", [math.inf, 3600.0])
def test_a_reclaim_that_is_put_off_or_taken_back_in_time_breaks_no_step(left: float) -> None:
    job = training(3)
    reclaim(job, 1, 30.0)
    assert expired(job) == [2, 3]
    reclaim(job, 3 if left == math.inf else 1, left)
    assert expired(job) == []


def test_one_that_is_brought_forward_counts_from_then_on() -> None:
    job = training(3)
    reclaim(job, 1, 3600.0)
    assert expired(job) == []
    reclaim(job, 1, 30.0)
    assert expired(job) == [2, 3]


def test_one_that_is_taken_back_before_the_boundary_was_asked_for_takes_nothing() -> None:
    job = training(2)
    job.state = job.state.with_node(2, leave="hint", leave_by=job.now + 30.0)
    reclaim(job, 2, math.inf)
    assert (job.state.nodes[2].leave, job.state.nodes[2].leave_by) == ("", math.inf)


def test_a_notice_does_not_put_a_reclaim_off() -> None:
    job = training(3, grace_period=15.0)
    reclaim(job, 2, 5.0)
    job.feed(NodeNoticed(job.now, 3, "signal"))
    node = job.state.nodes[3]
    assert (node.leave, node.leave_by) == ("notice", job.now + 5.0)


def test_a_node_that_is_killed_when_its_time_is_over_is_no_failure() -> None:
    job = training(3)
    reclaim(job, 2, 5.0)
    lose(job, 3)
    job.break_step((1, 2), 1, 10)
    assert (job.form.members, job.form.cause) == ((1, 2), "hint")
    assert (job.state.losses, job.state.to_replace, job.state.broke) == (0, 0, 0)


@pytest.mark.parametrize("wait", [0.0, 60.0], ids=["ends", "waits"])
def test_a_job_that_loses_all_of_its_quota_is_saved_within_the_step(wait: float) -> None:
    job = training(2, wait_for_quota=wait)
    reclaim(job, 0, 30.0)
    assert job.orders(Save) == [Save(halt=True)]
    assert expired(job, Vitals(usual=5.0, since=1.0)) == []
    assert expired(job) == [1, 2]
    for _ in range(2):
        job.feed(NoticeExpires(job.now, (1, 2)))
    assert job.orders(Save) == [Save(halt=True), Save(halt=True, at_once=True)]
    job.report(2, Halted(10, saved=False))
    job.report(1, Halted(10))
    assert (job.finish is not None and job.finish.exit_code == 75) == (not wait)
    assert set(job.killed) == ({1, 2} if wait else set())
