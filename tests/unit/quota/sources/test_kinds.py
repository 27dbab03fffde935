"""Jobs whose nodes within the guarantee can use other machines than those above it: all nodes find a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from random import Random

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import Decision, decide
from elastic_launcher.quota.rounds.world import Besides, Bound, World
from elastic_launcher.quota.scheduling import Scheduling
from elastic_launcher.quota.sources.kinds import Kinds, bounds_above, bounds_of_kinds
from elastic_launcher.quota.sources.machine import Machine
from elastic_launcher.quota.sources.machines import Cluster, Pod, Service, count
from elastic_launcher.quota.sources.usable import Stock
from tests.support.quota_jobs import job

GPU = "nvidia.com/gpu"
NLP = Project("nlp", guaranteed=4, patterns=({"namespace": "nlp"},))
PROJECTS = Projects(
    (
        NLP,
        Project("vision", guaranteed=2, patterns=({"namespace": "vision"},)),
        Project("rest", patterns=({"namespace": "rest"},)),
    )
)
OWNED, SPOT = (Scheduling((("pool", pool),)) for pool in ("owned", "spot"))
BOTH = OWNED, SPOT


def machine(name: str, gpus: int, pool: str) -> Machine:
    return Machine(name, {GPU: gpus}, labels={"pool": pool})


def service(name: str, namespace: str = "nlp", kinds: tuple[Scheduling, ...] = BOTH, **fields: int) -> Service:
    most = fields.pop("most", 8)
    per_node = fields.get("per_node", 1)
    report = replace(job(name, most=most, **fields), scheduling=kinds)
    sizes = tuple(size for size in report.sizes if size % per_node == 0)
    return Service(namespace, name, name, 0.0, replace(report, minimum=sizes[0], maximum=sizes[-1], sizes=sizes))


def node(name: str, on: str, namespace: str = "nlp", gpus: int = 1, *, above: bool = False) -> Pod:
    return Pod(namespace, {GPU: gpus}, on, name, is_node=True, over_quota=above)


def world_of(*objects: Machine | Pod | Service) -> World:
    found = Cluster(
        [one for one in objects if isinstance(one, Service)],
        [one for one in objects if isinstance(one, Pod)],
        [one for one in objects if isinstance(one, Machine)],
    )
    return count(found, PROJECTS, 0.0, {}).world


def decided(*objects: Machine | Pod | Service) -> Decision:
    return decide(world_of(*objects), PROJECTS, Ledger(), 0.0)


def hints(decision: Decision) -> dict[str, tuple[int, int]]:
    """Returns what is guaranteed to each job, and what it is allowed."""
    return {grant.job: (grant.guaranteed, grant.allowed) for grant in decision.grants}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ((machine("o", 8, "owned"), machine("s", 4, "spot"), service("bert")), {"bert": (4, 8)}),
        # a machine of nodes within the guarantee is lost: those that are missing may be above it
        ((machine("o", 1, "owned"), machine("s", 4, "spot"), service("bert")), {"bert": (1, 5)}),
        ((machine("s", 3, "spot"), service("bert")), {"bert": (0, 3)}),
        ((machine("o", 8, "owned"), service("bert")), {"bert": (4, 4)}),
        ((machine("o", 8, "owned"), service("bert", "rest")), {"bert": (0, 0)}),
        # pods that are not elastic have their part of the guarantee before
        (
            (machine("o", 8, "owned"), machine("s", 2, "spot"), Pod("nlp", {GPU: 3}, "o"), service("bert")),
            {"bert": (1, 3)},
        ),
        # of what is guaranteed, a job with one kind of nodes has the part that the others do not need
        (
            (
                machine("o", 8, "owned"), machine("s", 2, "spot"),
                service("bert", most=4), service("early", kinds=(OWNED,), most=4, priority=1),
            ),
            {"bert": (2, 4), "early": (2, 4)},
        ),
        (
            (
                machine("o", 4, "owned"), machine("s", 4, "spot"),
                service("bert", most=4), service("early", kinds=(OWNED,), most=4, priority=1),
            ),
            {"bert": (0, 4), "early": (4, 4)},
        ),
        # whole nodes
        ((machine("o", 3, "owned"), machine("s", 5, "spot"), service("bert", per_node=2)), {"bert": (2, 6)}),
    ],
)  # fmt: skip
def test_new_nodes_are_of_the_kind_that_has_machines(
    objects: tuple[Machine | Pod | Service, ...], expected: dict[str, tuple[int, int]]
) -> None:
    assert hints(decided(*objects)) == expected


def test_nodes_within_the_guarantee_stay_within_it() -> None:
    late = service("late", held=2)
    nodes = [node("late", "o"), node("late", "o")]
    found = decided(machine("o", 2, "owned"), machine("s", 8, "spot"), service("bert", most=4), late, *nodes)
    assert hints(found) == {"bert": (0, 4), "late": (2, 6)}


def test_a_node_above_the_guarantee_takes_no_place_within_it_from_another_project() -> None:
    running = service("bert", most=4, held=4)
    nodes = [node("bert", "s", above=True) for _ in range(4)]
    found = decided(machine("o", 2, "owned"), machine("s", 4, "spot"), running, *nodes, service("gpt", "vision"))
    assert hints(found) == {"bert": (0, 4), "gpt": (2, 2)}


def test_the_reason_says_why_nodes_are_above_the_guarantee() -> None:
    found = decided(machine("o", 1, "owned"), machine("s", 4, "spot"), service("bert"))
    expected = (
        "0 → 5 GPUs: 4 of them are guaranteed to project nlp, 1 are free; 3 GPUs of what is guaranteed must be above "
        "the guarantee: no free machine matches its node selector (pool=owned) of nodes within it"
    )
    assert [grant.reason for grant in found.grants] == [expected]
    account = found.ledger.accounts["bert"]
    assert account.reason + account.note == expected, "quota explain reads it there"


def test_the_reason_names_the_machines_of_both_kinds_where_one_is_lost() -> None:
    machines = machine("o", 4, "owned"), machine("s", 1, "spot")
    nodes = [node("bert", "o") for _ in range(4)] + [node("bert", "s", above=True)]
    before = decide(world_of(*machines, service("bert", held=5), *nodes), PROJECTS, Ledger(), 0.0)
    assert hints(before) == {"bert": (4, 5)}
    after = decide(world_of(machines[1], service("bert", held=5), nodes[-1]), PROJECTS, before.ledger, 0.0)
    assert hints(after) == {"bert": (0, 1)}
    assert [change.reason for change in after.changes] == ["5 → 1 GPU: the capacity is 1 GPU now"]


def bounds(
    gpus: Mapping[str, int],
    jobs: Mapping[str, Kinds],
    others: Mapping[str, str] = {},  # noqa: B006 - nobody changes it
) -> list[tuple[str, str, int, dict[str, int]]]:
    """Returns the bounds on what jobs may have in all: the jobs, those of them that have GPUs besides, and these."""
    reports = [job(name) for name in (*jobs, *others)]
    usable = {name: one.within | one.above for name, one in jobs.items()}
    usable |= {name: frozenset(machines) for name, machines in others.items()}
    held = {name: {**one.held_within, **one.held_above} for name, one in jobs.items()}
    found = bounds_of_kinds(Stock(gpus, {}, held), reports, usable, frozenset(gpus), jobs)
    return sorted(
        (
            "".join(sorted(one.jobs)),
            "".join(sorted(one.above)),
            one.gpus,
            {of.project: of.most(4) - 4 for of in one.beside},
        )
        for one in bounds_above(found, reports, jobs)
    )


def kinds(within: str, above: str, project: str = "nlp", guaranteed: int = 2, **held: Mapping[str, int]) -> Kinds:
    held_within, held_above = held.get("within_it", {}), held.get("above_it", {})
    return Kinds(frozenset(within), frozenset(above), held_within, held_above, project, guaranteed)


@pytest.mark.parametrize(
    ("jobs", "others", "expected"),
    [
        ({"x": kinds("a", "b")}, {}, [("x", "x", 8, {"nlp": 2})]),
        ({"x": kinds("a", "")}, {}, [("x", "x", 0, {"nlp": 2})]),
        ({"x": kinds("a", "b"), "y": kinds("a", "b")}, {}, [("xy", "xy", 8, {"nlp": 2})]),
        (
            {"x": kinds("a", "b"), "y": kinds("a", "b", "vision", 1)},
            {},
            [("xy", "xy", 8, {"nlp": 2, "vision": 1})],
        ),
        # those that can be nowhere else have their machines beside them
        ({"x": kinds("a", "b")}, {"y": "b"}, [("xy", "x", 8, {"nlp": 2})]),
        # what runs stays, though the guarantee has fallen
        ({"x": kinds("a", "b", within_it={"a": 3}, above_it={"b": 1})}, {}, [("x", "x", 8, {"nlp": 3})]),
        # jobs of a project share its guarantee, though their machines are apart
        (
            {"x": kinds("a", "b"), "y": kinds("a", "c")},
            {},
            [("x", "x", 8, {"nlp": 2}), ("xy", "xy", 9, {"nlp": 2}), ("y", "y", 1, {"nlp": 2})],
        ),
    ],
)
def test_jobs_have_what_the_machines_above_the_guarantee_leave_and_what_is_guaranteed(
    jobs: dict[str, Kinds], others: dict[str, str], expected: list[tuple[str, str, int, dict[str, int]]]
) -> None:
    assert bounds({"a": 4, "b": 8, "c": 1}, jobs, others) == expected


KINDS = ("owned", "old"), ("spot", "bought")
POOLS = KINDS[0] + KINDS[1]


def random_objects(random: Random) -> list[Machine | Pod | Service]:
    """Returns a cluster with jobs of one or two kinds of nodes, of which some run."""
    machines = [machine(f"m{number}", random.randrange(5), random.choice(POOLS)) for number in range(4)]
    left = {one.name: one.resources[GPU] for one in machines}
    pairs = {project.name: tuple(map(random.choice, KINDS)) for project in PROJECTS.projects}
    found: list[Machine | Pod | Service] = [*machines]
    for number in range(random.randint(1, 5)):
        name, namespace = f"j{number}", random.choice(("nlp", "vision", "rest"))
        pools = random.choice([(random.choice(POOLS),), pairs[namespace], pairs[namespace]])
        asked = tuple(Scheduling((("pool", pool),)) for pool in pools)
        held = 0
        for one, above in product(machines, (False, True)):
            if one.labels["pool"] == dict(asked[-1 if above else 0].selector)["pool"] and random.random() < 0.4:
                gpus = random.randint(0, left[one.name])
                left[one.name] -= gpus
                held += gpus
                found += [node(name, one.name, namespace, above=above) for _ in range(gpus)]
        least = random.choice((1, 1, 2))
        found.append(service(name, namespace, asked, held=held, least=least, most=max(held, least + 4)))
    for one in machines:
        if left[one.name] and random.random() < 0.3:
            found.append(Pod(random.choice(("nlp", "other")), {GPU: random.randint(1, left[one.name])}, one.name))
    return found


def new_nodes(report: Job, placed: tuple[int, int], guaranteed: int, allowed: int) -> tuple[int, int]:
    """Returns how many nodes of each kind a job is to start, by the rules of its launcher."""
    new = max(0, allowed - sum(placed))
    within = min(new, max(0, guaranteed - placed[0])) if len(report.scheduling) > 1 else new
    return within, new - within


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_all_nodes_that_are_hinted_find_a_place_among_those_that_run(seed: int) -> None:
    objects = random_objects(Random(seed))
    decision = decided(*objects)
    free = {one.name: one.resources[GPU] for one in objects if isinstance(one, Machine)}
    pools = {one.name: one.labels["pool"] for one in objects if isinstance(one, Machine)}
    placed: dict[str, list[int]] = {}
    for pod in objects:
        if isinstance(pod, Pod):
            free[pod.machine] -= pod.resources[GPU]
            placed.setdefault(pod.job, [0, 0])[pod.over_quota] += pod.resources[GPU]
    graph, asked = networkx.DiGraph(), 0
    graph.add_nodes_from(("from", "to"))
    for name, gpus in free.items():
        graph.add_edge(("machine", name), "to", capacity=gpus)
    reports = {one.id: one.job for one in objects if isinstance(one, Service) and one.job is not None}
    for name, (guaranteed, allowed) in hints(decision).items():
        within, above = placed.get(name, (0, 0))
        new = new_nodes(reports[name], (within, above), guaranteed, allowed)
        for kind, count_of_kind in enumerate(new):
            pool = dict(reports[name].scheduling[-1 if kind else 0].selector)["pool"]
            graph.add_edge("from", (name, kind), capacity=count_of_kind)
            graph.add_edges_from(((name, kind), ("machine", one)) for one in free if pools[one] == pool)
            asked += count_of_kind
    assert networkx.maximum_flow_value(graph, "from", "to") == asked
    if not decision.changes:
        again = decide(world_of(*objects), PROJECTS, decision.ledger, 0.0)
        assert (again.changes, again.grants) == ((), decision.grants)
    for project in PROJECTS.projects:
        pods = [one for one in objects if isinstance(one, Pod) and not one.job and one.namespace == project.name]
        rigid = sum(pod.resources[GPU] for pod in pods)
        given = sum(grant.guaranteed for grant in decision.grants if grant.project == project.name)
        assert given <= max(0, project.guaranteed - rigid)


def test_a_job_that_could_use_more_nodes_of_a_kind_gets_them() -> None:
    """What the bounds leave out is not more than what has no place: of one job alone, nothing."""
    for owned, spot, guaranteed, rigid in product(range(4), range(4), range(4), range(2)):
        projects = Projects((replace(NLP, guaranteed=guaranteed),))
        pods = [Pod("nlp", {GPU: rigid}, "o")] if rigid and owned >= rigid else []
        found = Cluster([service("bert")], pods, [machine("o", owned, "owned"), machine("s", spot, "spot")])
        decision = decide(count(found, projects, 0.0, {}).world, projects, Ledger(), 0.0)
        taken = sum(pod.resources[GPU] for pod in pods)
        within = min(owned - taken, max(0, guaranteed - taken))
        assert hints(decision) == {"bert": (within, within + spot)}


def test_a_bound_counts_of_each_job_what_has_no_other_machines() -> None:
    beside = (Besides("nlp", 2),)
    bound = Bound("spot", frozenset({"x", "y"}), 4, 1, above=frozenset({"x"}), beside=beside)
    has = {"x": ("nlp", 5), "y": ("nlp", 1), "z": ("nlp", 9)}
    assert [bound.of(name).taken_by(has) for name in "xy"] == [4, 4]
    assert [bound.of(name).most("nlp") for name in "xy"] == [6, 4]


@pytest.mark.parametrize(
    "besides", [Besides("nlp", 0), Besides("nlp", 3), Besides("nlp", 2, 3, 4), Besides("nlp", 5, 1, 2)]
)
def test_what_jobs_may_have_besides_is_the_most_that_takes_no_more(besides: Besides) -> None:
    for taken in range(9):
        most = besides.most(taken)
        assert besides.taken(most) <= taken < besides.taken(most + 1)


def pools(*names: str) -> tuple[Scheduling, ...]:
    return tuple(Scheduling((("pool", name),)) for name in names)


@pytest.mark.parametrize("jobs", [12, 48])
def test_kinds_of_many_jobs_on_pools_that_are_combined_freely_are_divided_once(jobs: int) -> None:
    """Each chain of jobs and machines on its own would take a time that grows with the orders of the jobs."""
    pairs = list(product(("o1", "o2"), ("s1", "s2")))
    machines = [machine(f"m-{pool}", 8, pool) for pool in ("o1", "o2", "s1", "s2")]
    found = decided(
        *machines,
        *(
            service(f"job{number}", ("nlp", "vision")[number % 2], pools(*pairs[number // 2 % 4]), most=4)
            for number in range(jobs)
        ),
    )
    assert sum(grant.allowed for grant in found.grants) == 22  # the spot machines, and what is guaranteed
    assert sum(grant.guaranteed for grant in found.grants) == 6


def test_machines_that_two_projects_use_for_different_kinds_are_divided_once_when_some_are_lost() -> None:
    """Each of 16 jobs has a node of each kind, on pools that the projects use the other way round."""
    own = {"nlp": ("a", "b"), "vision": ("b", "a")}
    jobs = [(f"{namespace}{number}", namespace) for number in range(8) for namespace in own]
    services = [service(name, namespace, pools(*own[namespace]), most=2, held=2) for name, namespace in jobs]
    left = {pool: [*[f"{pool}1"] * 15, f"{pool}2"] for pool in "ab"}
    nodes = [
        node(name, left[pool].pop(), namespace, above=above)
        for name, namespace in jobs
        for pool, above in zip(own[namespace], (False, True), strict=True)
    ]
    machines = [machine("a1", 15, "a"), machine("b1", 15, "b")]
    before = decided(*machines, machine("a2", 1, "a"), machine("b2", 1, "b"), *services, *nodes)
    assert sum(grant.allowed for grant in before.grants) == 32
    found = decide(world_of(*machines, *services, *nodes), PROJECTS, before.ledger, 1.0)
    assert sum(grant.allowed for grant in found.grants) == 30
    assert sum(grant.guaranteed for grant in found.grants) == 6


def test_what_a_job_keeps_within_the_guarantee_takes_no_machines_from_nodes_above_it() -> None:
    bound = Bound("spot", frozenset(("bert", "gpt")), 4, 1, above=frozenset(("bert", "gpt")), now=4)
    assert bound.less({"bert": 4}, {"bert": (4, 0)}) == bound
    assert bound.less({"bert": 4}, {"bert": (3, 1)}) == replace(bound, gpus=3, now=3, taken=1)
    assert bound.less({"bert": 4}) == replace(bound, gpus=0, now=0, taken=4)


def test_who_holds_the_machines_of_nodes_above_the_guarantee_is_named_as_a_job_with_its_project() -> None:
    found = decided(
        machine("a1", 4, "a"), machine("b1", 1, "b"),
        service("bert", "nlp", pools("a", "b"), most=4, held=4), *(node("bert", "a1") for _ in range(4)),
        service("gpt", "rest", pools("b", "a"), per_node=4, most=4),
    )  # fmt: skip
    (gpt,) = (grant for grant in found.grants if grant.job == "gpt")
    assert not gpt.allowed and "bert (project nlp) holds 4 GPUs there" in gpt.reason, gpt.reason
    assert "holds 0 GPUs" not in gpt.reason and "within the guarantee" not in gpt.reason
