"""What a cluster has and who holds it, by tables of machines, pods and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Autoscale, Capacity, Project, Projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import decide
from elastic_launcher.quota.scheduling import Taint
from elastic_launcher.quota.sources.machine import Machine
from elastic_launcher.quota.sources.machines import CLAIM_SECONDS, SILENT_SECONDS, Cluster, Count, Pod, Service, count

GPU = "nvidia.com/gpu"
NOW = 10_000.0
PROJECTS = Projects(
    (
        Project("nlp", guaranteed=4, patterns=({"namespace": "nlp"},)),
        Project("vision", guaranteed=2, patterns=({"namespace": "vision"},)),
    )
)
NOTHING: Mapping[str, float] = MappingProxyType({})


def machine(name: str = "m0", gpus: int = 8, **more: Any) -> Machine:
    return Machine(name, {GPU: gpus}, **more)


def tainted(*keys: str) -> Machine:
    return machine(taints=frozenset(map(Taint, keys)))


def other(namespace: str, gpus: int, on: str = "m0", resource: str = GPU) -> Pod:
    """Returns a pod that is not of a job."""
    return Pod(namespace, {resource: gpus}, on)


def node(job: str, gpus: int, on: str = "m0", namespace: str = "nlp") -> Pod:
    """Returns a node of a job."""
    return Pod(namespace, {GPU: gpus}, on, job, is_node=True)


def launcher(job: str, namespace: str = "nlp") -> Pod:
    return Pod(namespace, {}, "m0", job)


def service(id: str = "bert", namespace: str = "nlp", created: float = 5000.0, **job: Any) -> Service:
    """Returns the Service of a job of 1 to 8 GPUs that reported just now."""
    report = Job(
        id=id, match={"id": id, "job": id}, minimum=1, maximum=8, sizes=tuple(range(1, 9)), priority=0,
        submitted_at=created, held=0, following=None, following_generation=None, waits=60.0, speeds={}, steps_left=None,
        start_seconds=None, changes=0, service=0.0, training_since=None, finished=False, reported_at=NOW,
    )  # fmt: skip
    return Service(namespace, id, f"uid-{namespace}-{id}", created, replace(report, **job))


def counted(
    *objects: Machine | Pod | Service,
    projects: Projects = PROJECTS,
    doubts: Mapping[str, float] = NOTHING,
    now: float = NOW,
) -> Count:
    cluster = Cluster(
        [one for one in objects if isinstance(one, Service)],
        [one for one in objects if isinstance(one, Pod)],
        [one for one in objects if isinstance(one, Machine)],
    )
    return count(cluster, projects, now, doubts)


@pytest.mark.parametrize(
    ("objects", "capacity"),
    [
        ((), 0),
        ((machine(), machine("m1", 4)), 12),
        ((machine(ready=False),), 0),
        ((tainted(GPU, "amd.com/gpu"),), 8),
        ((tainted("example.com/dedicated"),), 0),
        ((tainted("ToBeDeletedByClusterAutoscaler"),), 0),
        ((Machine("m0", {"example.com/gpu": 8}),), 0),
        # what is nobody's project's is taken off, and never more than there is
        ((machine(), other("kube-system", 3)), 5),
        ((machine(), other("kube-system", 9)), 0),
        ((machine(), other("kube-system", 3, on="")), 8),
        ((machine(), other("kube-system", 3, on="gone")), 8),
        ((machine(), other("kube-system", 3, resource="example.com/gpu")), 8),
        # what projects hold is part of it
        ((machine(), other("nlp", 3)), 8),
        ((machine(), service(), node("bert", 3)), 8),
        ((machine(), node("unknown", 3)), 8),
        # of a machine that takes no new pods, what projects hold there, while they do
        ((machine(ready=False), machine("m1"), other("nlp", 3), other("kube-system", 2)), 11),
        ((machine(ready=False), service(), node("bert", 3), node("bert", 2, on="m1")), 3),
        ((tainted("example.com/dedicated"), service(), node("bert", 3)), 3),
        # of one that will be taken away, nothing
        ((tainted("karpenter.sh/disrupted"), machine("m1"), service(), node("bert", 3)), 8),
    ],
)
def test_the_capacity_is_what_projects_may_hold_together(
    objects: tuple[Machine | Pod | Service, ...], capacity: int
) -> None:
    assert counted(*objects).world.capacity == capacity


def test_what_nobodys_project_holds_beside_the_capacity_is_counted() -> None:
    objects = machine(), other("kube-system", 9), machine("m1", ready=False), other("kube-system", 2, on="m1")
    assert counted(*objects).world.foreign == 8


AUTOSCALED = replace(PROJECTS, capacity=Capacity(autoscale=Autoscale(64)))


def test_a_job_does_not_grow_for_a_machine_that_will_go() -> None:
    going = machine("m1", taints=frozenset({Taint("ToBeDeletedByClusterAutoscaler")}))
    pods = node("bert", 4), node("bert", 2, on="m1")
    before = counted(machine(), machine("m1"), service(maximum=16, sizes=tuple(range(1, 17))), *pods).world
    after = counted(machine(), going, service(maximum=16, sizes=tuple(range(1, 17))), *pods).world
    assert [grant.allowed for grant in decide(before, PROJECTS, Ledger(), NOW).grants] == [16]
    assert [grant.allowed for grant in decide(after, PROJECTS, Ledger(), NOW).grants] == [8]


@pytest.mark.parametrize(
    ("objects", "sizes"),
    [
        ((machine(gpus=8), machine("m1", 4), service(), node("bert", 3)), (4, 8)),
        ((machine(), machine("m1"), other("nlp", 1)), (8,)),
        ((machine(), machine("m1"), other("kube-system", 1, on="m1")), (8,)),
        ((machine(taints=frozenset({Taint("ToBeDeletedByClusterAutoscaler")})), machine("m1", ready=False)), ()),
        ((Machine("cpu", {}),), ()),
    ],
)
def test_machines_that_jobs_alone_use_could_be_emptied(
    objects: tuple[Machine | Pod | Service, ...], sizes: tuple[int, ...]
) -> None:
    assert counted(*objects, projects=AUTOSCALED).world.machines == sizes
    assert counted(*objects).world.machines == (), "only where machines come and go"


@pytest.mark.parametrize(
    ("pods", "rigid"),
    [
        ((other("nlp", 3), other("nlp", 2), other("vision", 1)), {"nlp": 5, "vision": 1}),
        ((other("kube-system", 3),), {}),
        ((node("unknown", 2),), {"nlp": 2}),
        ((launcher("bert"),), {}),
        # what waits counts within the guarantee: GPUs are taken back for it, and no others are kept for it
        ((other("nlp", 3, on=""),), {"nlp": 3}),
        ((other("nlp", 3, on=""), other("nlp", 3, on="")), {"nlp": 4}),
        ((other("nlp", 3), other("nlp", 3, on="")), {"nlp": 4}),
        ((other("nlp", 5), other("nlp", 3, on="")), {"nlp": 5}),
    ],
)
def test_pods_that_are_not_elastic_count_for_the_project_of_their_namespace(
    pods: tuple[Pod, ...], rigid: dict[str, int]
) -> None:
    assert dict(counted(machine(), service(), *pods).world.rigid) == rigid


def test_pods_in_a_queue_of_kai_count_for_its_project_where_the_document_names_kai() -> None:
    queues = [Project(name, guaranteed=2, patterns=({"queue": name},)) for name in ("team-a", "team-b")]
    pods = [
        replace(other("ml", 1), queue="team-a"),
        replace(other("nlp", 2, on=""), queue="team-b"),
        replace(other("ml", 1), queue="gone"),
        replace(other("nlp", 1), queue="gone"),
    ]
    named = Projects((*PROJECTS.projects, *queues), capacity=Capacity(kai=True))
    world = counted(machine(), *pods, projects=named).world
    assert (world.capacity, dict(world.rigid)) == (7, {"nlp": 1, "team-a": 1, "team-b": 2})
    world = counted(machine(), *pods, projects=replace(named, capacity=Capacity())).world
    assert (world.capacity, dict(world.rigid)) == (6, {"nlp": 3})


def test_pods_of_no_project_count_for_the_one_that_takes_what_is_unmatched() -> None:
    projects = Projects((*PROJECTS.projects, Project("default", patterns=())), unmatched="default")
    world = counted(machine(), other("kube-system", 3), projects=projects).world
    assert (world.capacity, dict(world.rigid)) == (8, {"default": 3})


def test_pods_that_two_projects_match_equally_are_nobodys_and_that_is_said() -> None:
    twice = ({"namespace": "n*"}, {"namespace": "*p"})
    projects = Projects((Project("a", patterns=twice[:1]), Project("b", patterns=twice[1:])))
    found = counted(machine(), other("nlp", 3), projects=projects)
    assert (found.world.capacity, dict(found.world.rigid)) == (5, {})
    assert "pods with GPUs in namespace nlp count for no project" in found.remarks[0]


@pytest.mark.parametrize(
    ("reported", "pods", "held"),
    [(0, 0, 0), (2, 2, 2), (1, 3, 3), (3, 1, 3), (12, 0, 8), (0, 12, 12)],
)
def test_a_job_holds_what_it_reports_or_what_its_pods_have(reported: int, pods: int, held: int) -> None:
    (job,) = counted(machine(), service(held=reported), *[node("bert", 1) for _ in range(pods)]).world.jobs
    assert job.held == held


def test_a_job_holds_what_its_pods_wait_for() -> None:
    (job,) = counted(machine(), service(), node("bert", 2), node("bert", 2, on="")).world.jobs
    assert job.held == 4


def test_a_report_beyond_the_pods_counts_for_a_limited_time() -> None:
    objects = machine(), service(held=4), node("bert", 2)
    first = counted(*objects)
    assert (first.world.jobs[0].held, dict(first.doubts), first.remarks) == (4, {"bert": NOW}, ())
    later = counted(*objects, doubts=first.doubts, now=NOW + CLAIM_SECONDS)
    assert (later.world.jobs[0].held, dict(later.doubts)) == (4, {"bert": NOW})
    last = counted(*objects, doubts=later.doubts, now=NOW + CLAIM_SECONDS + 1)
    assert last.world.jobs[0].held == 2
    assert last.remarks == ("nlp/bert: it reports more nvidia.com/gpu than its pods ask for; the pods count",)
    assert not counted(*objects, node("bert", 2), doubts=last.doubts).doubts


def test_with_a_number_of_gpus_the_reports_count_and_machines_do_not() -> None:
    projects = replace(PROJECTS, capacity=Capacity(gpus=4))
    objects = machine(), service(held=4), other("kube-system", 3), other("vision", 1)
    found = counted(*objects, projects=projects, doubts={"bert": NOW - 2 * CLAIM_SECONDS})
    assert (found.world.capacity, found.world.jobs[0].held, dict(found.world.rigid)) == (4, 4, {"vision": 1})
    assert (dict(found.doubts), found.remarks) == ({}, ())


def test_another_resource_is_counted_where_the_document_names_it() -> None:
    projects = replace(PROJECTS, capacity=Capacity(resource="example.com/gpu"))
    there = Machine("m0", {"example.com/gpu": 4, GPU: 8}, taints=frozenset({Taint("example.com/gpu")}))
    world = counted(there, other("nlp", 1, resource="example.com/gpu"), other("nlp", 2), projects=projects).world
    assert (world.capacity, dict(world.rigid)) == (4, {"nlp": 1})


def test_owners_do_not_say_where_their_job_is_which_one_it_is_or_since_when() -> None:
    claimed = service(match={"id": "gpt", "namespace": "vision", "queue": "a"}, submitted_at=1.0)
    (job,) = counted(claimed).world.jobs
    assert (job.id, job.match) == ("bert", {"id": "bert", "namespace": "nlp", "queue": "a"})
    assert job.submitted_at == claimed.created_at
    (ahead,) = counted(service(submitted_at=NOW + 1e6)).world.jobs
    assert ahead.submitted_at == NOW


def test_a_job_of_an_older_version_gets_no_id_that_it_does_not_know() -> None:
    (job,) = counted(service(match={"job": "bert"})).world.jobs
    assert job.match == {"job": "bert", "namespace": "nlp"}


def test_of_two_jobs_with_one_id_the_first_one_counts() -> None:
    found = counted(service(created=2.0, minimum=2), service(namespace="vision", created=1.0, minimum=3))
    assert [(job.match["namespace"], job.minimum) for job in found.world.jobs] == [("vision", 3)]
    assert found.remarks == ("nlp/bert: job bert of namespace vision has the same id; ignored",)


@pytest.mark.parametrize(
    ("job", "pods", "there"),
    [
        ({"finished": True}, (), False),
        ({"finished": True}, (node("bert", 2),), True),
        ({"reported_at": NOW - SILENT_SECONDS}, (), True),
        ({"reported_at": NOW - SILENT_SECONDS - 1}, (), False),
        ({"reported_at": NOW - SILENT_SECONDS - 1}, (node("bert", 2),), True),
        ({"reported_at": NOW - SILENT_SECONDS - 1}, (launcher("bert"),), True),
        ({"reported_at": NOW - SILENT_SECONDS - 1}, (launcher("bert", "vision"),), False),
    ],
)
def test_a_job_that_is_over_or_silent_counts_while_it_has_pods(
    job: dict[str, Any], pods: tuple[Pod, ...], there: bool
) -> None:
    world = counted(machine(), service(**job), *pods).world
    assert [one.held for one in world.jobs] == ([sum(pod.resources.get(GPU, 0) for pod in pods)] if there else [])


def test_a_report_that_can_not_be_used_is_said_and_the_last_good_one_holds() -> None:
    found = counted(replace(service(held=2), refused="it is absurd"), replace(service("gpt"), job=None, refused="no"))
    assert [(job.id, job.held) for job in found.world.jobs] == [("bert", 2)]
    assert found.remarks == (
        "nlp/bert: it is absurd; its last good report holds",
        "nlp/gpt: no; it gets no hints until it reports well",
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_the_order_of_objects_is_of_no_matter_and_no_gpu_counts_twice(seed: int) -> None:
    random = Random(seed)
    machines = [machine(f"m{number}", 8, ready=random.random() < 0.8) for number in range(3)]
    services = [service(f"job-{number}", random.choice(("nlp", "vision"))) for number in range(3)]
    left = {one.name: 8 for one in machines}
    pods: list[Pod] = []
    for _ in range(random.randrange(12)):
        name = random.choice(sorted(left))
        gpus = random.randint(0, left[name])
        left[name] -= gpus
        job = random.choice(services)
        pods.append(
            random.choice([node(job.id, gpus, name, job.namespace), other(random.choice(("nlp", "kube")), gpus, name)])
        )
    objects: list[Machine | Pod | Service] = [*machines, *services, *pods]
    found = counted(*objects)
    random.shuffle(objects)
    assert counted(*objects) == found
    world = found.world
    assert sum(job.held for job in world.jobs) + sum(world.rigid.values()) <= world.capacity <= 8 * len(machines)
