"""Nodes that their queue takes back before they have trained stay the same Jobs; each pod of theirs has members of its
own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.control.messages import Abandon, Active, End, Failed, Form, Formed, StepFailed, Warm
from elastic_launcher.coordinator.model.observations import (
    MemberJoined,
    MemberSilent,
    NodeExited,
    NodeNoticed,
    NodeRegistered,
    NodeStands,
)
from elastic_launcher.coordinator.model.roster import Exit, Phase
from tests.support.played_job import Job, growing, training

QUEUED = "its Job is suspended by queue gpus: it waits for quota admission"
TAKEN_BACK = "taken back: its Job is suspended by queue gpus"
SUCCESSOR = "its Job has its next pod"


def joining(nproc: int = 1, **rules: Any) -> Job:
    """Returns a job that trains on node 1, whose node 2 is about to come."""
    job = training(1, nproc=nproc, replaces_noticed=True, **rules)
    job.target(2)
    register(job, 2, "a")
    job.look()
    return job


def forming(survivors: int, joiners: int) -> Job:
    """Returns a job of a cluster whose grow formation has just been ordered."""
    job = growing(survivors, joiners)
    job.state = replace(job.state, rules=replace(job.state.rules, replaces_noticed=True))
    return job


def register(job: Job, node: int, pod: str) -> None:
    job.feed(NodeRegistered(job.now, node, pod))


def tell(job: Job, node: int, pod: str) -> None:
    """Has the agent and the engine say that a queue takes the node's pod back."""
    job.feed(NodeNoticed(job.now, node, "signal"))
    job.feed(NodeNoticed(job.now, node, TAKEN_BACK, 30.0, again=True, pod=pod))


def go(job: Job, node: int, pod: str, *ranks: tuple[int, Exit], again: str = QUEUED) -> None:
    why = "its pod was deleted"
    job.feed(NodeExited(job.now, node, None, ranks, why=why, taken=True, again=again, pod=pod))


@pytest.mark.parametrize("stage", ["joined", "half", "warm", "half warm"])
@pytest.mark.parametrize("heard", ["told", "gone", "both"])
def test_a_node_that_never_trained_stays_the_same_job_and_its_next_pod_is_of_new_members(
    stage: str, heard: str
) -> None:
    job = joining(nproc=2)
    if stage in ("joined", "warm"):
        job.join(2)
    for member in {"half": (3,), "half warm": (3,), "warm": (3, 4)}.get(stage, ()):
        job.feed(MemberJoined(job.now, member, 1000 + member))
    for member in {"half warm": (3,), "warm": (3, 4)}.get(stage, ()):
        job.report(member, Warm({"dataset": 100}))
    job.look()
    if heard != "gone":
        tell(job, 2, "a")
    if heard != "told":
        go(job, 2, "a")
    node = job.state.nodes[2]
    assert (node.phase, node.members, node.queued, bool(node.waits)) == (Phase.STARTING, (5, 6), True, True)
    assert [job.state.members[number].local_rank for number in node.members] == [0, 1]
    assert (job.killed, len(job.started)) == ([], 2)
    assert job.events("node_requeued") == [{"node": 2, "members": [5, 6], "pod": "a"}]
    assert not job.events("notice") and not job.events("node_left") and not job.events("node_failed")
    assert {3, 4} & {*job.told(End)} == ({3} if "half" in stage else {3, 4})
    job.tick(100_000)
    assert (job.killed, len(job.started), job.finish) == ([], 2, None)

    if heard == "told":
        go(job, 2, "a")
    register(job, 2, "b")
    job.feed(NodeStands(job.now, 2, ""))
    job.tick(1)
    assert job.state.nodes[2].members == (5, 6)
    job.warm(2)
    job.tick(5)
    assert (job.form.mode, job.form.members) == ("grow", (1, 2, 5, 6))
    job.complete(20)
    assert job.state.group == (1, 2, 5, 6)


def test_numbers_go_on_after_those_of_a_second_pod() -> None:
    job = joining()
    job.join(2)
    go(job, 2, "a")
    job.target(3)
    assert [(one.node, one.first_member) for one in job.started] == [(1, 1), (2, 2), (3, 4)]
    job.join(2)
    go(job, 2, "")
    assert job.state.nodes[2].members == (5,)


def test_what_is_heard_of_an_earlier_pod_changes_nothing() -> None:
    job = joining()
    job.warm(2)
    tell(job, 2, "a")
    state = job.state
    job.report(2, Warm({"dataset": 100}))
    job.report(2, Failed("ValueError: boom"))
    job.report(2, Active(7, 20, 21))
    job.report(2, StepFailed(1, 10, "reset"))
    job.feed(NodeNoticed(job.now, 2, TAKEN_BACK, 30.0, again=True, pod="a"))
    assert job.state == state
    job.feed(MemberJoined(job.now, 2, 4711))
    assert job.told(End)[-1] == 2
    go(job, 2, "a", again=SUCCESSOR)
    register(job, 2, "b")
    job.warm(2)
    job.tick(5)
    formation = job.form.members
    go(job, 2, "a", (0, Exit(75)))
    job.feed(NodeNoticed(job.now, 2, "its pod is being deleted", again=True, pod="a"))
    assert (formation, job.state.nodes[2].phase, job.killed) == ((1, 3), Phase.WARM, [])
    job.complete(20)
    state = job.state
    go(job, 2, "a")
    job.feed(NodeNoticed(job.now, 2, TAKEN_BACK, 30.0, again=True, pod="a"))
    job.feed(NodeNoticed(job.now, 2, "its pod is being deleted", pod="a"))
    assert (job.state, job.killed) == (state, [])
    assert (state.group, state.nodes[2].phase) == ((1, 3), Phase.ADMITTED)


def test_a_requeued_node_has_all_its_time_before_the_others_are_given_back() -> None:
    job = Job(minimum=2, target=2, replaces_noticed=True, min_wait=300.0)
    job.warm(1)
    job.join(2)
    job.tick(310)
    tell(job, 2, "")
    assert job.tick(299) == () and job.killed == []
    job.tick(2)
    assert job.killed == [1], "the one that holds a place"


def test_how_ranks_of_a_pod_ended_that_was_taken_back_is_not_held_against_the_node() -> None:
    job = joining()
    job.join(2)
    go(job, 2, "a", (0, Exit(143)))
    assert (job.killed, job.state.nodes[2].members, job.state.failures) == ([], (3,), 0)
    job.feed(MemberSilent(job.now, 3, 1.0, over=True))
    assert not job.state.exited(job.state.nodes[2])


def test_a_pod_that_asks_twice_has_the_same_members_and_one_that_never_asked_has_used_none() -> None:
    job = joining()
    register(job, 2, "a")
    assert job.state.nodes[2].members == (2,)
    tell(job, 2, "a")
    assert job.state.nodes[2].members == (3,)
    go(job, 2, "a")
    go(job, 2, "b")
    assert (job.state.nodes[2].members, job.state.nodes[2].pod) == ((3,), "")
    register(job, 2, "c")
    assert (job.state.nodes[2].members, job.state.nodes[2].pod) == ((3,), "c")


def test_a_pod_that_asks_before_the_end_of_the_one_before_is_known_has_other_members() -> None:
    job = joining()
    job.warm(2)
    register(job, 2, "b")
    node = job.state.nodes[2]
    assert (node.members, node.pod, node.phase, node.waits) == ((3,), "b", Phase.STARTING, "")
    go(job, 2, "a", again=SUCCESSOR)
    assert job.state.nodes[2] == node


def test_a_pod_that_asks_late_within_the_grace_of_its_end_shares_its_members_with_none() -> None:
    job = joining()
    job.join(2)
    tell(job, 2, "a")
    register(job, 2, "a")
    go(job, 2, "a")
    assert job.state.nodes[2].members == (4,)


def test_a_node_that_trains_has_one_pod() -> None:
    job = joining()
    job.warm(2)
    job.tick(5)
    job.complete(20)
    state = job.state
    register(job, 2, "b")
    assert job.state == state
    tell(job, 2, "a")
    assert job.state.nodes[2].leave == "notice"


def test_a_formation_is_given_up_where_a_queue_takes_back_who_was_to_join() -> None:
    job = forming(2, 2)
    number = job.form.formation
    job.report_all((1, 2, 3), Formed(number))
    tell(job, 4, "")
    assert job.orders(Abandon) == [Abandon(number)] and 4 in job.told(Abandon)
    assert (job.killed, job.events("node_failed"), job.state.nodes[4].members) == ([], [], (5,))
    job.tick(5)
    assert job.orders(Form)[-1].members == (1, 2, 3)
    job.complete(20)
    assert (job.state.group, job.state.nodes[4].phase) == ((1, 2, 3), Phase.STARTING)


def test_who_has_done_a_step_in_a_formation_leaves_as_who_trains() -> None:
    job = forming(1, 1)
    job.report(2, Active(job.form.formation, 11, 12))
    tell(job, 2, "")
    assert (job.state.nodes[2].leave, job.state.nodes[2].members) == ("notice", (2,))


def test_the_time_to_come_up_and_the_time_to_find_a_place_start_over() -> None:
    job = joining(start_timeout=600.0, pending_timeout=3600.0)
    job.warm(2)
    job.now += 10_000  # it was warm, and waited for the others
    tell(job, 2, "a")
    job.tick(3500)
    assert job.killed == []
    register(job, 2, "b")
    job.feed(NodeStands(job.now, 2, ""))
    job.tick(500)
    assert job.killed == []
    job.tick(101)
    assert job.killed == [2]
