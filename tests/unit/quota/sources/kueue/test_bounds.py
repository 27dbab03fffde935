"""What Kueue's queues leave to jobs: the cases that were measured with Kueue 0.17, and what can't be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.sources.kueue.bounds import Leave, job_of_node, leave
from elastic_launcher.quota.sources.kueue.kueue import Kueue
from elastic_launcher.quota.sources.kueue.objects import (
    ClusterQueue,
    Cohort,
    Workload,
    cluster_queue_of,
    cohort_of,
    local_queue_of,
    workload_of,
)
from elastic_launcher.quota.sources.machines import Pod
from tests.support.kueue_objects import GPU, cluster_queue, local_queue, workload
from tests.support.quota_jobs import job

PAIR = (cluster_queue("a", 2, "all"), cluster_queue("b", 2, "all"))


def kueue(
    queues: Sequence[dict[str, Any]], workloads: Sequence[dict[str, Any]] = (), cohorts: Sequence[dict[str, Any]] = ()
) -> Kueue:
    """Returns the objects, with a LocalQueue ``gpus`` for each queue in a namespace of the queue's name."""
    read = [one for one in map(cluster_queue_of, queues) if isinstance(one, ClusterQueue)]
    above = [one for one in map(cohort_of, cohorts) if isinstance(one, Cohort)]
    local = [local_queue_of(local_queue(one.name, "gpus", one.name)) for one in read]
    return Kueue(
        GPU,
        {one.name: one for one in read},
        {one.name: one for one in above},
        {(one.namespace, one.name): one for one in local},
        [one for one in map(workload_of, workloads) if isinstance(one, Workload)],
    )


def elastic(name: str, space: str, queue: str = "gpus") -> Job:
    """Returns a job that reports its LocalQueue."""
    return replace(job(name), match={"id": name, "namespace": space, "queue": queue})


def nodes(name: str, space: str, count: int) -> list[dict[str, Any]]:
    """Returns the Workloads of a job's nodes, all with their quota."""
    return [workload(space, f"{name}-{number}", "gpus", 1, space) for number in range(1, count + 1)]


def rigid(space: str, gpus: int, queue: str = "", **more: Any) -> dict[str, Any]:
    """Returns the Workload of a Job of someone else's."""
    return workload(space, more.pop("name", "other"), "gpus", gpus, queue, **more)


def bounds(left: Leave) -> dict[str, int]:
    return {bound.name: bound.gpus for bound in left.bounds}


A, B = "ClusterQueue a", "ClusterQueue b"


@pytest.mark.parametrize(
    ("workloads", "of_a", "of_all"),
    [
        (nodes("bert", "a", 1), 4, 4),
        (nodes("bert", "a", 4), 4, 4),
        ([*nodes("bert", "a", 2), rigid("b", 2, "b")], 2, 2),
        ([*nodes("bert", "a", 4), rigid("b", 2)], 2, 2),  # it waits for what b owns
        ([*nodes("bert", "a", 4), rigid("b", 3)], 4, 4),  # b does not own that much
        ([rigid("a", 1, "a"), rigid("b", 1, "b")], 2, 2),
    ],
)
def test_a_job_may_have_what_others_leave(workloads: list[dict[str, Any]], of_a: int, of_all: int) -> None:
    left = leave(kueue(PAIR, workloads), [elastic("bert", "a")])
    assert bounds(left) == {A: of_a, "Cohort all": of_all}
    assert all(bound.jobs == {"bert"} for bound in left.bounds)


def test_a_job_whose_quota_is_lent_out_may_ask_for_it() -> None:
    left = leave(kueue(PAIR, [rigid("a", 4, "a")]), [elastic("resnet", "b")])
    assert bounds(left) == {B: 2, "Cohort all": 2}
    assert left.taken == {("a", "gpus"): 2}, "what a has borrowed does not count: Kueue takes it back"


@pytest.mark.parametrize(
    ("reclaim", "priorities", "gpus"),
    [("Never", (0, 0), 0), ("LowerPriority", (0, 0), 0), ("LowerPriority", (-1, 0), 1), ("Any", (9, 9), 2)],
)
def test_what_kueue_does_not_take_back_is_not_promised(reclaim: str, priorities: tuple[int, int], gpus: int) -> None:
    queues = (cluster_queue("a", 2, "all"), cluster_queue("b", 2, "all", reclaim=reclaim))
    there = [rigid("a", 2, "a", name="first", priority=9)]
    there += [rigid("a", 1, "a", name=f"more-{n}", priority=one) for n, one in enumerate(priorities)]
    left = leave(kueue(queues, there), [elastic("resnet", "b")])
    assert bounds(left)[B] == gpus


def test_two_jobs_share_what_their_cohort_has() -> None:
    there = [*nodes("bert", "a", 4)]
    left = leave(kueue(PAIR, there), [elastic("bert", "a"), elastic("resnet", "b")])
    assert bounds(left) == {A: 4, B: 4, "Cohort all": 4}
    assert {bound.name: bound.jobs for bound in left.bounds}["Cohort all"] == {"bert", "resnet"}


def test_a_lending_limit_is_kept_by_its_queue() -> None:
    queues = (cluster_queue("e", 2, "all"), cluster_queue("f", 2, "all", lendingLimit=1, reclaim="Never"))
    jobs = [elastic("bert", "e"), elastic("resnet", "f")]
    assert bounds(leave(kueue(queues), jobs)) == {"ClusterQueue e": 3, "ClusterQueue f": 4, "Cohort all": 4}
    left = leave(kueue(queues, nodes("bert", "e", 3)), jobs)
    assert bounds(left) == {"ClusterQueue e": 3, "ClusterQueue f": 2, "Cohort all": 4}
    held = leave(kueue(queues, [rigid("e", 3, "e")]), [elastic("resnet", "f")])
    assert bounds(held)["ClusterQueue f"] == 1, "what is lent out does not come back: measured"


def test_a_queue_whose_borrowing_was_cut_gives_back() -> None:
    queues = (cluster_queue("a", 2, "all", borrowingLimit=0), PAIR[1])
    left = leave(kueue(queues, nodes("bert", "a", 3)), [elastic("bert", "a")])
    assert bounds(left) == {A: 2, "Cohort all": 4}


@pytest.mark.parametrize(
    "other",
    [
        rigid("b", 2, active=False),
        rigid("elsewhere", 2),
        workload("b", "other", "unknown", 2),
        workload("b", "other", "gpus", 0),
    ],
)
def test_a_workload_that_will_not_be_admitted_is_not_made_room_for(other: dict[str, Any]) -> None:
    left = leave(kueue(PAIR, [*nodes("bert", "a", 4), other]), [elastic("bert", "a")])
    assert bounds(left)[A] == 4


def test_a_stopped_queue_is_not_made_room_for() -> None:
    queues = (PAIR[0], cluster_queue("b", 2, "all", stopPolicy="Hold"))
    left = leave(kueue(queues, [*nodes("bert", "a", 4), rigid("b", 2)]), [elastic("bert", "a")])
    assert bounds(left)[A] == 4


def test_what_waits_counts_whole_and_by_priority() -> None:
    waiting = [rigid("b", 2, name="low"), rigid("b", 1, name="high", priority=5)]
    left = leave(kueue(PAIR, [*nodes("bert", "a", 4), *waiting]), [elastic("bert", "a")])
    assert left.taken == {("b", "gpus"): 1}
    assert bounds(left)[A] == 3


def test_a_job_belongs_to_the_queue_of_its_workloads_and_without_any_to_the_default() -> None:
    there = replace(
        kueue(PAIR, nodes("bert", "a", 1)),
        local_queues={
            ("a", "gpus"): local_queue_of(local_queue("a", "gpus", "a")),
            ("a", "default"): local_queue_of(local_queue("a", "default", "b")),
        },
    )
    unlabelled = replace(job("probe"), match={"id": "probe", "namespace": "a"})
    left = leave(there, [elastic("bert", "a", "mistaken"), unlabelled, elastic("gpt", "a", "none")])
    assert {bound.name: bound.jobs for bound in left.bounds} == {
        A: {"bert"},
        B: {"probe"},
        "Cohort all": {"bert", "probe"},
    }


def test_a_job_of_another_namespace_with_the_same_name_is_another_one() -> None:
    left = leave(kueue(PAIR, nodes("bert", "b", 2)), [elastic("bert", "a")])
    assert bounds(left)[A] == 2


def test_while_others_wait_to_borrow_a_queue_that_takes_nothing_back_has_what_it_has_and_what_is_free() -> None:
    queues = (PAIR[0], cluster_queue("b", 2, "all", reclaim="Never"))
    there = [*nodes("bert", "a", 3), *nodes("resnet", "b", 1)]
    jobs = [elastic("bert", "a"), elastic("resnet", "b")]
    assert bounds(leave(kueue(queues, there), jobs)) == {A: 4, B: 4, "Cohort all": 4}
    left = leave(kueue(queues, [*there, rigid("a", 3)]), jobs)
    assert bounds(left) == {A: 3, B: 1, "Cohort all": 4}


def test_what_a_queue_does_not_lend_is_nothing_to_jobs_of_others() -> None:
    queues = (cluster_queue("a", 2, "all", lendingLimit=0), cluster_queue("b", 2, "all"))
    assert bounds(leave(kueue(queues), [elastic("resnet", "b")])) == {B: 2, "Cohort all": 2}
    jobs = [elastic("bert", "a"), elastic("resnet", "b")]
    assert bounds(leave(kueue(queues), jobs)) == {A: 4, B: 2, "Cohort all": 4}


def test_a_queue_without_a_cohort_has_its_quota_alone() -> None:
    left = leave(kueue((cluster_queue("a", 3),), [rigid("a", 1, "a")]), [elastic("bert", "a")])
    assert bounds(left) == {A: 2}


def test_flavors_add_up() -> None:
    queue = cluster_queue("a", 2)
    queue["spec"]["resourceGroups"][0]["flavors"] += cluster_queue("a", 3, flavor="t4")["spec"]["resourceGroups"][0][
        "flavors"
    ]
    left = leave(kueue((queue,), [rigid("a", 2, "a", flavor="t4")]), [elastic("bert", "a")])
    assert bounds(left) == {A: 3}


def test_cohorts_that_are_their_own_ancestors_are_named_and_taken_for_roots() -> None:
    circle = [{"metadata": {"name": one}, "spec": {"parentName": other}} for one, other in (("x", "y"), ("y", "x"))]
    there = kueue((cluster_queue("a", 2, "x"), cluster_queue("b", 2, "y")), cohorts=circle)
    assert there.circles == ("x", "y")
    assert bounds(leave(there, [elastic("bert", "a")])) == {A: 2, "Cohort x": 2}


def test_cohorts_above_a_cohort_bound_it_too() -> None:
    tree = [
        {"metadata": {"name": "left"}, "spec": {"parentName": "root"}},
        {"metadata": {"name": "right"}, "spec": {"parentName": "root"}},
    ]
    queues = (cluster_queue("a", 2, "left"), cluster_queue("b", 2, "right"))
    left = leave(kueue(queues, [rigid("b", 2, "b")], tree), [elastic("bert", "a")])
    assert bounds(left) == {"Cohort root": 2, "Cohort left": 2, A: 2}


@pytest.mark.parametrize(
    ("name", "job"), [("bert-x7-12", "bert-x7"), ("bert", ""), ("bert-x", ""), ("-1", ""), ("bert-", "")]
)
def test_a_node_is_known_by_the_name_of_its_job(name: str, job: str) -> None:
    assert job_of_node(name) == job


def test_a_stopped_queue_leaves_its_jobs_what_they_have() -> None:
    queues = (PAIR[0], cluster_queue("b", 2, "all", stopPolicy="Hold"))
    left = leave(kueue(queues, nodes("resnet", "b", 1)), [elastic("bert", "a"), elastic("resnet", "b")])
    assert bounds(left)[B] == 1


def test_what_workloads_of_a_queue_that_is_gone_have_is_taken() -> None:
    left = leave(kueue((PAIR[0],), [rigid("b", 2, "b")]), [elastic("bert", "a")])
    assert left.taken == {("b", "gpus"): 2}


def pod(gpus: int, space: str = "b", owner: str = "other", **more: Any) -> Pod:
    """Returns a pod that Kueue has admitted."""
    return Pod(space, {GPU: gpus}, more.pop("machine", "m0"), of_kueue=True, owners=frozenset({f"uid-{owner}"}), **more)


@pytest.mark.parametrize(
    ("workloads", "pods", "leaving"),
    [
        ([rigid("b", 2, "b")], [pod(1), pod(1)], 0),
        ([rigid("b", 3)], [pod(2), pod(1)], 3),  # evicted: it waits to borrow again
        ([rigid("b", 3)], [replace(pod(3), owners=frozenset(), workload="job-other")], 3),
        ([rigid("b", 3)], [pod(3, machine="")], 0),
        ([rigid("b", 2)], [pod(2)], 0),  # counted already, as it waits for what b owns
        ([rigid("b", 2, "b")], [pod(2, leaves=True), pod(1)], 1),  # admitted again while pods of before end
        ([rigid("b", 2, active=False)], [pod(2)], 2),
        ([], [pod(2, leaves=True)], 2),  # its Job was deleted
        ([], [pod(2)], 0),  # of a Workload that neither the pod nor its owner names
        (nodes("bert", "a", 1), [pod(1, "a", "bert-2", job="bert", is_node=True)], 0),  # the job holds it
        (nodes("gpt", "a", 1), [pod(1, "a", "gpt-2", job="gpt", is_node=True, leaves=True)], 1),
    ],
)
def test_pods_that_end_are_counted_until_they_are_gone(
    workloads: list[dict[str, Any]], pods: list[Pod], leaving: int
) -> None:
    found = leave(kueue(PAIR, workloads), [elastic("bert", "a")], pods).leaving
    assert found == ({"m0": leaving} if leaving else {})


def test_of_a_workload_those_pods_end_that_are_being_deleted() -> None:
    pods = [pod(1, leaves=True), pod(2, machine="m1", leaves=True), pod(2, machine="m2")]
    assert leave(kueue(PAIR, [rigid("b", 2, "b")]), [elastic("bert", "a")], pods).leaving == {"m0": 1, "m1": 2}
    assert leave(kueue(PAIR, [rigid("b", 3)]), [elastic("bert", "a")], pods).leaving == {"m0": 1, "m1": 2, "m2": 2}
