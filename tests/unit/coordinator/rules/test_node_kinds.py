"""Nodes within a job's guarantee, and nodes above it: which kind is started, and which leaves first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_launcher.coordinator.model.actions import StartNode
from elastic_launcher.coordinator.model.observations import NodeStands
from elastic_launcher.coordinator.rules.nodes import LONGEST_RETRY
from tests.support.played_job import Job, lose, redo, training

WHY = "0/2 nodes are available: 2 node(s) had untolerated taint {spot: true}"


def kinds(job: Job) -> dict[int, str]:
    """Returns the kinds of the nodes that were started, by number."""
    return {one.node: "over quota" if one.over_quota else "guaranteed" for one in job.started}


def trained(nodes: int, within: int) -> Job:
    """Returns a job that trains on so many nodes."""
    job = training(1)
    job.state = replace(job.state, nodes=job.state.nodes.replaced(replace(job.state.nodes[1], over_quota=not within)))
    job.target(nodes, within=within)
    if nodes > 1:
        job.warm(*range(2, nodes + 1))
        job.complete(20)
    job.look()
    return job


@pytest.mark.parametrize(("within", "owned"), [(None, 4), (0, 0), (1, 1), (3, 3), (9, 4)])
def test_nodes_up_to_the_guarantee_are_within_it_and_those_above_are_over_quota(within: int | None, owned: int) -> None:
    job = Job()
    job.target(4, within=within)
    assert list(kinds(job).values()) == ["guaranteed"] * owned + ["over quota"] * (4 - owned)
    assert [bool(one.get("over_quota")) for one in job.events("node_started")] == [False] * owned + [True] * (4 - owned)


def test_after_the_guarantee_rises_new_nodes_follow_it_and_running_ones_stay() -> None:
    job = trained(2, within=1)
    job.target(2, within=2)
    assert (job.look(), job.killed) == ([], [])
    job.target(3, within=2)
    job.target(4, within=2)
    assert [kinds(job)[node] for node in (2, 3, 4)] == ["over quota", "guaranteed", "over quota"]


def test_after_the_guarantee_falls_new_nodes_follow_it_and_running_ones_stay() -> None:
    job = trained(2, within=2)
    job.target(3, within=1)
    assert kinds(job)[3] == "over quota"
    assert job.killed == []


def test_a_lost_node_is_replaced_by_one_of_the_kind_that_is_short() -> None:
    job = trained(3, within=2)
    lose(job, 1)
    job.node_exited(1)
    job.tick(LONGEST_RETRY)
    assert kinds(job)[4] == "guaranteed"
    redo(job, job.form.formation, 20)
    lose(job, 3)
    job.node_exited(3)
    job.tick(LONGEST_RETRY)
    assert kinds(job)[5] == "over quota"


def test_a_node_whose_processes_are_not_gone_yet_counts_as_within_the_guarantee() -> None:
    job = trained(2, within=1)
    lose(job, 1)
    job.target(3, within=1)
    assert kinds(job)[3] == "over quota"


def test_nodes_over_quota_leave_first() -> None:
    job = trained(2, within=0)
    job.target(3, within=1)
    job.warm(3)
    job.complete(30)
    job.target(2, within=1)
    assert {node for node, one in job.state.nodes.items() if one.leave} == {2}
    job.complete(40)
    job.target(1, within=1)
    assert {node for node, one in job.state.nodes.items() if one.leave} == {1, 2}


def leaving(job: Job) -> set[int]:
    return {node for node, one in job.state.nodes.items() if one.leave}


def test_nodes_that_the_hint_names_leave_before_all_others_and_none_leaves_that_is_not_too_many() -> None:
    job = trained(4, within=1)
    job.target(4, leave=frozenset({1, 3}))
    assert (leaving(job), job.killed) == (set(), [])
    job.target(3, leave=frozenset({1, 9}))
    assert leaving(job) == {1}
    job.target(2, leave=frozenset({1, 2}))
    assert leaving(job) == {1, 2}
    job.target(1, leave=frozenset({1}))
    assert leaving(job) == {1, 3, 4}


def test_a_node_that_starts_is_not_given_up_for_one_that_the_hint_names() -> None:
    job = trained(2, within=2)
    job.target(3)
    job.target(2, leave=frozenset({1}))
    assert (leaving(job), job.killed) == ({1}, [])


def test_nodes_that_do_not_train_yet_leave_before_those_that_do_whatever_their_kind() -> None:
    job = trained(1, within=0)
    job.target(2, within=1)
    job.target(1, within=1)
    assert job.killed == [2]


def two_wait_for_a_place(trains: int, within: int, then: int) -> Job:
    """Returns a job of which nodes 3 and 4 wait for a place when its guarantee changes, and node 4 is killed for it.

    Args:
        trains: How many of the nodes 1 and 2 are within the guarantee.
        within: GPUs within the guarantee when 3 and 4 are started.
        then: And afterwards.
    """
    job = trained(2, within=trains)
    job.target(4, within=within)
    for node in (3, 4):
        job.feed(NodeStands(job.now, node, WHY, unplaced=True))
    job.target(4, within=then)
    for _ in range(3):
        job.tick(1)
    assert job.killed == [4]
    job.node_exited(4)
    return job


def test_a_node_over_quota_that_waits_for_a_place_gives_way_where_the_guarantee_is_short() -> None:
    job = two_wait_for_a_place(1, 1, 2)
    assert kinds(job)[5] == "guaranteed"
    job.tick(1)
    assert job.killed == [4]
    assert len([one for one in job.look() if isinstance(one, StartNode)]) == 3


def test_a_node_within_the_guarantee_that_waits_for_a_place_gives_way_where_the_guarantee_has_fallen() -> None:
    job = two_wait_for_a_place(2, 4, 3)
    assert kinds(job)[5] == "over quota"
    job.target(4, within=1)
    assert job.killed == [4, 3], "those that have a place stay"
    job.node_exited(3)
    assert kinds(job)[6] == "over quota"
    job.tick(1)
    assert job.killed == [4, 3]


@pytest.mark.parametrize("waits", ["", "its machine pulls the image"])
def test_a_node_over_quota_that_has_a_place_does_not_give_way(waits: str) -> None:
    job = trained(1, within=1)
    job.target(2, within=1)
    job.feed(NodeStands(job.now, 2, WHY, unplaced=True))
    job.feed(NodeStands(job.now, 2, waits))
    job.target(2, within=2)
    assert job.killed == []


def test_no_node_gives_way_where_another_one_is_started_anyway() -> None:
    job = trained(1, within=1)
    job.target(2, within=1)
    job.feed(NodeStands(job.now, 2, WHY, unplaced=True))
    job.target(3, within=2)
    assert (job.killed, kinds(job)[3]) == ([], "guaranteed")
