"""GPUs go where they are worth most on the machines that there are, whatever the order of the jobs, and stay there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.allocation.allocate import allocate, value
from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.allocation.speeds import MeasuredSpeeds
from elastic_launcher.quota.allocation.worth import Candidate, Settings
from tests.support.allocation_jobs import Slower, candidate, drawn_jobs, drawn_machines, used

FOUR = {"a": 4, "b": 4, "c": 4, "d": 4}


def total(placement: Placement) -> int:
    return sum(placement.values())


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, int], dict[str, dict[str, int]], Settings]:
    """Draws jobs, machines and what the jobs hold on those, or on machines that are gone."""
    jobs, machines = draw(drawn_jobs()), draw(drawn_machines())
    free = {**machines, "gone": 4}
    held: dict[str, dict[str, int]] = {}
    for job in jobs:
        for machine in draw(st.lists(st.sampled_from(sorted(free)), max_size=2, unique=True)):
            if gpus := draw(st.integers(0, free[machine])):
                held.setdefault(job.name, {})[machine] = gpus
                free[machine] -= gpus
    return jobs, machines, held, Settings(in_process=draw(st.booleans()))


@settings(max_examples=80, deadline=None)
@given(rounds())
def test_an_allocation_is_legal_stays_and_knows_no_order(
    drawn: tuple[list[Candidate], dict[str, int], dict[str, dict[str, int]], Settings],
) -> None:
    jobs, machines, held, prices = drawn
    found = allocate(jobs, machines, held, settings=prices)
    assert all(gpus <= machines[machine] for machine, gpus in used(found).items())
    for job in jobs:
        placement = found.get(job.name, {})
        assert not placement or job.is_legal(total(placement))
        assert all(gpus % job.node_gpus == 0 for gpus in placement.values())
    assert allocate(jobs[::-1], machines, held, settings=prices) == found
    assert allocate(jobs, machines, found, settings=prices) == found


@settings(max_examples=60, deadline=None)
@given(rounds())
def test_no_job_is_without_while_its_least_is_free_on_a_machine(
    drawn: tuple[list[Candidate], dict[str, int], dict[str, dict[str, int]], Settings],
) -> None:
    jobs, machines, _, prices = drawn
    found = allocate(jobs, machines, {}, settings=prices)
    taken = used(found)
    free = {machine: gpus - taken.get(machine, 0) for machine, gpus in machines.items()}
    waiting = [job for job in jobs if job.name not in found and job.considered() and job.work is None]
    assert all(max(free.values()) < job.considered()[0] for job in waiting)


@settings(max_examples=60, deadline=None)
@given(drawn_jobs(), st.data())
def test_floors_are_kept_where_there_is_a_place(jobs: list[Candidate], data: st.DataObject) -> None:
    floors = {job.name: job.considered()[0] for job in jobs}
    machines = {f"m{number}": 8 for number in range(sum(-(-floor // 8) for floor in floors.values()))}
    held = {job.name: {"m0": 1} for job in jobs[:1]}
    found = allocate(jobs, machines, held, floors=floors)
    assert all(total(found.get(name, {})) >= floor for name, floor in floors.items())
    assert sum(map(total, found.values())) <= sum(machines.values())


def test_less_may_be_held_than_machines_have() -> None:
    found = allocate([candidate("one"), candidate("two")], FOUR, {}, total=5)
    assert sum(map(total, found.values())) == 5


def test_floors_that_need_more_than_there_is_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 18 GPUs, and there are 16"):
        allocate([candidate("one"), candidate("two")], FOUR, {}, floors={"one": 9, "two": 9})


def test_a_job_that_is_slow_on_several_machines_stays_on_one() -> None:
    job = candidate("job", work=1e6, speeds=Slower(0.2))
    assert allocate([job], FOUR, {}) == {"job": {"a": 4}}


def test_a_place_that_is_worth_less_than_assumed_changes_the_division() -> None:
    fast = candidate("fast", work=1e6, speeds=Slower(0.2), service=1.0)
    held = {f"other-{machine}": {machine: 3} for machine in FOUR}
    others = [candidate(name, limit=3, sizes=(3,), minimum=3) for name in held]
    found = allocate([fast, *others], FOUR, held)
    assert found["fast"] == {"a": 1}  # four GPUs are free, on four machines
    assert {name: found[name] for name in held} == held


def test_a_job_is_moved_to_fewer_machines_where_that_pays() -> None:
    job, held = candidate("job", work=1e6, speeds=Slower(0.5), limit=4), {"job": {"a": 2, "b": 2}}
    assert allocate([job], FOUR, held, settings=Settings(in_process=False)) == {"job": {"a": 4}}
    young = replace(job, age=0.0, changes=9)
    assert allocate([young], FOUR, held, settings=Settings(in_process=False)) == held


def test_gpus_are_used_up_between_the_usual_sizes() -> None:
    assert total(allocate([candidate("job")], {"a": 4, "b": 3}, {})["job"]) == 7


def test_what_was_freed_is_taken_around_what_is_held() -> None:
    jobs = [candidate(name, limit=4, work=1e6, speeds=MeasuredSpeeds({(1, 1): 1.0}, 4)) for name in ("one", "two")]
    found = allocate(jobs, {"a": 4, "b": 4}, {"one": {"b": 2}, "two": {"a": 1}})
    assert found == {"one": {"b": 4}, "two": {"a": 4}}


def test_the_job_with_less_work_left_comes_first() -> None:
    speeds = MeasuredSpeeds({(1, 1): 1.0}, 4)
    found = allocate(
        [candidate("long", work=1e6, speeds=speeds), candidate("short", work=1e3, speeds=speeds)], FOUR, {}
    )
    assert total(found["short"]) > total(found.get("long", {}))


def test_jobs_on_a_machine_that_is_gone_go_on_with_the_rest() -> None:
    job = candidate("job", limit=8, work=1e6)
    assert allocate([job], {"a": 4}, {"job": {"a": 4, "gone": 4}}) == {"job": {"a": 4}}


def test_the_worth_of_a_placement_counts_what_goes_on() -> None:
    job = candidate("job", work=1e4, changes=1)
    staying = value(job, {"a": 2}, {"a": 2}, Settings())
    grown = value(job, {"a": 2}, {"a": 4}, Settings())
    moved = value(job, {"a": 2}, {"b": 4}, Settings())
    restarted = value(job, {"a": 2}, {"a": 4}, Settings(in_process=False))
    assert staying < moved == restarted < grown
    assert value(job, {"a": 2}, {}, Settings()) < 0.0 == value(job, {}, {}, Settings())
    assert value(replace(job, work=None), {}, {"a": 2}, Settings()) == staying > value(job, {}, {"a": 2}, Settings())
