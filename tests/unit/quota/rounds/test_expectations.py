"""What projects count on of bounds: none keeps GPUs there that another's guarantee needs and its own does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.demands import own_share
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import decide
from elastic_launcher.quota.rounds.world import Bound, World
from tests.support.quota_jobs import job

PROJECTS = Projects((Project("nlp", guaranteed=2), Project("vision", guaranteed=2), Project("rest")))
TREE = Projects(
    (
        Project("org", guaranteed=8, limit=10),
        Project("nlp", guaranteed=4, parent="org", priority=1),
        Project("vision", guaranteed=3, limit=5, parent="org", weight=2.0),
        Project("rest", weight=0.5),
    )
)


def world_of(capacity: int, jobs: Sequence[Job], spaces: Sequence[str], quotas: Mapping[str, int]) -> World:
    """Returns a world of jobs in namespaces, some of which have a ResourceQuota."""
    of_space = {
        space: frozenset(one.id for one, there in zip(jobs, spaces, strict=True) if there == space) for space in quotas
    }
    return World(capacity, tuple(jobs), bounds=tuple(Bound(one, of_space[one], gpus) for one, gpus in quotas.items()))


def targets_of(world: World, projects: Projects) -> dict[str, int]:
    """Returns the targets of new jobs; a second round has the same."""
    first = decide(world, projects, Ledger(), 1000.0)
    second = decide(world, projects, first.ledger, 1001.0)
    assert (second.changes, second.targets.gpus) == ((), first.targets.gpus)
    return dict(first.targets.gpus)


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize(("early", "late"), [("nlp", "vision"), ("vision", "nlp")])
def test_a_project_with_other_gpus_leaves_those_of_a_bound_to_one_that_has_none(
    early: str, late: str, least: int
) -> None:
    jobs = (
        job("free", early, 1, 3, submitted_at=1.0),
        job("bound", early, 2, 5, submitted_at=2.0),
        job("only", late, least, 4, submitted_at=3.0),
    )
    world = world_of(10, jobs, ("b", "a", "a"), {"a": 2})
    assert targets_of(world, PROJECTS) == {"free": 3, "bound": 0, "only": 2}


def test_it_leaves_them_where_it_must_take_others_back_from_a_borrower() -> None:
    jobs = job("free", "nlp"), job("bound", "nlp"), job("only", "vision"), job("borrows", "rest")
    world = world_of(2, jobs, ("b", "a", "a", "b"), {"a": 1})
    assert targets_of(world, PROJECTS) == {"free": 1, "bound": 0, "only": 1, "borrows": 0}


def test_a_part_that_no_job_of_its_project_can_use_goes_to_one_that_lacks_guaranteed_gpus() -> None:
    jobs = job("large", "nlp", 3, 6), job("only", "vision", 1, 3), job("borrows", "rest", 1, 3, priority=1)
    world = world_of(7, jobs, ("a", "a", "a"), {"a": 3})
    assert targets_of(world, PROJECTS) == {"large": 0, "only": 2, "borrows": 1}


def test_projects_that_have_no_others_share_a_bound_fairly_still() -> None:
    jobs = job("a", "nlp"), job("b", "vision"), job("borrows", "rest")
    assert targets_of(world_of(9, jobs, ("a", "a", "b"), {"a": 2}), PROJECTS) == {"a": 1, "b": 1, "borrows": 4}


def test_a_department_is_left_what_is_guaranteed_to_no_project_below_it() -> None:
    projects = Projects((Project("lab", guaranteed=4), Project("nlp", parent="lab"), Project("vision", guaranteed=4)))
    jobs = job("free", "nlp", 1, 1), job("bound", "nlp"), job("only", "vision")
    assert targets_of(world_of(8, jobs, ("b", "a", "a"), {"a": 4}), projects) == {"free": 1, "bound": 2, "only": 2}


def due_of(world: World, projects: Projects) -> dict[str, int]:
    """Returns what each project has within its guarantee if no other one has anything under its bounds."""
    asked = {project.name: 0 for project in projects.projects}
    for project in asked:
        left = {bound.name: bound.gpus for bound in world.bounds}
        for one in (one for one in world.jobs if one.match["project"] == project):
            above = [bound.name for bound in world.bounds if one.id in bound.jobs]
            gpus = one.usable(min([one.maximum, *(left[name] for name in above)]))
            left.update((name, left[name] - gpus) for name in above)
            asked[project] += gpus
    shares = fair_share(world.capacity, projects.claims(asked))
    return {
        name: min(projects.named(name).guaranteed, own_share(projects, shares, name), asked[name]) for name in asked
    }


def fits(world: World, projects: Projects, gpus: Mapping[str, int], has: Mapping[str, int]) -> bool:
    """Returns whether jobs can have so many GPUs together, and their projects."""
    return (
        sum(gpus.values()) <= world.capacity
        and all(sum(gpus[name] for name in bound.jobs) <= bound.gpus for bound in world.bounds)
        and all(
            sum(has[below.name] for below in projects.projects if one in projects.path(below.name)) <= one.limit
            for one in projects.projects
            if one.limit is not None
        )
    )


places = st.tuples(st.sampled_from(("nlp", "vision", "rest")), st.sampled_from("aabc"))
sizes = st.tuples(st.sampled_from((1, 1, 1, 2, 3)), st.integers(0, 3), st.sampled_from((0, 0, 5)))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([PROJECTS, TREE]),
    st.integers(1, 10),
    st.lists(st.tuples(places, sizes), min_size=2, max_size=4),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 5), min_size=1),
)
@example(  # nlp gives way under one of the two bounds alone
    PROJECTS,
    3,
    [(("nlp", "a"), (1, 0, 0)), (("nlp", "b"), (1, 1, 0)), (("vision", "a"), (1, 0, 0)), (("vision", "b"), (2, 0, 0))],
    {"a": 1, "b": 2},
)
@example(  # nlp asks for 2 and 2: with 3 for the first, the other would have nothing
    TREE,
    5,
    [(("rest", "b"), (1, 3, 0)), (("rest", "c"), (1, 1, 0)), (("nlp", "a"), (2, 3, 0)), (("nlp", "a"), (1, 2, 5))],
    {"a": 4},
)
@example(  # vision has a part of the bound only because nobody took it
    TREE,
    9,
    [(("rest", "a"), (1, 3, 0)), (("nlp", "c"), (2, 1, 0)), (("nlp", "a"), (3, 0, 0)), (("vision", "a"), (1, 2, 5))],
    {"a": 3, "b": 2},
)
@example(  # the department as a whole has less then
    TREE,
    7,
    [(("nlp", "c"), (2, 1, 0)), (("nlp", "b"), (1, 0, 5)), (("nlp", "a"), (3, 0, 0)), (("vision", "a"), (2, 0, 0))],
    {"a": 3},
)
@example(PROJECTS, 2, [(("nlp", "a"), (1, 3, 0)), (("nlp", "c"), (1, 3, 0)), (("vision", "a"), (1, 3, 0))], {"a": 1})
def test_no_division_gives_a_project_more_of_its_guarantee_and_leaves_the_others_theirs(
    projects: Projects,
    capacity: int,
    drawn: list[tuple[tuple[str, str], tuple[int, int, int]]],
    quotas: dict[str, int],
) -> None:
    jobs = [
        job(f"job-{number}", project, least, least + more, priority=priority, submitted_at=float(number))
        for number, ((project, _), (least, more, priority)) in enumerate(drawn)
    ]
    world = world_of(capacity, jobs, [space for (_, space), _ in drawn], quotas)
    targets, due = targets_of(world, projects), due_of(world, projects)

    def by_project(gpus: Mapping[str, int]) -> dict[str, int]:
        return {name: sum(gpus[one.id] for one in jobs if one.match["project"] == name) for name in due}

    has = by_project(targets)
    for counts in product(*((0, *one.sizes) for one in jobs)):
        gpus = dict(zip((one.id for one in jobs), counts, strict=True))
        found = by_project(gpus)
        for name in (name for name in due if has[name] < found[name] <= due[name]):
            keeps = all(gpus[one.id] >= targets[one.id] for one in jobs if one.match["project"] == name)
            kept = all(found[other] >= min(has[other], least) for other, least in due.items())
            ordered = all(not _is_passed_over(one, jobs, gpus, targets) for one in jobs)
            assert not (keeps and kept and ordered and fits(world, projects, gpus, found)), (name, gpus)


def _is_passed_over(one: Job, jobs: Sequence[Job], gpus: Mapping[str, int], targets: Mapping[str, int]) -> bool:
    """Returns whether a division takes all from a job, and gives GPUs to one of its project that comes after it."""

    def order(job: Job) -> tuple[int, float]:
        return -job.priority, job.submitted_at

    return targets[one.id] > gpus[one.id] == 0 and any(
        gpus[other.id] and order(other) > order(one) and other.match["project"] == one.match["project"]
        for other in jobs
    )
