"""Rounds of jobs that can't use all machines: none is allowed more than its machines can hold, whatever happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Autoscale, Capacity, Project, Projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import Decision, decide
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.scheduling import ANYWHERE, Flavor, Scheduling, Taint, scheduling_of
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


def decided(*objects: Machine | Pod | Service) -> Decision:
    return decide(world_of(*objects), PROJECTS, Ledger(), 0.0)


def allowed(decision: Decision) -> dict[str, int]:
    return {grant.job: grant.allowed for grant in decision.grants}


def test_gpus_that_a_job_can_not_use_go_to_one_that_can() -> None:
    machines = machine("m0", 4, "a100"), machine("m1", 4, "t4")
    found = decided(*machines, service("bert", "nlp", 8, pool("t4")), service("resnet", "rest", 8))
    assert allowed(found) == {"bert": 4, "resnet": 4}
    found = decided(*machines, service("bert", "nlp", 8, pool("t4")), service("resnet", "rest", 8, pool("a100")))
    assert allowed(found) == {"bert": 4, "resnet": 4}


def test_a_tainted_machine_is_for_jobs_that_tolerate_the_taint() -> None:
    machines = machine("m0", 4), machine("m1", 8, "", DEDICATED)
    assert world_of(*machines, service("bert")).capacity == 4
    found = decided(*machines, service("bert", "rest", 16), service("gpt", "nlp", 16, TOLERATES))
    assert found.capacity == 12
    assert allowed(found) == {"bert": 4, "gpt": 8}


def test_an_older_job_that_does_not_say_what_it_tolerates_gets_gpus_of_tainted_machines() -> None:
    older = service("bert")
    assert older.job is not None
    older = replace(older, job=replace(older.job, scheduling=(ANYWHERE,)))
    found = decided(machine("m0", 4, "", DEDICATED), older, service("gpt", "vision"))
    assert (found.capacity, allowed(found)) == (4, {"bert": 4, "gpt": 0})


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ((machine("m0"),), "waits: it needs 1 GPU, and no machine matches its node selector (pool=a100)"),
        (
            (machine("m0"), machine("m1", 4, "a100"), other("m1", 4)),
            "waits: it needs 1 GPU, and no free machine matches its node selector (pool=a100): "
            "others hold 4 GPUs there",
        ),
        (
            (machine("m0"), machine("m1", 4, "a100"), service("gpt", "vision"), node("gpt", "m1", 4, "vision")),
            "waits: it needs 1 GPU, and no free machine matches its node selector (pool=a100): "
            "gpt (project vision) holds 4 GPUs there",
        ),
        (
            (
                machine("m0"),
                machine("m1", 8, "a100"),
                other("m1", 1),
                node("x", "m1", 1, "away"),
                *(service(f"gpt-{number}", "vision") for number in range(4)),
                node("gpt-0", "m1", 2, "vision"),
                node("gpt-1", "m1", 1, "vision"),
                node("gpt-2", "m1", 1, "vision"),
                node("gpt-3", "m1", 2, "vision"),
            ),
            "waits: it needs 1 GPU, and no free machine matches its node selector (pool=a100): "
            "gpt-0 (project vision) holds 2 GPUs there, gpt-3 (project vision) 2, gpt-1 (project vision) 1, others 3",
        ),
    ],
)
def test_the_reason_names_what_no_machine_matches(objects: tuple[Machine | Pod | Service, ...], reason: str) -> None:
    found = decided(*objects, service("bert", "nlp", 8, pool("a100")))
    assert {grant.job: grant.reason for grant in found.grants}["bert"] == reason
    assert found.ledger.accounts["bert"].reason == reason, "quota explain reads it there"


def test_the_reason_of_a_shrink_names_the_machines() -> None:
    objects = machine("m0"), service("bert", "nlp", 8, pool("a100"), held=4), *[node("bert", "m1") for _ in range(4)]
    before = decided(*objects, machine("m1", 4, "a100"))
    assert allowed(before) == {"bert": 4}
    after = decide(world_of(*objects, machine("m1", 3, "a100")), PROJECTS, before.ledger, 0.0)
    assert [(change.cause, change.reason) for change in after.changes] == [
        ("capacity", "4 → 3 GPUs: the machines that match its node selector (pool=a100) leave 3")
    ]


def test_the_reason_says_that_no_machine_has_room_for_a_whole_node() -> None:
    report = service("bert", "nlp", 8, per_node=4, minimum=4, sizes=(4, 8), maximum=8)
    found = decided(machine("m0", 3), machine("m1", 8), report, other("m1", 5))
    assert [grant.reason for grant in found.grants] == [
        "waits: it needs 4 GPUs, and no machine that matches its tolerations has 4 free GPUs, which a node needs: "
        "others hold 5 GPUs there"
    ]


def test_a_whole_node_waits_until_the_smaller_nodes_of_others_have_left_a_machine() -> None:
    whole = service("gpt", "nlp", 16, per_node=8, minimum=8, sizes=(8, 16), maximum=16)
    small = service("probe", "rest", 2, held=2)
    machines, nodes = (machine("m0"), machine("m1")), (node("probe", "m0", 1, "rest"), node("probe", "m1", 1, "rest"))
    found = decided(*machines, whole, small, *nodes)
    assert allowed(found) == {"gpt": 0, "probe": 2}
    assert [grant.reason for grant in found.grants if grant.job == "gpt"] == [
        "waits: it needs 8 GPUs, and no machine that matches its tolerations has 8 free GPUs, which a node needs: "
        "others hold 2 GPUs there"
    ]
    assert decide(world_of(*machines, whole, small, *nodes), PROJECTS, found.ledger, 0.0).changes == ()
    after = decide(world_of(*machines, whole, small, nodes[0]), PROJECTS, found.ledger, 0.0)
    assert allowed(after)["gpt"] == 8


@pytest.mark.parametrize(("namespace", "gpus"), [("nlp", 8), ("rest", 4)])
def test_nodes_above_the_guarantee_are_no_more_than_their_machines_hold(namespace: str, gpus: int) -> None:
    machines = machine("m0", 8, "on-demand"), machine("m1", 4, "spot"), machine("m2")
    found = decided(*machines, service("bert", namespace, 16, pool("on-demand"), pool("spot")))
    assert allowed(found) == {"bert": gpus}, "what the project is guaranteed, and what spot machines have"


@pytest.mark.parametrize(
    ("gpus", "least", "reason"),
    [
        (0, 1, "no machine matches its node selector (pool=spot) of nodes above the guarantee"),
        (
            2,
            3,
            "the machines that match its node selector (pool=spot) of nodes above the guarantee leave 2, "
            "with what is guaranteed",
        ),
    ],
)
def test_the_reason_names_the_machines_of_nodes_above_the_guarantee(gpus: int, least: int, reason: str) -> None:
    report = service("bert", "rest", 8, pool("on-demand"), pool("spot"), minimum=least, sizes=tuple(range(least, 9)))
    found = decided(machine("m0", 8, "on-demand"), machine("m1", gpus, "spot"), report)
    assert [grant.reason for grant in found.grants] == [f"waits: it needs {least} GPU{'s' * (least > 1)}, and {reason}"]


def test_what_is_not_clear_is_said() -> None:
    odd = service("bert", "nlp", 8, {"affinity": 7})
    found = count(Cluster([odd], [], [machine("m0")]), PROJECTS, 0.0, {})
    assert found.remarks == (
        "nlp/bert: which machines its pods can use is not clear (Expected `object | null`, got `int` - at `affinity`): "
        "what is not clear excludes none",
    )
    assert found.world.bounds == ()


def test_jobs_that_can_use_all_machines_are_not_bound() -> None:
    objects = machine("m0"), machine("m1", 4, "a100"), machine("m2", 4, "", DEDICATED), service("bert"), service("gpt")
    assert world_of(*objects).bounds == ()
    assert world_of(*objects, node("bert", "m2", 2)).bounds == ()


KUEUE = replace(PROJECTS, capacity=Capacity(kueue=True))
TOLERANT = Flavor("team", scheduling_of(TOLERATES))
OF_A = Flavor("a", scheduling_of(pool("a")))


@pytest.mark.parametrize(
    ("flavors", "specs", "gpus"),
    [
        (None, [], 15),  # not known: all machines
        ([], [], 0),
        ([Flavor("any")], [], 3),
        ([TOLERANT], [], 15),
        ([OF_A], [], 1),
        ([OF_A, TOLERANT], [], 15),
        ([Flavor("any")], [TOLERATES], 15),  # its template tolerates the taint itself
        ([OF_A], [TOLERATES], 5),
        ([OF_A], [pool("b")], 1),  # the flavor's label contradicts the job's
        ([Flavor("any", taints=(DEDICATED,))], [], 0),
        ([Flavor("any", taints=(DEDICATED,))], [TOLERATES], 15),
        ([replace(TOLERANT, taints=(DEDICATED,))], [], 15),
        ([replace(OF_A, taints=(DEDICATED,))], [TOLERATES], 5),
    ],
)
def test_with_kueue_the_machines_count_that_pods_of_a_flavor_can_use(
    flavors: list[Flavor] | None, specs: list[dict[str, Any]], gpus: int
) -> None:
    machines = [
        machine("m0", 1, "a"), machine("m1", 2), machine("m2", 4, "a", DEDICATED), machine("m3", 8, "", DEDICATED),
    ]  # fmt: skip
    found = count(Cluster([service("bert", "nlp", 8, *specs)], [], machines, flavors=flavors), KUEUE, 0.0, {}).world
    assert (found.capacity, found.bounds, found.kinds) == (gpus, (), ())


@pytest.mark.parametrize(
    ("capacity", "gpus"),
    [
        (Capacity(gpus=16), []),
        (Capacity(kueue=True), []),
        (Capacity(), [4]),
        (Capacity(autoscale=Autoscale(max=20)), [12]),
    ],
)
def test_machines_bound_jobs_where_they_are_what_counts(capacity: Capacity, gpus: list[int]) -> None:
    objects = machine("m0"), machine("m1", 4, "a100"), service("bert", "nlp", 8, pool("a100"))
    found = world_of(*objects, projects=replace(PROJECTS, capacity=capacity))
    assert [bound.gpus for bound in found.bounds] == gpus


def test_gpus_of_a_machine_that_no_job_can_come_to_are_for_the_job_that_holds_them() -> None:
    jobs = service("bert", "rest", 8, pool("a"), held=2), service("gpt", "vision"), service("resnet", "vision")
    world = world_of(machine("m0", 4), machine("m1", 4, "a", DEDICATED), *jobs, node("bert", "m1", 2, "rest"))
    assert world.capacity == 6
    assert {bound.jobs: bound.gpus for bound in world.bounds} == {
        frozenset({"bert"}): 2,
        frozenset({"gpt", "resnet"}): 4,
    }
    assert allowed(decide(world, PROJECTS, Ledger(), 0.0)) == {"bert": 2, "gpt": 2, "resnet": 2}


@dataclass
class Played:
    """Jobs that follow their hints, on machines that a scheduler gives them.

    Attributes:
        nodes: Where each node of a job is, by the job, and whether it is above the guarantee; "" while it waits.
    """

    random: Random
    machines: dict[str, Machine] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    nodes: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)
    projects: Projects = PROJECTS
    others: list[Pod] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    now: float = 1000.0

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
        return sum(where == on for where, _ in self.nodes[name]) * self.report(name).per_node

    def usable(self, name: str, over_quota: bool | None = None) -> list[str]:
        """Returns the machines that a job's pods can come to, or its nodes of one kind."""
        asked = self.report(name).scheduling
        asked = asked if over_quota is None else (asked[-1 if over_quota else 0],)
        return [
            one for one, there in sorted(self.machines.items()) if any(there.takes_pods(GPU, each) for each in asked)
        ]

    def world(self) -> World:
        pods = [
            node(name, where, self.report(name).per_node, self.services[name].namespace, over_quota)
            for name, places in self.nodes.items()
            for where, over_quota in places
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
            places.sort(key=lambda one: (one[0] == "", one[1], self.random.random()))  # the last ones leave first
            places[:] = [one for one in places[:wanted] if one[0]]
            within = sum(not over_quota for _, over_quota in places)
            if len(report.scheduling) > 1:
                within = max(within, grant.guaranteed // report.per_node)
            while len(places) < wanted:
                places.append(("", sum(not over_quota for _, over_quota in places) >= within))
            report = replace(
                report, held=len(places) * report.per_node, following=grant.allowed,
                following_generation=self.ledger.generation, reported_at=self.now,
            )  # fmt: skip
            self.services[grant.job] = replace(self.services[grant.job], job=report)
        waiting = [
            (name, number) for name, places in self.nodes.items() for number, (on, _) in enumerate(places) if not on
        ]
        self.random.shuffle(waiting)
        for name, number in waiting:
            over_quota = self.nodes[name][number][1]
            found = [one for one in self.usable(name, over_quota) if self.free(one) >= self.report(name).per_node]
            self.nodes[name][number] = (self.random.choice(found) if found else "", over_quota)

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


def check(played: Played, decision: Decision) -> None:
    """Checks that all jobs, and any of them, are allowed no more than their machines have for them."""
    grants = allowed(decision)
    usable = {name: set(played.usable(name)) for name in grants}
    some = [name for name in sorted(grants) if usable[name]]
    for name in grants.keys() - {*some}:
        assert grants[name] <= len(played.nodes[name]) * played.report(name).per_node, "it has what it holds"
    for number in range(1, len(some) + 1):
        for names in combinations(some, number):
            union = set().union(*(usable[name] for name in names))
            inside = [name for name in some if usable[name] <= union]
            # what jobs hold on machines that they could not use any more counts until it is gone
            elsewhere = sum(
                played.report(name).per_node
                for name in inside
                for on, _ in played.nodes[name]
                if on and on not in union
            )
            whole = played.report(names[0]).per_node if number == 1 else 1
            left = 0
            for on in union:
                own = sum(played.held(name, on) for name in inside)
                left += max(0, played.free(on) + own) // whole * whole
            assert sum(grants[name] for name in names) <= left + elsewhere, names


def check_growth(played: Played, decision: Decision, before: Ledger) -> None:
    """Checks that there is room now for the whole nodes that a job grows by, however small those of others are."""
    for name, gpus in allowed(decision).items():
        per_node = played.report(name).per_node
        if name in before.accounts and gpus > before.accounts[name].committed:
            placed = sum(bool(on) for on, _ in played.nodes[name])
            room = sum(played.free(on) // per_node for on in played.usable(name))
            assert gpus // per_node <= placed + room, name


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_no_job_is_allowed_more_than_its_machines_can_hold_whatever_happens(seed: int, events: int) -> None:
    played = Played(Random(seed))
    for _ in range(events):
        played.happen()
        before_it = played.ledger
        before = sum(account.committed for account in before_it.accounts.values())
        world, decision = played.round()
        check(played, decision)
        check_growth(played, decision, before_it)
        promised = sum(account.committed for account in played.ledger.accounts.values())
        assert promised + sum(world.rigid.values()) <= max(world.capacity, before + sum(world.rigid.values()))
        for grant in decision.grants:
            assert grant.allowed in (0, *played.report(grant.job).sizes)
        played.follow(decision)
    assert rested(played).changes == ()
    for name, places in played.nodes.items():
        waits = any(not on for on, _ in places)
        assert played.report(name).per_node > 1 or not waits, f"{name} waits for GPUs that it was allowed"


def placed(jobs: Sequence[tuple[Service, str]], *machines: Machine, projects: Projects = PROJECTS) -> Played:
    """Returns jobs that hold nodes of one GPU, on the machines that are named after each."""
    played = Played(Random(0), {one.name: one for one in machines}, projects=projects)
    for one, places in jobs:
        played.services[one.id], played.nodes[one.id] = one, [(on, False) for on in places.split()]
        report = replace(played.report(one.id), held=len(places.split()))
        played.services[one.id] = replace(one, job=report)
    return played


def test_what_a_job_holds_that_can_use_all_machines_changes_no_fair_share() -> None:
    """Else gpt would get what nobody else can use, and be paused for rest asks for less then, and get it again."""
    sizes = {"minimum": 2, "maximum": 5, "sizes": (2, 3, 4, 5)}
    played = placed(
        [
            (service("resnet", "vision", submitted_at=1.0, **sizes), "m1 m0 m0 m2"),
            (service("gpt", "nlp", submitted_at=2.0, **sizes), ""),
            (service("bert", "rest", 8, pool("a"), submitted_at=3.0, **sizes), ""),
        ],
        machine("m0", 4, "a"), machine("m1", 1, "a"), machine("m2", 1, "b"), machine("m3", 4, "b"),
    )  # fmt: skip
    played.others = [other("m3", 4, "nlp")]
    decision = rested(played)
    assert allowed(decision) == {"resnet": 4, "gpt": 2, "bert": 0}
    assert decision.changes == ()


@pytest.mark.parametrize("guaranteed", [0, 4])
@pytest.mark.parametrize("places", [("m0 m0 m1 m1", "m0 m0 m1 m1"), ("m0 m0 m0 m0", "m1 m1 m1 m1")])
def test_jobs_share_fairly_what_one_can_not_use_whose_machines_they_hold(
    guaranteed: int, places: tuple[str, str]
) -> None:
    owners = [Project(name, patterns=({"namespace": name},)) for name in ("nlp", "vision")]
    projects = Projects((*owners, Project("rest", guaranteed, patterns=({"namespace": "rest"},))))
    narrow = service("resnet", "rest", 8, pool("a"))
    jobs = (service("bert", "nlp"), places[0]), (service("gpt", "vision"), places[1]), (narrow, "")
    played = placed(jobs, machine("m0", 4, "a"), machine("m1", 4), projects=projects)
    for _ in range(3):
        _, decision = played.round()
        assert allowed(decision) == {"bert": 4, "gpt": 4, "resnet": 0}
        assert decision.changes == ()
        played.follow(decision)
        played.now += 90.0
