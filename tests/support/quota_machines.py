"""Machines for tests of the quota controller: jobs follow their hints, and a scheduler places their pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import Decision, decide
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.scheduling import Scheduling, Taint, scheduling_of
from elastic_launcher.quota.sources.machine import Machine
from elastic_launcher.quota.sources.machines import Cluster, Pod, Service, count
from tests.support.quota_jobs import job

GPU = "nvidia.com/gpu"
PROJECTS = Projects(
    (
        Project("nlp", guaranteed=4, patterns=({"namespace": "nlp"},)),
        Project("vision", guaranteed=4, patterns=({"namespace": "vision"},)),
        Project("rest", patterns=({"namespace": "rest"},)),
    )
)
DEDICATED = Taint("team", "nlp")
TOLERATES = {"tolerations": [{"key": "team", "operator": "Exists"}]}


def machine(name: str, gpus: int = 8, pool: str = "", *taints: Taint) -> Machine:
    return Machine(name, {GPU: gpus}, taints=frozenset(taints), labels={"pool": pool} if pool else {})


def service(name: str, namespace: str = "nlp", most: int = 8, *specs: Mapping[str, Any], **fields: Any) -> Service:
    """Returns the Service of a job whose nodes ask for machines by what pods' specs say."""
    scheduling = tuple(map(scheduling_of, specs)) or (Scheduling(),)
    report = replace(job(name, most=most), scheduling=scheduling, **fields)
    return Service(namespace, name, f"uid-{name}", 0.0, report)


def pool(name: str) -> Mapping[str, Any]:
    return {"nodeSelector": {"pool": name}}


def node(name: str, on: str, gpus: int = 1, namespace: str = "nlp", over_quota: bool = False) -> Pod:
    return Pod(namespace, {GPU: gpus}, on, name, is_node=True, over_quota=over_quota)


def other(on: str, gpus: int, namespace: str = "kube-system") -> Pod:
    return Pod(namespace, {GPU: gpus}, on)


def world_of(*objects: Machine | Pod | Service, projects: Projects = PROJECTS) -> World:
    return count(
        Cluster(
            [one for one in objects if isinstance(one, Service)],
            [one for one in objects if isinstance(one, Pod)],
            [one for one in objects if isinstance(one, Machine)],
        ),
        projects,
        0.0,
        {},
    ).world


@dataclass
class Place:
    """The place of a node of a job.

    Attributes:
        on: The machine; "" while it waits for one.
        over_quota: Whether the node is above the guarantee.
        number: Its number, which no other node of its job ever has.
    """

    on: str
    over_quota: bool
    number: int


@dataclass
class Played:
    """Jobs that follow their hints, on machines that a scheduler gives them.

    Attributes:
        nodes: The nodes of each job.
    """

    random: Random
    machines: dict[str, Machine] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    nodes: dict[str, list[Place]] = field(default_factory=dict)
    projects: Projects = PROJECTS
    others: list[Pod] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    now: float = 1000.0
    started: int = 100

    def report(self, name: str) -> Job:
        found = self.services[name].job
        assert found is not None
        return found

    def free(self, on: str) -> int:
        """Returns the GPUs of a machine that nobody has."""
        held = sum(self.held(name, on) for name in self.nodes)
        return (
            self.machines[on].resources[GPU]
            - held
            - sum(pod.resources[GPU] for pod in self.others if pod.machine == on)
        )

    def held(self, name: str, on: str) -> int:
        """Returns the GPUs that a job has on a machine."""
        return sum(place.on == on for place in self.nodes[name]) * self.report(name).per_node

    def usable(self, name: str, over_quota: bool | None = None) -> list[str]:
        """Returns the machines that a job's pods can come to, or its nodes of one kind."""
        asked = self.report(name).scheduling
        asked = asked if over_quota is None else (asked[-1 if over_quota else 0],)
        return [
            one for one, there in sorted(self.machines.items()) if any(there.takes_pods(GPU, each) for each in asked)
        ]

    def world(self) -> World:
        pods = [
            replace(
                node(name, one.on, self.report(name).per_node, self.services[name].namespace, one.over_quota),
                number=one.number,
            )
            for name, places in self.nodes.items()
            for one in places
        ]
        objects = *self.machines.values(), *self.services.values(), *self.others, *pods
        return world_of(*objects, projects=self.projects)

    def round(self) -> tuple[World, Decision]:
        world = self.world()
        decision = decide(world, self.projects, self.ledger, self.now)
        self.ledger = decision.ledger
        return world, decision

    def follow(self, decision: Decision) -> None:
        """Lets jobs do what they are allowed, and the scheduler do its work, in any order."""
        for grant in decision.grants:
            places, report = self.nodes[grant.job], self.report(grant.job)
            wanted = grant.allowed // report.per_node
            named = set(grant.leave)
            places.sort(key=lambda one: (one.number in named, one.on == "", one.over_quota, self.random.random()))
            places[:] = [one for one in places[:wanted] if one.on]  # the last ones leave first
            within = sum(not one.over_quota for one in places)
            if len(report.scheduling) > 1:
                within = max(within, grant.guaranteed // report.per_node)
            while len(places) < wanted:
                self.started += 1
                places.append(Place("", sum(not one.over_quota for one in places) >= within, self.started))
            report = replace(
                report, held=len(places) * report.per_node, following=grant.allowed,
                following_generation=self.ledger.generation, reported_at=self.now,
            )  # fmt: skip
            self.services[grant.job] = replace(self.services[grant.job], job=report)
        waiting = [(name, one) for name, places in self.nodes.items() for one in places if not one.on]
        self.random.shuffle(waiting)
        for name, place in waiting:
            found = [one for one in self.usable(name, place.over_quota) if self.free(one) >= self.report(name).per_node]
            place.on = self.random.choice(found) if found else ""

    def happen(self) -> None:
        """Lets something happen."""
        random = self.random
        self.now += random.choice((1.0, 30.0, 90.0))
        match random.choice(("machine", "relabel", "submit", "submit", "end", "other", "nothing")):
            case "machine" if len(self.machines) < 4:
                name = f"m{len(self.machines)}"
                self.machines[name] = machine(name, random.choice((1, 3, 4)), random.choice(("", "a", "b")))
            case "relabel" if self.machines:
                name = random.choice(sorted(self.machines))
                taints = frozenset(random.sample([DEDICATED, Taint("spot", "", "NoExecute")], random.choice((0, 0, 1))))
                labels = random.choice(({}, {"pool": "a"}, {"pool": "b"}))
                self.machines[name] = replace(self.machines[name], taints=taints, labels=labels)
            case "submit" if len(self.services) < 5:
                name = f"job-{self.now:g}"
                per_node, least = random.choice((1, 1, 2)), random.choice((1, 1, 2))
                sizes = tuple(per_node * nodes for nodes in range(least, least + 4))
                specs = random.choice(
                    ([], [pool("a")], [pool("b")], [TOLERATES], [pool("a"), pool("b")], [pool("a") | TOLERATES])
                )
                namespace = random.choice(("nlp", "vision", "rest"))
                fields = {"minimum": sizes[0], "maximum": sizes[-1], "sizes": sizes, "per_node": per_node}
                self.services[name] = service(name, namespace, 8, *specs, **fields)
                self.nodes[name] = []
            case "end" if self.services:
                name = random.choice(sorted(self.services))
                del self.services[name], self.nodes[name]
            case "other" if self.others and random.random() < 0.5:
                self.others.pop()
            case "other" if self.machines:
                name = random.choice(sorted(self.machines))
                if self.free(name) > 0:
                    namespace = random.choice(("nlp", "kube-system"))
                    self.others.append(other(name, random.randint(1, self.free(name)), namespace))


def rested(played: Played) -> Decision:
    """Returns the decision of the last of many rounds in which nothing else happens."""
    for _ in range(20):
        played.now += 90.0
        _, decision = played.round()
        played.follow(decision)
    return decision


def placed(jobs: Sequence[tuple[Service, str]], *machines: Machine, projects: Projects = PROJECTS) -> Played:
    """Returns jobs that hold nodes of one GPU, on the machines that are named after each."""
    played = Played(Random(0), {one.name: one for one in machines}, projects=projects)
    for one, places in jobs:
        played.services[one.id] = one
        played.nodes[one.id] = [Place(on, False, number) for number, on in enumerate(places.split(), 1)]
        report = replace(played.report(one.id), held=len(places.split()))
        played.services[one.id] = replace(one, job=report)
    return played
