"""A simulation under the controller's own rounds: guarantees hold, nothing is given away twice, every job ends."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.simulation.courses import Amdahl
from elastic_launcher.quota.simulation.physics import InProcess
from elastic_launcher.quota.simulation.rounds import Rounds, placed
from elastic_launcher.quota.simulation.simulate import Job, Seen, State, simulate

MACHINES = {"a": 4, "b": 4}
TWO = Projects((Project("nlp", guaranteed=4), Project("vision", guaranteed=4)))


def job(
    name: str, project: str, submitted: float = 0.0, seconds: float = 4000.0, limit: int = 8, least: int = 1
) -> Job:
    return Job(name, submitted, Amdahl(seconds), least, limit, least, project=project)


def test_a_borrower_gives_back_what_the_owner_asks_for() -> None:
    seen: list[Mapping[str, int]] = []
    policy = Rounds(TWO)

    def watched(state: State) -> dict[str, dict[str, int]]:
        found = policy(state)
        seen.append({name: sum(placement.values()) for name, placement in found.items()})
        return found

    jobs = [job("bert", "nlp"), job("resnet", "vision", 300.0, seconds=800.0, limit=4, least=4)]
    simulate(jobs, MACHINES, watched, InProcess(), interval=30.0, settle=1.0)
    assert seen[0] == {"bert": 8}
    assert {"bert": 4, "resnet": 4} in seen
    assert seen[-1] == {"bert": 8}
    assert policy.short == {}


def test_the_time_that_a_project_lacks_its_guarantee_is_counted() -> None:
    projects = Projects((Project("nlp", min_run_seconds=500.0), Project("vision", guaranteed=8)))
    policy = Rounds(projects)
    jobs = [job("bert", "nlp", limit=4, least=4), job("resnet", "vision", 61.0)]
    simulate(jobs, MACHINES, policy, InProcess(), interval=30.0, settle=1.0)
    assert 400.0 < policy.short["vision"] < 500.0


def test_a_project_lacks_nothing_of_a_guarantee_that_is_too_small_for_its_jobs() -> None:
    projects = Projects((Project("nlp", guaranteed=4), Project("vision", guaranteed=3)))
    policy = Rounds(projects)
    jobs = [job("bert", "nlp", limit=8), job("resnet", "vision", 61.0, limit=6, least=6)]
    results = simulate(jobs, MACHINES, policy, InProcess(), interval=30.0, settle=1.0)
    assert {one.name: one.started > 400.0 for one in results.outcomes} == {"bert": False, "resnet": True}
    assert policy.short == {}


def test_what_is_guaranteed_to_a_project_below_is_no_lack_of_the_one_above() -> None:
    projects = Projects((Project("lab", guaranteed=8), Project("vision", guaranteed=4, parent="lab")))
    policy = Rounds(projects)
    jobs = [job("bert", "lab", limit=8, least=2), job("resnet", "vision", 61.0, seconds=800.0, limit=4, least=4)]
    simulate(jobs, MACHINES, policy, InProcess(), interval=30.0, settle=1.0)
    assert policy.short == {}


def at(held: Mapping[str, Mapping[str, int]]) -> State:
    seen = [Seen(job(name, "nlp"), gpus, 0.0, 0, 0.0, 1.0, {}) for name, gpus in held.items()]
    return State(0.0, MACHINES, tuple(seen))


def test_jobs_stay_on_their_machines_and_take_as_few_as_they_can() -> None:
    assert placed({"one": 3, "two": 4}, at({"one": {}, "two": {}})) == {"one": {"b": 3}, "two": {"a": 4}}
    assert placed({"one": 3}, at({"one": {"a": 1, "b": 4}})) == {"one": {"b": 3}}
    assert placed({"one": 6}, at({"one": {"a": 1, "b": 1}})) == {"one": {"a": 4, "b": 2}}
    assert placed({"one": 2, "two": 3}, at({"one": {"a": 2}, "two": {}})) == {"one": {"a": 2}, "two": {"b": 3}}


@st.composite
def traces(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        least = draw(st.integers(1, 4))
        seconds, limit = draw(st.floats(1, 3000)), draw(st.integers(least, 8))
        project = draw(st.sampled_from(["nlp", "vision"]))
        jobs.append(job(f"job-{number}", project, draw(st.floats(0, 1000)), seconds, limit, least))
    return jobs


@settings(max_examples=20, deadline=None)
@given(traces())
def test_every_job_of_a_trace_ends_and_no_project_lacks_its_guarantee(jobs: list[Job]) -> None:
    results = simulate(jobs, MACHINES, Rounds(TWO), InProcess(), interval=30.0, settle=1.0)
    assert {one.name for one in results.outcomes} == {one.name for one in jobs}
    assert results.gpus_in_use <= 8 + 1e-9
