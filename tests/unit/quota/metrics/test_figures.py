"""What metrics say of a project: what it holds, what it lacks of its guarantee, and how long it waited for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.quota.metrics.figures import Figures, Own, Shortfall, figures_of, follow_lacks, own_figures
from elastic_launcher.quota.projects import Project, Projects
from tests.support.quota_world import Cluster

NLP, VISION = Project("nlp", guaranteed=2), Project("vision", guaranteed=4)


def cluster(*projects: Project, capacity: int = 8) -> Cluster:
    return Cluster(Projects(projects, grow_after=0.0), capacity)


def own(there: Cluster) -> dict[str, Own]:
    return own_figures(there.world(), there.projects, there.round())


def figures(there: Cluster) -> dict[str, Figures]:
    found = own(there)
    assert there.decision is not None
    return figures_of(there.projects, found, there.decision.targets.shares)


def test_a_borrower_is_over_quota_and_an_owner_lacks_what_it_is_not_given_yet() -> None:
    there = cluster(NLP, VISION)
    there.submit("bert", "nlp", 1, 8)
    there.wait(60)
    there.submit("resnet", "vision", 2, 6)
    found = figures(there)
    assert found["nlp"] == Figures(guaranteed=2, fair_share=3, held=8, over_quota=6, lacking=0, waiting=0)
    assert found["vision"] == Figures(guaranteed=4, fair_share=5, held=0, over_quota=0, lacking=4, waiting=1)
    there.settle()
    found = figures(there)
    assert (found["nlp"].held, found["nlp"].over_quota) == (3, 1)
    assert (found["vision"].held, found["vision"].lacking, found["vision"].waiting) == (5, 0, 0)


def test_pods_that_are_not_elastic_count_as_held() -> None:
    there = cluster(NLP, VISION)
    there.rigid["nlp"] = 3
    found = figures(there)["nlp"]
    assert (found.held, found.over_quota, found.lacking) == (3, 1, 0)


@pytest.mark.parametrize(
    ("guaranteed", "jobs", "lacks"),
    [
        (3, [(2, 8, 2)], 2),  # by 2 GPUs at a time
        (3, [(4, 8, 1)], 0),  # its minimum is above the guarantee
        (5, [(2, 8, 2), (3, 3, 1)], 5),
        (5, [(1, 2, 1)], 2),  # it asks for no more
        (0, [(1, 8, 1)], 0),
    ],
)
def test_a_project_lacks_no_more_than_its_jobs_can_use(
    guaranteed: int, jobs: list[tuple[int, int, int]], lacks: int
) -> None:
    there = cluster(Project("nlp", guaranteed=guaranteed))
    for number, (least, most, step) in enumerate(jobs):
        there.submit(f"job-{number}", "nlp", least, most, step)
    assert own(there)["nlp"].lacks == lacks


def test_a_project_counts_with_those_below_it() -> None:
    there = cluster(
        Project("all", guaranteed=4), Project("a", 1, parent="all"), Project("b", 2, parent="all"), capacity=5
    )
    there.submit("one", "a", 1, 4)
    there.submit("other", "b", 1, 1)
    there.wait(60)
    there.submit("late", "b", 1, 2)
    found = figures(there)
    assert (found["all"].guaranteed, found["all"].held, found["all"].over_quota) == (4, 5, 1)
    assert (found["all"].lacking, found["all"].waiting) == (found["b"].lacking, found["b"].waiting) == (1, 1)


def test_a_wait_takes_from_the_first_demand_until_the_gpus_are_there() -> None:
    waits, over = follow_lacks({}, {"nlp": Own(held=0, wanted=2, waiting=1)}, 10.0)
    assert (waits, over) == ({"nlp": Shortfall(10.0, 2)}, [])
    waits, over = follow_lacks(waits, {"nlp": Own(held=1, wanted=4, waiting=1)}, 20.0)
    assert (waits, over) == ({"nlp": Shortfall(10.0, 4)}, [])
    assert follow_lacks(waits, {"nlp": Own(held=4, wanted=4, waiting=0)}, 35.0) == ({}, [25.0])


def test_a_wait_whose_job_ends_is_left_out() -> None:
    waits, _ = follow_lacks({}, {"nlp": Own(held=1, wanted=2, waiting=1)}, 10.0)
    assert follow_lacks(waits, {"nlp": Own(held=1, wanted=1, waiting=0)}, 20.0) == ({}, [])


def test_projects_that_are_gone_wait_no_more() -> None:
    assert follow_lacks({"nlp": Shortfall(10.0, 2)}, {}, 20.0) == ({}, [])


owns = st.builds(Own, held=st.integers(0, 8), wanted=st.integers(0, 8), waiting=st.just(0))


@given(st.lists(st.tuples(st.floats(0, 100), owns), max_size=20))
def test_waits_are_never_longer_than_the_history_and_never_overlap(history: list[tuple[float, Own]]) -> None:
    now, total, waits = 0.0, 0.0, dict[str, Shortfall]()
    for seconds, one in history:
        now += seconds
        waits, over = follow_lacks(waits, {"nlp": one}, now)
        assert ("nlp" in waits) == (one.lacks > 0)
        total += sum(over)
    assert 0 <= total <= now + 1e-9
