"""Kueue beside a cluster source: queues are projects and bounds, by the objects as they come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.projects_document import parse_projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import decide
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.sources.kueue.objects import GROUP
from tests.support.fake_cluster import FakeCluster
from tests.support.kueue_objects import cluster_queue, flavor, local_queue, workload
from tests.support.quota_reports import report, service
from tests.support.quota_sources import Seen, follow, machine, pod

DOCUMENT = parse_projects("{apiVersion: elastic-quota/v1, unmatched: refuse, capacity: {machines: {}, kueue: {}}}")
_CIRCLE = "is its own ancestor; nothing grows until it is not"


def there(*versions: str) -> FakeCluster:
    cluster = FakeCluster()
    cluster.served = {GROUP: list(versions or ("v1beta1", "v1beta2"))}
    return cluster


async def put_queues(seen: Seen, **more: Any) -> None:
    """Makes two queues of a cohort, each with a LocalQueue in a namespace of its name."""
    for name in ("nlp", "vision"):
        await seen.cluster.put("clusterqueues", cluster_queue(name, 4, "all", **more))
        await seen.cluster.put("localqueues", local_queue(name, "gpus", name))


def queued(name: str, space: str) -> dict[str, Any]:
    """Returns the Service of a job that reports its queue."""
    return service(name, space, report(name, match={"id": name, "job": name, "queue": "gpus"}))


def admitted(shown: dict[str, Any], job: str = "") -> dict[str, Any]:
    """Returns a pod that Kueue has admitted, of a Job."""
    shown["metadata"]["labels"]["kueue.x-k8s.io/podset"] = "main"
    return unlabelled(shown, job)


def unlabelled(shown: dict[str, Any], job: str) -> dict[str, Any]:
    """Returns a pod of a Job, as older versions of Kueue admit it."""
    shown["metadata"]["ownerReferences"] = [{"kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True}]
    return shown


async def projects(seen: Seen, names: set[str]) -> Projects:
    """Waits for projects of these names."""
    found: list[Projects] = []

    def known(_: World) -> bool:
        found[:] = [seen.source.projects(DOCUMENT)]
        return {one.name for one in found[0].projects} == names

    await seen.world(known, DOCUMENT)
    return found[0]


def bounds(world: World) -> dict[str, int]:
    return {bound.name: bound.gpus for bound in world.bounds}


def test_queues_are_projects_and_cohorts_are_departments() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen, borrowingLimit=2)
        found = await projects(seen, {"all", "nlp", "vision"})
        numbers = {one.name: (one.guaranteed, one.limit, one.parent) for one in found.projects}
        assert numbers == {"all": (8, 8, None), "nlp": (4, 6, "all"), "vision": (4, 6, "all")}
        owner = found.project_of({"namespace": "nlp", "queue": "gpus", "id": "bert"})
        assert owner is not None and owner.name == "nlp"
        assert found.project_of({"namespace": "nlp", "queue": "other"}) is None

    assert not follow(steps, cluster=there()).said


def test_a_job_that_names_no_queue_belongs_to_the_default_one_of_its_namespace() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        await seen.cluster.put("localqueues", local_queue("lab", "default", "vision"))
        await seen.cluster.put("services", service("probe", "lab", report("probe")))
        found = await projects(seen, {"all", "nlp", "vision"})
        world = await seen.world(lambda world: len(world.jobs) == 1 and len(world.bounds) == 2, found)
        owner = found.project_of(world.jobs[0].match)
        assert owner is not None and owner.name == "vision"
        assert bounds(world) == {"Cohort all": 8, "ClusterQueue vision": 8}

    follow(steps, cluster=there())


def test_workloads_of_others_count_for_their_queue_and_not_by_their_pods() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        await seen.cluster.put("services", queued("bert", "nlp"))
        await seen.cluster.put("workloads", workload("nlp", "bert-1", "gpus", 1, "nlp"))
        await seen.cluster.put("pods", admitted(pod("bert-1", 1, job="bert")))
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 3, "vision"))
        await seen.cluster.put("pods", admitted(pod("sweep", 3, namespace="vision")))
        found = await projects(seen, {"all", "nlp", "vision"})
        world = await seen.world(lambda world: dict(world.rigid) == {"vision": 3} and world.jobs[0].held == 1, found)
        assert (world.capacity, bounds(world)) == (8, {"Cohort all": 5, "ClusterQueue nlp": 5})
        await seen.cluster.put("workloads", workload("vision", "more", "gpus", 1))
        world = await seen.world(lambda world: dict(world.rigid) == {"vision": 4}, found)
        assert bounds(world) == {"Cohort all": 4, "ClusterQueue nlp": 4}
        await seen.cluster.delete("workloads", "job-more", "vision")
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 3, "vision", finished=True))
        await seen.world(lambda world: not world.rigid and bounds(world)["Cohort all"] == 8, found)

    assert not follow(steps, cluster=there()).said


def test_a_pod_without_the_label_of_kueue_is_known_by_the_job_that_controls_it() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 3, "vision"))
        await seen.cluster.put("pods", unlabelled(pod("sweep", 3, "vision"), "sweep"))
        await seen.cluster.put("pods", unlabelled(pod("notebook", 1, "vision"), "notebook"))
        found = await projects(seen, {"all", "nlp", "vision"})
        world = await seen.world(lambda world: world.capacity < 8 and bool(world.rigid), found)
        assert (world.capacity, dict(world.rigid), world.leaving) == (7, {"vision": 3}, 0)
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 3, active=False))
        world = await seen.world(lambda world: not world.rigid, found)
        assert (world.capacity, world.leaving) == (7, 3)

    assert not follow(steps, cluster=there()).said


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("JobSet", {"jobset.sigs.k8s.io/jobset-name": "sweep"}),
        ("RayJob", {"ray.io/cluster": "sweep-raycluster-x2v9k"}),
        ("RayJob", {"ray.io/cluster": "sweep-x2v9k"}),
        ("RayService", {"ray.io/cluster": "sweep-x2v9k"}),
    ],
)
def test_a_pod_without_the_label_of_kueue_is_known_by_what_is_two_steps_above_it(
    kind: str, label: dict[str, str]
) -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        of_sweep = workload("vision", "sweep", "gpus", 3, "vision")
        of_sweep["metadata"]["ownerReferences"][0]["kind"] = kind
        await seen.cluster.put("workloads", of_sweep)
        for name, labels in (("sweep-1", label), ("notebook", {key: f"a-{text}" for key, text in label.items()})):
            shown = unlabelled(pod(name, 1, "vision"), f"between-{name}")
            shown["metadata"]["labels"] = labels
            await seen.cluster.put("pods", shown)
        found = await projects(seen, {"all", "nlp", "vision"})
        world = await seen.world(lambda world: world.capacity < 8 and bool(world.rigid), found)
        assert (world.capacity, dict(world.rigid), world.leaving) == (7, {"vision": 3}, 0)

    assert not follow(steps, cluster=there()).said


def test_what_a_queue_of_nobody_has_is_off_the_capacity() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        await seen.cluster.put("workloads", workload("lab", "sweep", "other", 3, "vision"))
        found = await projects(seen, {"all", "nlp", "vision"})
        world = await seen.world(lambda world: world.capacity == 5, found)
        assert (world.foreign, dict(world.rigid)) == (3, {})

    follow(steps, cluster=there())


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_the_version_that_is_served_is_read(version: str) -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen, version=version)
        await projects(seen, {"all", "nlp", "vision"})

    assert not follow(steps, cluster=there(version)).said


def test_a_cluster_without_kueue_is_said_in_one_line_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.quota.sources.kueue.source.LOOK_SECONDS", 0.01)
    lines: set[str] = set()

    async def steps(seen: Seen) -> None:
        while not any("install Kueue" in line for line in lines):
            try:
                seen.source.projects(DOCUMENT)
            except OSError as error:
                lines.add(str(error))
            await asyncio.sleep(0)
        seen.cluster.served = {GROUP: ["v1beta2"]}
        await put_queues(seen)
        await projects(seen, {"all", "nlp", "vision"})

    follow(steps)
    missing = (
        "Kueue's clusterqueues can't be read: the cluster has no kueue.x-k8s.io in v1beta2 or v1beta1: "
        "install Kueue, or take kueue out of capacity"
    )
    assert lines - {"Kueue's clusterqueues can't be read yet"} == {missing}


def test_an_upgrade_that_ends_the_version_in_use_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.FIRST_DELAY", 0.001)

    async def steps(seen: Seen) -> None:
        await put_queues(seen, version="v1beta1")
        await projects(seen, {"all", "nlp", "vision"})
        seen.cluster.served = {GROUP: ["v1beta2"]}
        await seen.cluster.forget()
        await seen.cluster.put("clusterqueues", cluster_queue("lab", 2, "all"))
        await projects(seen, {"all", "nlp", "vision", "lab"})
        found = seen.source.projects(DOCUMENT)
        await seen.world(lambda world: not world.stale, found)

    said = follow(steps, cluster=there("v1beta1")).said
    assert all("the API server knows no such objects" in line for line in said)


def test_a_collection_that_the_served_version_lacks_is_looked_for_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.FIRST_DELAY", 0.001)
    monkeypatch.setattr("elastic_launcher.quota.sources.kueue.source.LOOK_SECONDS", 0.0123)
    pauses, sleep = [], asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    cluster = there()
    cluster.unknown = {"cohorts"}

    async def steps(seen: Seen) -> None:
        with pytest.raises(OSError, match="can't be read yet"):
            seen.source.projects(DOCUMENT)  # which has it followed
        while pauses.count(0.0123) < 2:
            await sleep(0)
        cluster.unknown = set()
        await put_queues(seen)
        await projects(seen, {"all", "nlp", "vision"})

    follow(steps, cluster=cluster)


def test_an_object_that_can_not_be_used_is_named_and_keeps_all_from_growing() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        found = await projects(seen, {"all", "nlp", "vision"})
        await seen.cluster.put("clusterqueues", cluster_queue("lab", -1, "all"))
        await seen.world(lambda world: world.stale, found)
        await seen.cluster.put("clusterqueues", cluster_queue("lab", 1, "all"))
        await seen.world(lambda world: not world.stale, found)
        await seen.cluster.put("cohorts", {"metadata": {"name": "all"}, "spec": {"parentName": "all"}})
        await seen.world(lambda world: world.stale, found)
        await seen.cluster.put("clusterqueues", cluster_queue("nlp", -1, "all"))
        await seen.world(lambda world: world.stale, found)
        assert {"nlp", "lab"} <= {one.name for one in seen.source.projects(DOCUMENT).projects}, "the last known stays"

    said = follow(steps, cluster=there()).said
    assert [line.partition(":")[0] for line in said][:2] == ["ClusterQueue lab", f"Cohort all {_CIRCLE}"]


def test_missing_rights_name_the_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.POLL_SECONDS", 0.01)
    cluster = there()
    cluster.forbidden = {("list", "cohorts"), ("watch", "cohorts")}

    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        said = ""
        while "manifests/overlays/quota-kueue grants that" not in said:
            try:
                seen.source.projects(DOCUMENT)
            except OSError as error:
                said = str(error)
            await asyncio.sleep(0)
        assert said.startswith("Kueue's cohorts can't be read: may not list cohorts")

    follow(steps, cluster=cluster)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_flavors_say_which_machines_count(version: str) -> None:
    async def steps(seen: Seen) -> None:
        taints = [{"key": "team", "value": "nlp", "effect": "NoSchedule"}]
        await seen.cluster.put("nodes", machine("m1", 4) | {"spec": {"taints": taints}})
        await put_queues(seen, version=version)
        found = await projects(seen, {"all", "nlp", "vision"})
        await seen.world(lambda world: world.capacity == 12, found)  # a flavor that is not there excludes none
        await seen.cluster.put("resourceflavors", flavor())
        await seen.world(lambda world: world.capacity == 8, found)
        await seen.cluster.put("resourceflavors", flavor(tolerations=[{"key": "team", "operator": "Exists"}]))
        await seen.world(lambda world: world.capacity == 12, found)
        await seen.cluster.put("resourceflavors", flavor(nodeLabels={"pool": "a100"}))
        await seen.world(lambda world: world.capacity == 0, found)

    assert not follow(steps, cluster=there(version)).said


def test_without_the_right_to_read_flavors_all_machines_count_and_it_is_said_once() -> None:
    cluster = there()
    cluster.forbidden = {("list", "resourceflavors"), ("watch", "resourceflavors")}

    async def steps(seen: Seen) -> None:
        await seen.cluster.put("resourceflavors", flavor(nodeLabels={"pool": "a100"}))
        await put_queues(seen)
        await seen.cluster.put("services", queued("bert", "nlp"))
        found = await projects(seen, {"all", "nlp", "vision"})
        for _ in range(2):
            world = await seen.world(lambda world: world.capacity == 8 and bool(world.jobs), found)
        assert [grant.allowed for grant in decide(world, found, Ledger(), seen.now).grants] == [8], "it is not stale"

    (said,) = follow(steps, cluster=cluster).said
    assert said == (
        "Kueue's resourceflavors can't be read (may not list resourceflavors; manifests/overlays/quota-kueue grants "
        "that): machines count whatever their taints and labels are"
    )


def test_a_job_gets_back_what_its_queue_has_lent_though_all_machines_are_full() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        await seen.cluster.put("workloads", workload("nlp", "first", "gpus", 4, "nlp"))
        await seen.cluster.put("workloads", workload("nlp", "second", "gpus", 4, "nlp"))
        for name in ("first", "second"):
            await seen.cluster.put("pods", admitted(pod(name, 4)))
        await seen.cluster.put("services", queued("resnet", "vision"))
        found = await projects(seen, {"all", "nlp", "vision"})
        world = await seen.world(lambda world: len(world.jobs) == 1 and dict(world.rigid) == {"nlp": 4}, found)
        decision = decide(world, found, Ledger(), seen.now)
        assert [(grant.guaranteed, grant.allowed) for grant in decision.grants] == [(4, 4)]

    follow(steps, cluster=there())


def test_borrowed_gpus_move_to_the_queue_that_owns_them_only_once_kueue_can_admit_it() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        await seen.cluster.put("services", queued("bert", "nlp"))
        found = await projects(seen, {"all", "nlp", "vision"})
        first = decide(await seen.world(lambda world: len(world.jobs) == 1, found), found, Ledger(), seen.now)
        assert [grant.allowed for grant in first.grants] == [8]
        following = {"allowed": 8, "generation": 1}
        held = {"held": 8, "following": following, "match": {"id": "bert", "job": "bert", "queue": "gpus"}}
        await seen.cluster.put("services", service("bert", "nlp", report("bert", **held)))
        for node in range(1, 9):
            await seen.cluster.put("workloads", workload("nlp", f"bert-{node}", "gpus", 1, "nlp"))
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 3))
        world = await seen.world(lambda world: dict(world.rigid) == {"vision": 3} and world.jobs[0].held == 8, found)
        second = decide(world, found, first.ledger, seen.now + 100)
        assert [(grant.allowed, grant.holds) for grant in second.grants] == [(5, 8)]
        await seen.cluster.put("services", queued("resnet", "vision"))
        world = await seen.world(lambda world: len(world.jobs) == 2, found)
        third = decide(world, found, second.ledger, seen.now + 101)
        assert {grant.job: grant.allowed for grant in third.grants} == {"bert": 4, "resnet": 0}, "bert holds them still"

    follow(steps, cluster=there())


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"unschedulable": True}, 5),  # cordoned: it counts for what is held there
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, 0),
    ],
)
def test_pods_that_end_on_a_machine_that_takes_no_pods_free_nothing(spec: dict[str, Any], counts: int) -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        await seen.cluster.put("services", queued("bert", "nlp"))
        await seen.cluster.put("nodes", machine("m1", 8))
        await seen.cluster.put("nodes", machine("m0", 8) | {"spec": spec})
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 5, "vision"))
        await seen.cluster.put("pods", admitted(pod("sweep", 5, "vision"), "sweep"))
        found = await projects(seen, {"all", "nlp", "vision"})
        world = await seen.world(lambda world: bool(world.rigid) and world.capacity == 8 + counts, found)
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 5, active=False))
        world = await seen.world(lambda world: not world.rigid and bool(world.jobs), found)
        assert (world.capacity, world.leaving) == (8, 0)
        assert [grant.allowed for grant in decide(world, found, Ledger(), seen.now).grants] == [8]
        await seen.cluster.delete("pods", "sweep", "vision")
        await seen.cluster.put("nodes", machine("m2", 4))
        world = await seen.world(lambda world: world.capacity != 8, found)
        assert (world.capacity, world.leaving) == (12, 0)

    assert not follow(steps, cluster=there()).said


def test_a_job_grows_onto_the_gpus_of_an_evicted_workload_only_once_its_pods_are_gone() -> None:
    async def steps(seen: Seen) -> None:
        await put_queues(seen)
        await seen.cluster.put("services", queued("bert", "nlp"))
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 5, "vision"))
        await seen.cluster.put("pods", admitted(pod("sweep", 5, "vision"), "sweep"))
        found = await projects(seen, {"all", "nlp", "vision"})
        world = await seen.world(lambda world: dict(world.rigid) == {"vision": 4} and len(world.jobs) == 1, found)
        first = decide(world, found, Ledger(), seen.now)
        assert [grant.allowed for grant in first.grants] == [4], "Kueue takes back what vision has borrowed"
        await seen.cluster.put("workloads", workload("vision", "sweep", "gpus", 5, active=False))
        world = await seen.world(lambda world: not world.rigid, found)
        second = decide(world, found, first.ledger, seen.now)
        assert (world.leaving, [grant.allowed for grant in second.grants]) == (5, [4])
        await seen.cluster.delete("pods", "sweep", "vision")
        world = await seen.world(lambda world: not world.leaving, found)
        assert [grant.allowed for grant in decide(world, found, second.ledger, seen.now).grants] == [8]

    assert not follow(steps, cluster=there()).said
