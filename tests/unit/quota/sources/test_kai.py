"""Queues of KAI, by its published schema (scheduling.run.ai/v2), as projects and as bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.hints.document import MAX_GPUS
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Capacity, Projects
from elastic_launcher.quota.queues import Queue, with_queues
from elastic_launcher.quota.rounds.world import Bound
from elastic_launcher.quota.sources.kai import KaiQueue, bounds_of, projects_of, queue_of
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


def test_queues_above_one_another_in_a_circle_end() -> None:
    queues = [KaiQueue("a", None, 4, parent="b"), KaiQueue("b", None, 6, parent="a")]
    assert {queue.name: queue.guaranteed for queue in projects_of(queues)} == {"a": 4, "b": 4}
    found = bounds_of(queues, GPU, Projects(()), [], [Pod("ml", {GPU: 1}, "m0", queue="a")])
    assert [bound.gpus for bound in found] == [3, 5]
