"""Capacity follows what jobs make of it: more where GPUs are worth it, one machine less where they are not."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.projects import Autoscale, Capacity, Project, Projects
from elastic_launcher.quota.rounds.autoscale import ARRIVAL_SECONDS, PAUSE_SECONDS, SpeedCurve, plan_capacity
from elastic_launcher.quota.rounds.ledger import Account, Ledger, Plan
from elastic_launcher.quota.rounds.round import decide
from elastic_launcher.quota.rounds.world import World
from tests.support.quota_autoscaler import MACHINE, AutoscaledCluster, autoscaled
from tests.support.quota_jobs import job
from tests.support.quota_world import random_event

NOW = 1000.0
RULE = Autoscale(64, 0.35, 0.65)
PROJECTS = Projects((Project("nlp", guaranteed=8), Project("vision", guaranteed=4, limit=24), Project("guest")))


def curve(*steps: tuple[int, float], least: int = 0) -> SpeedCurve:
    return SpeedCurve(steps, least)


def plan(
    there: int, found: SpeedCurve, before: Plan | None = None, now: float = NOW, machines: tuple[int, ...] = (4, 8)
) -> Plan:
    return plan_capacity(World(there, (), machines=machines), 100, found, RULE, before, now)


@pytest.mark.parametrize(
    ("there", "found", "gpus"),
    [
        (8, curve((100, 100.0)), 64),  # each GPU counts in full: as many as there may be
        (8, curve((20, 20.0)), 20),  # no job can use more
        (8, curve((8, 8.0), (92, 0.0)), 12),  # 8 / 12 is at the top of the band, 8 / 13 is within it
        (100, curve((100, 100.0)), 100),  # more are there than hints may add up to
        (8, curve((8, 4.0)), 8),  # within the band
        (8, curve((8, 2.4)), 4),  # below it: the smaller machine
        (8, curve((8, 2.4), least=6), 8),  # whose GPUs are guaranteed
        (8, curve(least=0), 4),  # nobody wants any
        (0, curve(least=0), 0),
        (0, curve((6, 0.6), least=6), 6),  # minimums and guarantees, whatever they are worth
    ],
)
def test_the_plan_follows_what_the_jobs_make_of_gpus(there: int, found: SpeedCurve, gpus: int) -> None:
    first = plan(there, found)
    assert first.gpus == gpus
    assert plan(there, found, first) == first, "nothing has changed"


def test_a_machine_with_pods_of_others_is_not_emptied() -> None:
    assert plan(8, curve((8, 1.0)), machines=()).gpus == 8


def test_machines_are_emptied_one_by_one() -> None:
    poor = curve((100, 1.0))
    first = plan(16, poor)
    assert first.gpus == 12
    assert plan(16, poor, first, NOW + 3600).gpus == 12, "the machine is still there"
    assert plan(12, poor, first, NOW + 3600).gpus == 8


def test_a_machine_that_is_larger_than_what_was_asked_for_is_used() -> None:
    found = curve((16, 8.0))
    assert plan(16, found, Plan(12, 8, NOW)).gpus == 16
    assert plan(16, found, Plan(8, 8)).gpus == 16


def test_a_plan_stays_within_the_band() -> None:
    asked = plan(8, curve((16, 12.0), (84, 0.0)))
    assert asked.gpus == 18
    assert plan(8, curve((16, 10.0), (84, 0.0)), asked).gpus == 18, "10 / 18 is within the band"
    assert plan(8, curve((16, 6.0), (84, 0.0)), asked).gpus == 8
    emptied = plan(16, curve((16, 5.0)))
    assert emptied.gpus == 12
    assert plan(16, curve((16, 7.0)), emptied).gpus == 12, "7 / 16 is within the band"
    assert plan(16, curve((16, 13.0)), emptied).gpus == 16


def test_gpus_that_do_not_come_are_given_up_for_a_while() -> None:
    good = curve((16, 16.0))
    asked = plan(8, good)
    assert (asked.gpus, asked.waits_since) == (16, NOW)
    waits = plan(8, good, asked, NOW + ARRIVAL_SECONDS - 1)
    assert waits == asked
    given_up = plan(8, good, waits, NOW + ARRIVAL_SECONDS)
    assert (given_up.gpus, given_up.pauses_until) == (8, NOW + ARRIVAL_SECONDS + PAUSE_SECONDS)
    assert plan(8, good, given_up, NOW + ARRIVAL_SECONDS) == given_up
    again = plan(8, good, given_up, NOW + ARRIVAL_SECONDS + PAUSE_SECONDS)
    assert (again.gpus, again.pauses_until) == (16, None)
    assert plan(12, good, given_up, NOW + ARRIVAL_SECONDS + 1).gpus == 16, "a machine has come after all"


def test_a_machine_that_comes_prolongs_the_wait_for_the_next_one() -> None:
    good = curve((16, 16.0))
    asked = plan(8, good)
    assert plan(12, good, asked, NOW + 500).waits_since == NOW + 500
    assert plan(16, good, asked, NOW + 500) == Plan(16, 16)


def test_nothing_is_waited_for_before_pods_do() -> None:
    good = curve((16, 16.0))
    asked = plan_capacity(World(8, ()), 8, good, RULE, None, NOW)
    assert asked == Plan(16, 8)
    assert plan_capacity(World(8, ()), 8, good, RULE, asked, NOW + ARRIVAL_SECONDS) == asked


def test_a_machine_that_is_lost_is_asked_for_again() -> None:
    found = curve((16, 10.0))
    assert plan(8, found, Plan(16, 16)).gpus == 16


def test_nothing_is_planned_anew_from_what_could_not_be_read() -> None:
    before = Plan(12, 8, NOW)
    world = World(0, (), stale=True)
    assert plan_capacity(world, 0, curve(), RULE, before, NOW + 3600) == before


steps = st.lists(st.tuples(st.integers(1, 20), st.floats(0, 1)), max_size=6)
moments = st.lists(st.tuples(st.integers(0, 20), steps, st.integers(0, 80), st.floats(0, 900)), min_size=1, max_size=8)


@settings(derandomize=True)
@given(moments)
def test_a_second_plan_is_the_same_and_no_plan_leaves_its_bounds(
    history: list[tuple[int, list[tuple[int, float]], int, float]],
) -> None:
    before, now = None, NOW
    for machines, found, least, seconds in history:
        there, now = MACHINE * machines, now + seconds
        most = sum(gpus for gpus, _ in found)
        jobs = curve(*((gpus, gpus * worth) for gpus, worth in found), least=min(least, most))
        before = plan(there, jobs, before, now, (MACHINE,) * machines)
        assert plan(there, jobs, before, now, (MACHINE,) * machines) == before
        assert there - MACHINE <= before.gpus <= max(there, RULE.max)
        if before.pauses_until is None:
            assert before.gpus >= min(least, most, max(there, RULE.max))


def cluster(machines: int = 2, most: int = 32) -> AutoscaledCluster:
    return AutoscaledCluster(autoscaled(PROJECTS, Autoscale(most)), MACHINE * machines)


def test_machines_come_for_a_job_that_scales_and_go_one_by_one_once_it_has_ended() -> None:
    there = cluster()
    there.submit("bert", "nlp", 2, 32, 2)
    there.wait(1800)
    assert (there.capacity, there.jobs["bert"].held) == (32, 32)
    del there.jobs["bert"]
    counts = []
    while there.capacity:
        there.wait(30)
        counts.append(len(there.machines))
        assert there.ledger.plan is not None and there.ledger.plan.gpus >= there.capacity - MACHINE
    assert counts == sorted(counts, reverse=True)


def test_a_job_that_scales_badly_keeps_its_guarantee_and_no_more() -> None:
    there = cluster(machines=1)
    there.scaling["bert"] = 0.5
    there.submit("bert", "nlp", 2, 24, 2)
    most = 0
    for _ in range(120):
        there.wait(30)
        most = max(most, there.capacity)
    assert most > 8, "its speed on more GPUs was not known"
    assert (there.capacity, there.jobs["bert"].held) == (8, 8)


def test_a_job_that_has_measured_nothing_yet_keeps_the_machines_that_are_there() -> None:
    there = cluster(machines=4)
    there.submit("bert", "nlp", 1, 16)
    for _ in range(3):
        decision = there.round()
        there.follow()
        assert decision.capacity == 16
    assert there.jobs["bert"].held == 16


def test_a_shrink_for_a_machine_says_so() -> None:
    there = cluster(machines=6)
    there.submit("bert", "guest", 2, 24, 2)
    there.wait(600)
    there.scaling["bert"] = 1.0
    there.jobs["bert"].report = replace(there.jobs["bert"].report, speeds={2: 1.0, 24: 1.0})
    (change,) = there.round().changes
    assert change.reason == "24 → 20 GPUs: a machine is to be emptied, so that 20 GPUs remain"


def test_jobs_go_on_with_what_is_there_if_no_machine_comes() -> None:
    there = cluster()
    there.offered = 2
    there.submit("bert", "nlp", 2, 32, 2)
    there.wait(300)
    assert there.jobs["bert"].held > there.capacity, "its pods wait"
    there.wait(ARRIVAL_SECONDS)
    assert (there.capacity, there.jobs["bert"].held) == (8, 8)
    there.submit("large", "vision", 12, 12)
    there.round()
    assert there.grants["large"].reason == (
        "waits: it needs 12 GPUs, and the capacity is 8 GPUs now; machines that were asked for did not come"
    )


@pytest.mark.thorough
@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(0, 40), st.integers(1, 30))
def test_whatever_happens_no_gpu_is_promised_twice_and_machines_come_to_rest(
    seed: int, machines: int, most: int, events: int
) -> None:
    there, random = cluster(machines, max(most, 1)), Random(seed)
    there.offered = random.choice((0, 4, 100))
    for _ in range(events):
        if random_event(there, random) == "machine":
            there.keep(max(0, there.capacity // MACHINE))
        for name in there.jobs:
            there.scaling.setdefault(name, random.choice((0.0, 0.05, 0.5)))
        there.round()  # which checks the promises
        assert decide(there.world(), there.projects, there.ledger, there.now).changes == ()
        there.follow(lambda name: random.random() < 0.7)
        there.measure()
        there.provide()
    there.stale, there.offered = False, 100
    for one in there.jobs.values():
        one.deaf = False
    there.settle(5400)
    before = there.machines
    for _ in range(10):
        there.wait(60)
        assert there.machines == before
        assert there.decision is not None and there.decision.changes == ()


def test_a_machine_that_an_overdue_job_keeps_is_not_one_for_the_minimum_of_others() -> None:
    speeds = dict.fromkeys(range(1, 9), 1.0)
    deaf = job("deaf", most=8, held=8, following=8, following_generation=2, speeds=speeds)
    runs = job("runs", least=7, most=8, held=7, following=7, following_generation=3, speeds=speeds)
    accounts = {
        "deaf": Account("nlp", 0, 8, 3, held=8, reclaim_by=NOW - 500.0, overdue=8),
        "runs": Account("nlp", 7, 7, 3, held=7),
    }
    projects = Projects((Project("nlp"),), capacity=Capacity(autoscale=RULE))
    decision = decide(World(16, (deaf, runs), machines=(8,)), projects, Ledger(3, accounts), NOW)
    assert decision.ledger.accounts["runs"].allowed >= 7
