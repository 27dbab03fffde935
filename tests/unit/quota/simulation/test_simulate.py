"""The simulation's times are those that a person computes, whatever the policy, and always the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.allocation.worth import Settings
from elastic_launcher.quota.simulation.courses import Amdahl
from elastic_launcher.quota.simulation.physics import HOLD, InProcess, Restart
from elastic_launcher.quota.simulation.policies import Elastic, Rigid
from elastic_launcher.quota.simulation.simulate import Job, Policy, State, simulate

MACHINES = {"a": 4, "b": 4}


def job(name: str, submitted: float = 0.0, seconds: float = 600.0, **fields: object) -> Job:
    return replace(Job(name, submitted, Amdahl(seconds), 1, 8), **fields)


def scripted(*rounds: Mapping[str, Placement]) -> Policy:
    """Returns a policy that gives what each round is given, and then what the last one was."""
    left = list(rounds)

    def policy(state: State) -> Mapping[str, Placement]:
        return left.pop(0) if len(left) > 1 else left[0]

    return policy


def test_a_job_starts_at_the_first_round_and_trains_after_its_delay() -> None:
    results = simulate([job("one", 61.0)], MACHINES, scripted({"one": {"a": 2}}), Restart())
    (one,) = results.outcomes
    assert (one.started, one.completed, one.completion_time) == (120.0, 450.0, 389.0)
    assert one.service == 2 * 330.0
    assert (one.changes, one.stopped) == (0, 0)
    assert results.rounds == 6
    assert results.makespan == 450.0
    assert results.gpus_in_use == 2.0


def test_a_restart_costs_the_delay() -> None:
    policy = scripted({"one": {"a": 1}}, {"one": {"a": 1}}, {"one": {"a": 2}})
    (one,) = simulate([job("one")], MACHINES, policy, Restart()).outcomes
    # 60 to 180 on one GPU, less 30 s; then 510 s of work on two after another 30 s
    assert one.completed == 180 + 30 + 510 / 2
    assert (one.changes, one.stopped) == (1, 1)


def test_growth_in_process_costs_a_moment() -> None:
    policy = scripted({"one": {"a": 1}}, {"one": {"a": 1}}, {"one": {"a": 2}})
    (one,) = simulate([job("one")], MACHINES, policy, InProcess()).outcomes
    assert one.completed == pytest.approx(180 + 30 + HOLD + (600 - 90 - 30) / 2)
    assert (one.changes, one.stopped) == (1, 0)


def test_a_job_on_old_gpus_stops_when_another_one_gets_them_in_a_later_round() -> None:
    slow = job("one", seconds=1000.0, delay=100.0)
    policy = scripted({"one": {"a": 1}}, {"one": {"a": 1}}, {"one": {"b": 1}}, {"one": {"b": 1}, "two": {"a": 4}})
    found = simulate([slow, job("two")], MACHINES, policy, InProcess()).outcomes
    # trains from 160 to 240 on a; on b from 280
    assert found[0].completed == pytest.approx(280 + 1000 - 80)


def test_a_pause_and_its_end_are_one_change() -> None:
    policy = scripted({"one": {"a": 1}}, {"one": {"a": 1}}, {}, {"one": {"b": 1}})
    (one,) = simulate([job("one"), job("two")], MACHINES, both(policy, "two"), InProcess()).outcomes[:1]
    assert (one.changes, one.stopped) == (1, 1)
    assert one.completed == 240 + 30 + (600 - 90)


def both(policy: Policy, other: str) -> Policy:
    """Returns a policy that gives another job one GPU of b too."""
    return lambda state: {**policy(state), other: {"b": 1}}


def test_rounds_follow_changes_where_they_are_to_settle() -> None:
    rounds: list[float] = []

    def policy(state: State) -> dict[str, Placement]:
        rounds.append(state.now)
        return {seen.job.name: {"a": 1} for seen in state.jobs}

    jobs = [job("one", 5.0, 100.0), job("two", 40.0, 100.0)]
    simulate(jobs, MACHINES, policy, Restart(), interval=60.0, settle=1.0)
    assert rounds == [6.0, 41.0, 101.0, 137.0]  # one is complete at 136


def test_machines_that_go_take_what_jobs_hold_there() -> None:
    seen: list[Placement] = []

    def policy(state: State) -> dict[str, Placement]:
        (one,) = state.jobs
        seen.append(one.held)
        return {"one": one.held or {"a": 2, "b": 2}}

    (one,) = simulate([job("one")], MACHINES, policy, InProcess(), other_machines=[(100.0, {"a": 4})]).outcomes
    assert seen[:3] == [{}, {"a": 2}, {"a": 2}]
    assert (one.changes, one.stopped) == (1, 0)
    # 10 s on four GPUs, then on two
    assert one.completed == pytest.approx(100 + HOLD + (600 - 40) / 2)


def test_machines_that_come_are_seen() -> None:
    def policy(state: State) -> dict[str, Placement]:
        return {"one": {"b": 4}} if "b" in state.machines else {}

    (one,) = simulate([job("one")], {"a": 4}, policy, Restart(), other_machines=[(90.0, MACHINES)]).outcomes
    assert one.started == 120.0


def test_unfairness_is_the_time_over_that_on_an_equal_part() -> None:
    policy = scripted({"one": {"a": 4}, "two": {"b": 4}})
    found = simulate([job("one"), job("two")], MACHINES, policy, Restart()).outcomes
    assert [one.rho for one in found] == [pytest.approx(240 / 180)] * 2  # each waited a minute for a round
    (alone,) = simulate([job("one", limit=2)], MACHINES, scripted({"one": {"a": 1}}), Restart()).outcomes
    assert alone.rho == pytest.approx(690 / 330)


def test_a_policy_that_gives_away_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="more GPUs than there are on a, c"):
        simulate([job("one")], MACHINES, scripted({"one": {"a": 5, "c": 1}}), Restart())


def test_jobs_that_never_get_anything_are_named() -> None:
    with pytest.raises(RuntimeError, match="gives nothing to one, two"):
        simulate([job("two"), job("one")], MACHINES, scripted({}), Restart())


def test_no_jobs_are_refused() -> None:
    with pytest.raises(ValueError, match="no jobs"):
        simulate([], MACHINES, scripted({}), Restart())


@st.composite
def traces(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for number in range(draw(st.integers(1, 8))):
        least, submitted = draw(st.integers(1, 2)), draw(st.floats(0, 3000))
        course = Amdahl(draw(st.floats(1, 5000)), draw(st.floats(0, 0.5)))
        limit = draw(st.integers(least, 8))
        request = draw(st.integers(least, limit))
        jobs.append(Job(f"job-{number}", submitted, course, request, limit, least, draw(st.floats(0, 300))))
    return jobs


@settings(max_examples=25, deadline=None)
@given(traces(), st.booleans(), st.sampled_from([None, 1.0]))
def test_every_job_ends_after_its_work_and_the_results_are_always_the_same(
    jobs: list[Job], in_process: bool, settle: float | None
) -> None:
    physics = InProcess() if in_process else Restart()
    results = [
        simulate(order, MACHINES, Elastic(Settings(in_process=in_process)), physics, settle=settle)
        for order in (jobs, jobs[::-1])
    ]
    assert results[0] == results[1]
    assert {one.name for one in results[0].outcomes} == {one.name for one in jobs}
    by_name = {one.name: one for one in jobs}
    for one in results[0].outcomes:
        course, limit = by_name[one.name].course, by_name[one.name].limit
        assert one.completed - one.started >= course.steps / course.rate((limit,)) - 1e-6
        assert one.service >= course.steps / course.rate((1,)) * (1 - 1e-9)
    assert results[0].gpus_in_use <= 8 + 1e-9


@settings(max_examples=15, deadline=None)
@given(traces(), st.lists(st.tuples(st.floats(0, 4000), st.sampled_from([{"a": 4}, {"b": 2}, MACHINES])), max_size=4))
def test_machines_come_and_go_and_every_job_ends(jobs: list[Job], changes: list[tuple[float, dict[str, int]]]) -> None:
    def checked(state: State) -> dict[str, dict[str, int]]:
        found = policy(state)
        total = {machine: sum(one.get(machine, 0) for one in found.values()) for machine in MACHINES}
        assert all(gpus <= state.machines.get(machine, 0) for machine, gpus in total.items())
        return found

    policy = Elastic(Settings())
    results = simulate(jobs, MACHINES, checked, InProcess(), other_machines=changes)
    assert len(results.outcomes) == len(jobs)


def test_fixed_numbers_of_gpus_wait_for_their_turn() -> None:
    jobs = [
        job("first", 1.0, 3600.0, request=6),
        job("second", 2.0, 600.0, request=4),
        job("third", 3.0, 60.0, request=2),
    ]
    found = {one.name: one for one in simulate(jobs, MACHINES, Rigid(), Restart()).outcomes}
    assert found["first"].started == found["third"].started == 60.0  # the third fits beside the first
    assert found["second"].started == 720.0  # at the first round after the first
    assert all(one.changes == 0 for one in found.values())


def test_a_job_that_received_much_gives_way_to_newcomers() -> None:
    jobs = [job("long", 1.0, 80000.0, request=8), job("short", 100.0, 600.0, request=4)]
    found = {one.name: one for one in simulate(jobs, MACHINES, Rigid(threshold=8 * 1800.0), Restart()).outcomes}
    assert found["short"].started == 1860.0
    assert found["long"].changes == 1
