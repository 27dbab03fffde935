"""Queues of KAI (scheduling.run.ai/v2), by its schema and as a real one shows them, as projects and as bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.hints.document import MAX_GPUS
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Capacity, Projects
from elastic_launcher.quota.queues import Queue, with_queues
from elastic_launcher.quota.rounds.world import Bound
from elastic_launcher.quota.sources.kai import KaiQueue, PodGroup, bounds_of, pod_group_of, projects_of, queue_of
from elastic_launcher.quota.sources.machines import Pod
from tests.support.quota_jobs import job

GPU = "nvidia.com/gpu"


def shown(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "team-a"}, "spec": spec}


@pytest.mark.parametrize(
    ("of_api", "queue"),
    [
        (
            shown(parentQueue="org", priority=5, resources={"gpu": {"quota": 4, "limit": 8, "overQuotaWeight": 0.5}}),
            KaiQueue("team-a", 4, 8, 0.5, 5, "org"),
        ),
        (shown(resources={"gpu": {"quota": -1, "limit": -1}}), KaiQueue("team-a", None, None)),
        (shown(resources={"gpu": {"quota": 2.5, "limit": 3.9}}), KaiQueue("team-a", 2, 3)),
        (shown(resources={"cpu": {"quota": 4}}), KaiQueue("team-a", 0, 0, 0.0, 100)),
        (shown(), KaiQueue("team-a", 0, 0, 0.0, 100)),
    ],
)
def test_a_queue_is_read(of_api: dict[str, Any], queue: KaiQueue) -> None:
    assert queue_of(of_api) == queue


def test_a_queue_and_a_pod_group_are_read_as_a_real_kai_shows_them() -> None:
    free = {"limit": -1, "overQuotaWeight": 1, "quota": -1}
    queue = {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"generation": 1, "name": "team-a", "resourceVersion": "1111", "uid": "2b6e61b6"},
        "spec": {
            "parentQueue": "org",
            "resources": {"cpu": free, "gpu": {"limit": 3, "overQuotaWeight": 1, "quota": 2}, "memory": free},
        },
        "status": {"allocated": {"nvidia.com/gpu": "3"}, "requested": {"nvidia.com/gpu": "4"}},
    }
    assert queue_of(queue) == KaiQueue("team-a", 2, 3, 1, 100, "org")
    name = "pg-bert-kxegypgy7klt-1-g2mr6-fc74eeb8"
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ml", "ownerReferences": [{"kind": "Job", "name": "launcher"}]},
        "spec": {"minMember": 1, "priorityClassName": "train", "queue": "team-a", "topologyConstraint": {}},
        "status": {"resourcesStatus": {"allocated": {"nvidia.com/gpu": "1"}, "requested": {"nvidia.com/gpu": "1"}}},
    }
    assert pod_group_of(group) == PodGroup("ml", name, "team-a")
    group["status"]["resourcesStatus"]["allocatedNonPreemptible"] = {"nvidia.com/gpu": "1"}
    assert pod_group_of(group) == PodGroup("ml", name, "team-a", keeps=True)
    waiting = {**group, "status": {}, "spec": {**group["spec"], "preemptibility": "non-preemptible"}}
    assert pod_group_of(waiting) == PodGroup("ml", name, "team-a", keeps=True)
    condition = {
        "type": "UnschedulableOnNodePool",
        "status": "True",
        "reasons": [{"reason": "NonPreemptibleOverQuota"}],
    }
    refused = {**waiting, "spec": group["spec"], "status": {"resourcesStatus": {}, "schedulingConditions": [condition]}}
    assert pod_group_of(refused) == PodGroup("ml", name, "team-a", keeps=True)
    condition["reasons"] = [{"reason": "OverLimit"}]
    assert pod_group_of(refused) == PodGroup("ml", name, "team-a")
    assert pod_group_of({"metadata": {"name": name, "namespace": "ml"}, "spec": {"minMember": 1}}) is None


def test_a_queue_is_a_project_of_the_jobs_that_name_it() -> None:
    (found,) = projects_of([KaiQueue("a", 4, 8, 2.0, 5)])
    assert found == Queue("a", 4, 8, 2.0, 5, None, ({"project": "a"}, {"queue": "a"}))


def test_an_unlimited_quota_is_what_is_guaranteed_below_it_or_all_that_the_limit_allows() -> None:
    queues = [
        KaiQueue("org", None, None),
        KaiQueue("a", 4, 8, parent="org"),
        KaiQueue("b", None, 6, parent="org"),
        KaiQueue("tight", None, 3),
        KaiQueue("c", 4, None, parent="tight"),
        KaiQueue("all", None, None),
    ]
    guaranteed = {queue.name: queue.guaranteed for queue in projects_of(queues)}
    assert guaranteed == {"org": 10, "a": 4, "b": 6, "tight": 3, "c": 4, "all": MAX_GPUS}


def in_queue(name: str, queue: str) -> Job:
    return replace(job(name), match={"id": name, "namespace": "ml", "queue": queue})


def test_a_limit_bounds_the_jobs_of_its_queue_and_of_those_below_by_what_other_pods_leave() -> None:
    queues = [
        KaiQueue("org", 8, 8, 1.0),
        KaiQueue("a", 4, 6, 1.0, parent="org"),
        KaiQueue("b", 4, None, 1.0, parent="org"),
        KaiQueue("free", 0, None, 1.0),
    ]
    projects = with_queues(Projects((), capacity=Capacity(kai=True)), projects_of(queues))
    jobs = [in_queue("bert", "a"), in_queue("gpt", "b"), in_queue("probe", "free"), in_queue("stranger", "none")]
    pods = [
        Pod("ml", {GPU: 2}, "m0", "bert", True, queue="a"),
        Pod("ml", {GPU: 1}, "m0", queue="a"),
        Pod("other", {GPU: 2}, "m0", queue="b"),
        Pod("ml", {GPU: 4}, queue="b"),
        Pod("ml", {GPU: 4}, "m0"),
        Pod("ml", {GPU: 1}, "m0", "stranger", True, queue="a"),
    ]
    assert bounds_of(queues, GPU, projects, jobs, pods) == [
        Bound("KAI queue a", frozenset({"bert"}), 4),
        Bound("KAI queue org", frozenset({"bert", "gpt"}), 4),
    ]


def test_a_pod_of_another_namespace_with_the_labels_of_a_job_is_none_of_its_nodes() -> None:
    queues = [KaiQueue("a", 4, 6, 1.0), KaiQueue("org", 4, 8, 1.0), KaiQueue("b", 4, 4, 1.0, parent="org")]
    projects = with_queues(Projects((), capacity=Capacity(kai=True)), projects_of(queues))
    alien = Pod("other", {GPU: 2}, "m0", "bert", True, queue="a", pod_group="pg-1")
    found = bounds_of(queues, GPU, projects, [in_queue("bert", "a")], [alien], {("other", "pg-1")}, {"bert"})
    assert {bound.name.split(",")[0]: bound.gpus for bound in found if "bert" in bound.jobs} == {
        "KAI queue a": 4,
        "the quota of KAI queue a": 2,
    }
    closed = bounds_of(queues, GPU, projects, [in_queue("bert", "org")], [replace(alien, queue="org")])
    assert [bound.gpus for bound in closed if "itself" in bound.name] == [0]


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ("org", "KAI queue org itself, which has queues below it,"),
        ("orphan", "KAI queue orphan, below gone, which does not exist,"),
        ("deep", "KAI queue deep, below gone, which does not exist,"),
    ],
)
def test_a_queue_in_which_kai_places_no_pods_leaves_its_jobs_what_they_have(queue: str, why: str) -> None:
    queues = [
        KaiQueue("org", None, None, 1.0),
        KaiQueue("a", 4, None, 1.0, parent="org"),
        KaiQueue("orphan", 4, None, 1.0, parent="gone"),
        KaiQueue("deep", 4, None, 1.0, parent="orphan"),
    ]
    projects = with_queues(Projects((), capacity=Capacity(kai=True)), projects_of(queues))
    jobs = [in_queue("bert", queue), in_queue("gpt", "a")]
    pods = [
        Pod("ml", {GPU: 2}, "m0", "bert", True, queue=queue),
        Pod("ml", {GPU: 1}, "", "bert", True, queue=queue),
        Pod("ml", {GPU: 1}, "m0", "gpt", True, queue="a"),
    ]
    found = bounds_of(queues, GPU, projects, jobs, pods)
    assert [bound for bound in found if bound.jobs] == [Bound(why, frozenset({"bert"}), 2)]


def test_what_kai_does_not_take_back_is_bounded_by_the_quotas_of_its_queue_and_of_those_above() -> None:
    queues = [
        KaiQueue("org", 3, None, 1.0),
        KaiQueue("a", 2, None, 1.0, parent="org"),
        KaiQueue("b", 2, None, 1.0, parent="org"),
    ]
    projects = with_queues(Projects((), capacity=Capacity(kai=True)), projects_of(queues))
    jobs = [in_queue("kept", "a"), in_queue("taken", "a"), in_queue("kinds", "a"), in_queue("new", "a")]
    pods = [
        Pod("ml", {GPU: 1}, "m0", "kept", True, queue="a", pod_group="pg-1"),
        Pod("ml", {GPU: 1}, "", "kept", True, queue="a", pod_group="pg-2"),
        Pod("ml", {GPU: 1}, "m0", "taken", True, queue="a", pod_group="pg-3"),
        Pod("ml", {GPU: 1}, "m0", "kinds", True, queue="a", pod_group="pg-1", of_kind=True),
        Pod("ml", {GPU: 1}, "m0", queue="b", pod_group="pg-1"),
        Pod("ml", {GPU: 1}, "", queue="b", pod_group="pg-1"),
        Pod("other", {GPU: 1}, "m0", queue="b", pod_group="pg-1"),
    ]
    found = bounds_of(queues, GPU, projects, jobs, pods, {("ml", "pg-1")}, {"kept"})
    kept = frozenset({"kept"})
    assert found == [
        Bound("the quota of KAI queue a, above which it places only what it may take back,", kept, 1),
        Bound("the quota of KAI queue org, above which it places only what it may take back,", kept, 1),
    ]


def test_queues_above_one_another_in_a_circle_end() -> None:
    queues = [KaiQueue("a", None, 4, parent="b"), KaiQueue("b", None, 6, parent="a")]
    assert {queue.name: queue.guaranteed for queue in projects_of(queues)} == {"a": 4, "b": 4}
    found = bounds_of(queues, GPU, Projects(()), [], [Pod("ml", {GPU: 1}, "m0", queue="a")])
    assert [bound.gpus for bound in found] == [3, 5]
