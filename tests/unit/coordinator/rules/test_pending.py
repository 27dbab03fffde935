"""Nodes that wait for a place to run, that are taken, or that can't be asked for: nobody is to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Progress
from elastic_launcher.coordinator.model.actions import KillNode, StartNode
from elastic_launcher.coordinator.model.ending import Restart
from elastic_launcher.coordinator.model.observations import NodeExited, NodeNoticed, NodeNotStarted, NodeStands
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.checkpoint_restart import state_after
from elastic_launcher.coordinator.rules.nodes import AWAY_SECONDS
from elastic_launcher.coordinator.rules.pending import QUEUE_SECONDS
from tests.support.played_job import Job, lose, redo, training

WHY = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"


def pend(job: Job, node: int, waits: str = WHY) -> None:
    job.feed(NodeStands(job.now, node, waits))


def test_a_node_that_waits_for_room_is_not_late() -> None:
    job = Job(target=1, start_timeout=600.0)
    pend(job, 1)
    job.tick(10_000)
    assert job.state.nodes[1].phase is Phase.STARTING
    pend(job, 1, "")
    job.tick(599)
    assert job.state.nodes[1].phase is Phase.STARTING
    job.tick(2)
    assert job.state.nodes[1].phase is Phase.ENDING
    assert "was not ready to train 600 s after its start" in job.events("node_failed")[0]["message"]


QUEUED = "its Job is suspended by queue gpus: it waits for quota admission"


def queued(job: Job, node: int) -> None:
    job.feed(NodeStands(job.now, node, QUEUED, queued=True))


@pytest.mark.parametrize("noticed", [False, True])
def test_a_node_that_its_queue_takes_back_before_it_began_stays_the_same_job(noticed: bool) -> None:
    """As by Kueue's `waitForPodsReady`, which counts how often, backs off, and gives the Job up at last."""
    job = training(1, replaces_noticed=True)
    job.target(2)
    for _ in range(3):
        pend(job, 2, "")
        if noticed:  # its agent ran, and its engine may say so later
            job.feed(NodeNoticed(job.now, 2, "signal"))
            job.feed(NodeNoticed(job.now, 2, "taken back: its Job is suspended by queue gpus", 30.0, again=True))
        job.feed(NodeExited(job.now, 2, None, why="its pod was deleted", taken=True, again=QUEUED))
        job.tick(100_000)
    assert (job.killed, len(job.started), job.state.target.nodes) == ([], 2, 2)  # type: ignore[union-attr]
    assert not job.events("notice") and not job.events("node_left")
    pend(job, 2, "")
    job.warm(2)
    assert (job.form.mode, job.form.members) == ("grow", (1, 2))


@pytest.mark.parametrize(("seconds", "cause"), [(QUEUE_SECONDS - 1, "hint"), (QUEUE_SECONDS + 1, "queue")])
def test_a_generation_that_a_queue_made_possible_is_no_hints_doing(seconds: float, cause: str) -> None:
    """Every Job of a queue is suspended at first; one that is admitted at once comes because of the hint."""
    job = training(1, replaces_noticed=True)
    job.target(2)
    queued(job, 2)
    job.tick(seconds)
    pend(job, 2, "its container is being started on m")
    pend(job, 2, "")
    job.warm(2)
    assert job.form.cause == cause


def test_a_node_that_trained_is_another_one_after_its_queue_took_it_back() -> None:
    job = training(2, replaces_noticed=True)
    job.feed(NodeExited(job.now, 2, 143, taken=True, again=QUEUED))
    assert KillNode(2) in job.look(), "its Job goes, so that no pod of it comes"
    assert job.state.nodes[2].phase is Phase.ENDING
    job.feed(NodeExited(job.now, 2, None, why="its Job was deleted", taken=True))
    assert job.state.nodes[2].phase is Phase.GONE
    assert job.finish is None


def test_a_signal_to_a_node_that_has_not_begun_waits_for_what_its_engine_says() -> None:
    job = training(1, replaces_noticed=True)
    job.target(2)
    job.feed(NodeNoticed(job.now, 2, "signal"))
    assert job.killed == []
    job.feed(NodeNoticed(job.now, 2, "evicted", 30.0))
    assert job.killed == [2]


def test_places_that_are_given_back_are_no_places_in_a_queue() -> None:
    job = Job(minimum=2, target=2, min_wait=60.0)
    queued(job, 2)
    job.tick(61)
    assert job.killed == [1]
    assert "these are given back" in job.events("warning")[-1]["message"]
    job.feed(NodeExited(job.now, 1, None))
    job.tick(100)
    assert [one.node for one in job.started] == [1, 2, 3]


def test_the_others_train_while_one_waits() -> None:
    job = Job(minimum=1, target=2)
    pend(job, 2)
    job.warm(1)
    assert job.form.members == (1,)


def test_what_has_waited_too_long_is_given_up_until_the_target_is_raised() -> None:
    job = Job(minimum=1, target=2, pending_timeout=60.0)
    pend(job, 2)
    job.warm(1)
    job.complete(0)
    job.look()
    job.tick(61)
    assert KillNode(2) in job.look()
    assert job.events("node_left")[-1] == {"node": 2, "cause": "pending"}
    assert (
        f"node 2 was pending for 60 s (--pending-timeout): {WHY}; no more are" in job.events("warning")[-1]["message"]
    )
    job.feed(NodeExited(job.now, 2, None))
    job.tick(1000)
    assert not [one for one in job.look() if isinstance(one, StartNode)]
    job.target(1)
    job.target(2)
    assert [one.node for one in job.look() if isinstance(one, StartNode)] == [3]


def test_a_job_of_which_too_few_nodes_find_a_place_ends_for_want_of_quota() -> None:
    job = Job(minimum=2, target=2, pending_timeout=60.0)
    job.warm(1)
    pend(job, 2)
    job.tick(61)
    assert job.finish is not None
    assert job.finish.exit_code == ExitCode.NO_QUOTA
    assert WHY in job.finish.message


def test_the_eighth_node_that_is_taken_while_others_train_is_replaced_as_fast_as_the_first() -> None:
    job = training(1, max_failures=0)
    job.target(2)
    waits = []
    for node in range(2, 10):
        job.report(1, Progress(10 + node, 0))
        assert job.state.nodes[node].phase is Phase.STARTING
        job.feed(NodeExited(job.now, node, -9, why="evicted", taken=True))
        since = job.now
        while node + 1 not in job.state.nodes:
            job.tick(0.1)
        waits.append(round(job.now - since, 1))
    assert len(set(waits)) == 1
    assert job.finish is None
    assert job.events("warning")[0]["message"] == "node 2: evicted"


def test_a_cluster_that_is_away_is_asked_again_however_often() -> None:
    job = Job(target=1)
    for node in range(1, 9):
        job.feed(NodeNotStarted(job.now, node, "the API server can't be reached", away=True))
        assert node + 1 not in job.state.nodes
        job.tick(AWAY_SECONDS)
        assert job.state.nodes[node + 1].phase is Phase.STARTING
    assert job.finish is None
    assert "another is tried soon" in job.events("node_failed")[0]["message"]


def test_places_that_are_too_few_are_given_back_and_each_job_asks_again_at_another_time() -> None:
    pauses = []
    for store in ("10.96.0.1:18501", "10.96.0.2:18501"):
        job = Job(minimum=3, target=3, min_wait=60.0)
        job.state = replace(job.state, rules=replace(job.state.rules, store=store))
        job.warm(1)
        pend(job, 2)
        pend(job, 3)
        job.tick(59)
        assert not job.killed
        job.tick(2)
        assert job.killed == [1, 2, 3]
        said = "1 of at least 3 nodes run after 60 s (--min-wait), the others are pending: " + WHY
        assert said in job.events("warning")[0]["message"]
        for node in (1, 2, 3):
            job.node_exited(node, -9)
        given_back = job.now
        while 4 not in job.state.nodes:
            job.tick(0.5)
        pauses.append(job.now - given_back)
        assert job.finish is None
    assert pauses[0] != pauses[1]


def test_a_job_that_restarts_gives_back_what_is_too_little_as_at_its_start() -> None:
    job = training(3, minimum=3, min_wait=60.0)
    first = State(replace(job.state.rules, first_node=4, first_member=4))
    job.state = state_after(replace(job.state, restart=Restart("failure", job.now)), first)
    job.target(3)
    job.warm(4)
    pend(job, 5)
    pend(job, 6)
    job.tick(61)
    assert job.killed == [4, 5, 6] and job.finish is None


def test_a_job_that_trains_keeps_its_places_below_its_minimum() -> None:
    job = training(2, minimum=2, min_wait=60.0)
    lose(job, 2)
    redo(job, 1, 10)
    job.node_exited(2, -9)
    pend(job, 3)
    job.look()
    job.tick(10_000)
    assert job.look() == [] and job.state.group == (1,)
    pend(job, 3, "")
    job.warm(3)
    job.complete(20)
    assert job.state.group == (1, 3)


def test_a_job_that_holds_nothing_gives_nothing_back() -> None:
    job = Job(minimum=2, target=2, min_wait=60.0)
    pend(job, 1)
    pend(job, 2)
    job.tick(1000)
    assert not job.killed


@pytest.mark.parametrize("replaces", [True, False])
def test_a_node_with_a_notice_before_training_is_replaced_where_others_took_its_place(
    replaces: bool,
) -> None:
    job = Job(minimum=2, target=2, replaces_noticed=replaces)
    job.warm(1)
    job.feed(NodeNoticed(job.now, 2, "preempted by a pod of higher priority"))
    assert job.finish is None
    job.node_exited(2)
    job.warm(3)
    assert job.form.members == (1, 3)
