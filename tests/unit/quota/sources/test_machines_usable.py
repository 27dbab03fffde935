"""Rounds of jobs that can't use all machines: none is allowed more than its machines can hold, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.projects import Autoscale, Capacity, Project, Projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import Decision, decide
from elastic_launcher.quota.scheduling import ANYWHERE, Flavor, scheduling_of
from elastic_launcher.quota.sources.machine import Machine
from elastic_launcher.quota.sources.machines import Cluster, Pod, Service, count
from tests.support.quota_machines import (
    DEDICATED,
    PROJECTS,
    TOLERATES,
    Played,
    machine,
    node,
    other,
    placed,
    pool,
    rested,
    service,
    world_of,
)


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


def check(played: Played, decision: Decision) -> None:
    """Checks that all jobs, and any of them, are allowed no more than their machines have for them.

    Nodes that are to leave make room for those that have been allowed it before, which `check_growth` sees.
    """
    grants = allowed(decision)
    leaving = {(seat.job, seat.node) for seat in decision.targets.leaving}
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
                for place in played.nodes[name]
                if place.on and place.on not in union
            )
            whole = played.report(names[0]).per_node if number == 1 else 1
            left = 0
            for on in union:
                own = sum(played.held(name, on) for name in inside)
                gone = sum(
                    played.report(name).per_node
                    for name, places in played.nodes.items()
                    for place in places
                    if place.on == on and (name, place.number) in leaving and name not in inside
                )
                left += max(0, played.free(on) + own + gone) // whole * whole
            assert sum(grants[name] for name in names) <= left + elsewhere, names


def check_growth(played: Played, decision: Decision, before: Ledger) -> None:
    """Checks that there is room now for the whole nodes that a job grows by, however small those of others are."""
    for name, gpus in allowed(decision).items():
        per_node = played.report(name).per_node
        if name in before.accounts and gpus > before.accounts[name].committed:
            placed = sum(bool(place.on) for place in played.nodes[name])
            room = sum(played.free(on) // per_node for on in played.usable(name))
            assert gpus // per_node <= placed + room, name


@pytest.mark.thorough
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 40))
@example(8, 16)  # in these worlds two jobs took each other's GPUs in turn, wherever the scheduler put their nodes
@example(59, 39)
@example(343, 39)
@example(374, 39)
@example(415, 39)
@example(1336, 33)
@example(4625, 34)
@example(88, 30)  # in these two, a second round changed what the first one had given
@example(203, 27)
@example(654828, 31)  # and here too, for a job that had got its minimum goes first then
def test_no_job_is_allowed_more_than_its_machines_can_hold_whatever_happens(seed: int, events: int) -> None:
    played = Played(Random(seed))
    for _ in range(events):
        played.happen()
        before_it = played.ledger
        before = sum(account.committed for account in before_it.accounts.values())
        world, decision = played.round()
        check(played, decision)
        check_growth(played, decision, before_it)
        again = decide(world, played.projects, played.ledger, played.now + 0.5)
        assert again.changes == (), "with nothing changing, a second round changes nothing"
        promised = sum(account.committed for account in played.ledger.accounts.values())
        assert promised + sum(world.rigid.values()) <= max(world.capacity, before + sum(world.rigid.values()))
        for grant in decision.grants:
            assert grant.allowed in (0, *played.report(grant.job).sizes)
        played.follow(decision)
    assert rested(played).changes == ()
    for name, places in played.nodes.items():
        waits = any(not place.on for place in places)
        assert played.report(name).per_node > 1 or not waits, f"{name} waits for GPUs that it was allowed"


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


@pytest.mark.parametrize("places", [("m0 m0 m1 m1", "m0 m0 m1 m1"), ("m0 m0 m0 m0", "m1 m1 m1 m1")])
def test_jobs_share_fairly_what_one_can_not_use_whose_machines_they_hold(places: tuple[str, str]) -> None:
    projects = Projects(tuple(Project(name, patterns=({"namespace": name},)) for name in ("nlp", "vision", "rest")))
    narrow = service("resnet", "rest", 8, pool("a"))
    jobs = (service("bert", "nlp"), places[0]), (service("gpt", "vision"), places[1]), (narrow, "")
    played = placed(jobs, machine("m0", 4, "a"), machine("m1", 4), projects=projects)
    for _ in range(3):
        _, decision = played.round()
        assert allowed(decision) == {"bert": 4, "gpt": 4, "resnet": 0}
        assert decision.changes == ()
        played.follow(decision)
        played.now += 90.0
