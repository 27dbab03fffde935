"""The watches of a cluster: what is known of it, what is said of it, and which changes need a round."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elastic_launcher.quota.projects import Capacity, Projects
from elastic_launcher.quota.projects_document import parse_projects
from elastic_launcher.quota.rounds.world import Bound, World
from tests.support.fake_cluster import FakeCluster
from tests.support.quota_reports import BEGAN, report, service
from tests.support.quota_sources import GPU, PROJECTS, Seen, follow, machine, pod

NUMBER = Projects(PROJECTS.projects, capacity=Capacity(gpus=5))
KAI = parse_projects("apiVersion: elastic-quota/v1\ncapacity: {kai: {}}\nunmatched: refuse")
QUOTAS = Projects(PROJECTS.projects, capacity=Capacity(resource_quotas=True))


def test_jobs_pods_and_machines_come_and_go() -> None:
    async def steps(seen: Seen) -> None:
        await seen.world(lambda world: world == World(8, (), {}))
        await seen.cluster.put("services", service("bert", "nlp", report("bert", held=1)))
        await seen.cluster.put("pods", pod("bert-1", 2, job="bert"))
        world = await seen.world(lambda world: len(world.jobs) == 1 and world.jobs[0].held == 2)
        assert world.jobs[0].match["namespace"] == "nlp" and world.jobs[0].reported_at == seen.now
        await seen.cluster.put("pods", pod("rigid", 3))
        await seen.cluster.put("pods", pod("driver", 1, namespace="kube-system"))
        await seen.cluster.put("nodes", machine("m1", 4))
        await seen.world(lambda world: world.capacity == 11 and dict(world.rigid) == {"nlp": 3})
        await seen.cluster.put("pods", pod("rigid", 3, phase="Succeeded"))
        await seen.cluster.delete("pods", "bert-1", "nlp")
        await seen.cluster.delete("nodes", "m1")
        await seen.cluster.delete("services", "bert", "nlp")
        await seen.world(lambda world: world == World(7, (), {}, foreign=1))

    assert not follow(steps).said


def test_only_the_jobs_of_named_namespaces_count() -> None:
    async def steps(seen: Seen) -> None:
        await seen.cluster.put("services", service("resnet", "vision", report("resnet")))
        await seen.cluster.put("services", service("bert", "nlp", report("bert")))
        await seen.cluster.put("services", service("gpt", "lab", report("gpt")))
        world = await seen.world(lambda world: len(world.jobs) == 2)
        assert [job.id for job in world.jobs] == ["gpt", "bert"]

    follow(steps, "nlp", "lab")


def test_nothing_is_known_before_all_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.POLL_SECONDS", 0.01)
    cluster = FakeCluster()
    cluster.forbidden = {("list", "pods"), ("watch", "pods")}

    async def steps(seen: Seen) -> None:
        with pytest.raises(OSError, match="the Services of jobs can't be read yet"):
            seen.source.world(PROJECTS)
        while "can't be read: may not list pods" not in why(seen):
            await asyncio.sleep(0)
        cluster.forbidden.clear()
        await seen.world(lambda world: not world.stale)

    def why(seen: Seen) -> str:
        try:
            seen.source.world(PROJECTS)
        except OSError as error:
            return str(error)
        return ""

    follow(steps, cluster=cluster)


def test_machines_need_not_be_read_where_the_document_has_a_number() -> None:
    cluster = FakeCluster()
    cluster.forbidden = {("list", "nodes"), ("watch", "nodes")}

    async def steps(seen: Seen) -> None:
        found = await seen.world(lambda world: not world.stale, NUMBER)
        assert found == World(5, (), {})

    follow(steps, cluster=cluster)


def test_what_can_not_be_read_keeps_the_last_known_and_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.LOUD", 1)

    async def steps(seen: Seen) -> None:
        await seen.cluster.put("services", service("bert", "nlp", report("bert", held=1)))
        await seen.world(lambda world: len(world.jobs) == 1)
        seen.cluster.down = True
        await seen.cluster.forget()
        world = await seen.world(lambda world: world.stale)
        assert (world.capacity, [job.id for job in world.jobs]) == (8, ["bert"])
        seen.cluster.down = False
        await seen.cluster.put("services", service("bert", "nlp", report("bert", held=2)))
        await seen.world(lambda world: not world.stale and world.jobs[0].held == 2)

    said = follow(steps).said
    assert 1 <= len(said) <= 3 and len(set(said)) == len(said)
    assert all("what was known stays, and nothing grows until they can" in line for line in said)


def test_watches_go_on_after_their_version_is_gone() -> None:
    async def steps(seen: Seen) -> None:
        await seen.cluster.put("services", service("bert", "nlp", report("bert", held=1)))
        before = await seen.world(lambda world: len(world.jobs) == 1)
        seen.now += 30.0
        await seen.cluster.forget()
        await seen.cluster.put("services", service("gpt", "nlp", report("gpt")))
        world = await seen.world(lambda world: len(world.jobs) == 2)
        assert world.jobs[0] == before.jobs[0], "a report is not newer because it was read again"

    follow(steps)


def test_a_report_that_can_not_be_used_is_said_once() -> None:
    async def steps(seen: Seen) -> None:
        await seen.cluster.put("services", service("bert", "nlp", report("bert", held=-1)))
        await seen.cluster.put("services", service("gpt", "nlp", report("gpt")))
        await seen.world(lambda world: len(world.jobs) == 1)
        await seen.cluster.put("nodes", machine("m0", 4))
        await seen.world(lambda world: world.capacity == 4)

    said = follow(steps).said
    assert len(said) == 1 and said[0].startswith("nlp/bert: the report of job 'bert' can't be used")


def test_times_speeds_and_steps_alone_need_no_round() -> None:
    async def steps(seen: Seen) -> None:
        await seen.cluster.put("services", service("bert", "nlp", report("bert", started_training=BEGAN)))
        await seen.world(lambda world: len(world.jobs) == 1)
        before = seen.changes
        more = report("bert", told=5, started_training=BEGAN + 1, speeds={"1": 2.0}, steps_left=9, service=40.0)
        more["demand"]["goodput"] = [{"ranks": 1, "goodput": 64.0, "batch": 32, "measured": True}]
        await seen.cluster.put("services", service("bert", "nlp", more))
        while (known := seen.source.service("bert")) is None or known.job is None or not known.job.speeds:
            await asyncio.sleep(0)
        assert seen.changes == before
        await seen.cluster.put("services", service("bert", "nlp", report("bert", told=6, held=1)))
        await seen.world(lambda world: world.jobs[0].held == 1)
        assert seen.changes > before

    follow(steps)


def resource_quota(name: str, gpus: int, namespace: str = "nlp") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": {f"requests.{GPU}": str(gpus)}}}


def test_resource_quotas_bound_the_jobs_of_their_namespaces_once_the_document_names_them() -> None:
    async def steps(seen: Seen) -> None:
        await seen.cluster.put("resourcequotas", resource_quota("gpus", 4))
        await seen.cluster.put("services", service("bert", "nlp", report("bert", held=1)))
        await seen.cluster.put("pods", pod("notebook", 1))
        await seen.world(lambda world: len(world.jobs) == 1 and not world.bounds and bool(world.rigid))
        world = await seen.world(lambda world: bool(world.bounds), QUOTAS)
        assert world.bounds == (Bound("ResourceQuota nlp/gpus", frozenset({"bert"}), 3),)
        await seen.cluster.put("resourcequotas", resource_quota("gpus", 6))
        await seen.world(lambda world: world.bounds[0].gpus == 5, QUOTAS)
        await seen.cluster.delete("resourcequotas", "gpus", "nlp")
        await seen.world(lambda world: not world.bounds, QUOTAS)

    follow(steps)


def test_resource_quotas_of_other_namespaces_than_the_jobs_are_not_read() -> None:
    cluster = FakeCluster()

    async def steps(seen: Seen) -> None:
        await seen.cluster.put("resourcequotas", resource_quota("gpus", 4, "vision"))
        await seen.cluster.put("resourcequotas", resource_quota("gpus", 2, "nlp"))
        world = await seen.world(lambda _: True, QUOTAS)
        assert [bound.name for bound in world.bounds] == ["ResourceQuota nlp/gpus"]

    follow(steps, "nlp", cluster=cluster)


def test_nothing_grows_while_resource_quotas_that_the_document_names_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.LOUD", 1)
    cluster = FakeCluster()

    async def steps(seen: Seen) -> None:
        await seen.cluster.put("resourcequotas", resource_quota("gpus", 4))
        await seen.world(lambda world: bool(world.bounds), QUOTAS)
        cluster.forbidden = {("list", "resourcequotas"), ("watch", "resourcequotas")}
        await seen.cluster.forget()
        world = await seen.world(lambda world: world.stale, QUOTAS)
        assert world.bounds[0].gpus == 4

    said = follow(steps, cluster=cluster).said
    assert [line.partition(" (")[0] for line in said] == ["the ResourceQuotas can't be read"]


def kai_queue(name: str, quota: float, limit: float, **spec: Any) -> dict[str, Any]:
    gpu = {"quota": quota, "limit": limit, "overQuotaWeight": 1}
    return {"metadata": {"name": name}, "spec": {"resources": {"gpu": gpu}, **spec}}


def test_queues_of_kai_are_projects_and_bound_their_jobs() -> None:
    async def steps(seen: Seen) -> None:
        await seen.cluster.put("queues", kai_queue("team-a", 2, 4))
        await seen.cluster.put(
            "services", service("bert", "nlp", report("bert", match={"id": "bert", "queue": "team-a"}))
        )
        projects = await seen.projects(KAI)
        assert [(one.name, one.guaranteed, one.limit) for one in projects.projects] == [("team-a", 2, 4)]
        world = await seen.world(lambda world: len(world.jobs) == 1, projects)
        assert world.bounds == (Bound("KAI queue team-a", frozenset({"bert"}), 4),)
        await seen.cluster.put("queues", kai_queue("team-a", 2, 3))
        await seen.world(lambda world: world.bounds[0].gpus == 3, projects)

    follow(steps)


def pod_group(name: str, queue: str, namespace: str = "lab") -> dict[str, Any]:
    """Returns a PodGroup as KAI's pod grouper makes it of a pod, shortened."""
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minMember": 1, "priorityClassName": "train", "queue": queue, "topologyConstraint": {}},
    }


def grouped(name: str, gpus: int, group: str) -> dict[str, Any]:
    found = pod(name, gpus, namespace="lab")
    found["metadata"]["annotations"] = {"pod-group-name": group}
    return found


def test_pods_are_in_the_queue_of_their_pod_group_whatever_their_labels_say() -> None:
    async def steps(seen: Seen) -> None:
        await seen.cluster.put("queues", kai_queue("team-a", 2, 4))
        await seen.cluster.put("podgroups", pod_group("pg-rigid-1", "team-a"))
        await seen.cluster.put("pods", grouped("rigid", 1, "pg-rigid-1"))
        await seen.cluster.put("pods", grouped("stranger", 1, "pg-of-nobody"))
        await seen.cluster.put("queues", kai_queue("z-orphan", 2, 4, parentQueue="gone"))
        await seen.cluster.put("podgroups", pod_group("pg-waits", "z-orphan"))
        waiting = grouped("waiting", 1, "pg-waits")
        waiting["spec"].pop("nodeName")
        await seen.cluster.put("pods", waiting)
        projects = await seen.projects(KAI)
        await seen.world(lambda world: dict(world.rigid) == {"team-a": 1} and world.bounds[0].gpus == 3, projects)
        await seen.cluster.put("podgroups", pod_group("pg-rigid-1", "team-b"))
        await seen.world(lambda world: not world.rigid and world.bounds[0].gpus == 4, projects)

    assert follow(steps).said == ["project z-orphan: no project or queue is named gone; it has no parent"]


def test_without_the_right_to_read_pod_groups_the_labels_count_and_it_is_said_once() -> None:
    cluster = FakeCluster()
    cluster.forbidden = {("list", "podgroups"), ("watch", "podgroups")}

    async def steps(seen: Seen) -> None:
        await seen.cluster.put("queues", kai_queue("team-a", 2, 4))
        labelled = grouped("rigid", 1, "pg-rigid-1")
        labelled["metadata"]["labels"] = {"kai.scheduler/queue": "team-a"}
        await seen.cluster.put("pods", labelled)
        projects = await seen.projects(KAI)
        await seen.world(lambda world: dict(world.rigid) == {"team-a": 1} and not world.stale, projects)
        await seen.world(lambda _: True, projects)

    assert follow(steps, cluster=cluster).said == [
        "the PodGroups of KAI can't be read (may not list podgroups; manifests/overlays/quota-kai grants that): pods "
        "without a queue's label count for no queue, and nodes that KAI does not take back are hinted above its quota"
    ]


def test_a_job_of_which_kai_takes_nothing_back_is_known_until_a_node_of_it_has_a_place_among_others() -> None:
    above = "the quota of KAI queue team-a, above which it places only what it may take back,"

    def node(name: str, group: str, *, placed: bool = False) -> dict[str, Any]:
        found = grouped(name, 1, group)
        found["metadata"]["labels"] = pod(name, 1, job="bert")["metadata"]["labels"] | {"kai.scheduler/queue": "team-a"}
        if not placed:
            found["spec"].pop("nodeName")
        return found

    async def steps(seen: Seen) -> None:
        await seen.cluster.put("queues", kai_queue("team-a", 2, 4))
        match = {"id": "bert", "queue": "team-a"}
        await seen.cluster.put("services", service("bert", "lab", report("bert", match=match)))
        projects = await seen.projects(KAI)

        async def bounds_are(*wanted: str) -> None:
            await seen.world(lambda world: [bound.name for bound in world.bounds] == list(wanted), projects)

        await bounds_are("KAI queue team-a")
        refused = pod_group("pg-1", "team-a")
        refused["spec"]["preemptibility"] = "non-preemptible"
        await seen.cluster.put("podgroups", refused)
        await seen.cluster.put("pods", node("bert-1", "pg-1"))
        await bounds_are("KAI queue team-a", above)
        await seen.cluster.delete("pods", "bert-1", "lab")
        another = grouped("another", 1, "pg-of-nobody")
        another["metadata"]["labels"] = {"kai.scheduler/queue": "team-a"}
        await seen.cluster.put("pods", another)
        await seen.world(lambda world: bool(world.rigid), projects)
        await bounds_are("KAI queue team-a", above)
        await seen.cluster.put("podgroups", pod_group("pg-2", "team-a"))
        await seen.cluster.put("pods", node("bert-2", "pg-2", placed=True))
        await bounds_are("KAI queue team-a")

    assert not follow(steps).said


def test_a_cluster_without_kai_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.LOUD", 1)
    cluster = FakeCluster()
    cluster.unknown = {"queues"}
    found: list[str] = []

    async def steps(seen: Seen) -> None:
        while "installed" not in "".join(found):
            try:
                seen.source.projects(KAI)
            except OSError as error:
                found.append(str(error))
            await asyncio.sleep(0)

    follow(steps, cluster=cluster)
    assert found[-1] == "the queues of KAI can't be read: the API server knows no such objects; is it installed?"


def test_what_is_odd_about_queues_is_said_once() -> None:
    async def steps(seen: Seen) -> None:
        await seen.cluster.put("queues", kai_queue("team-a", 0, 0, parentQueue="gone"))
        projects = await seen.projects(KAI)
        await seen.world(lambda _: True, projects)
        await seen.world(lambda _: True, projects)

    assert follow(steps).said == [
        "project team-a never gets a GPU: its limit is 0",
        "project team-a: no project or queue is named gone; it has no parent",
    ]
