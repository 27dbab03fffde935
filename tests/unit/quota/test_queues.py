"""Queues of other schedulers are projects, and the document has the last word on each of their fields."""

from __future__ import annotations

import pytest

from elastic_launcher.quota.projects import Project, Projects, QuotaError
from elastic_launcher.quota.projects_document import parse_projects
from elastic_launcher.quota.queues import Queue, with_queues

QUEUES = (
    Queue("org", 12, 16),
    Queue("nlp", 8, 10, 2.0, 1, "org", ({"queue": "nlp"},)),
    Queue("vision", 4, parent="org"),
)


def document(*rows: str, unmatched: str = "refuse") -> Projects:
    head = ["apiVersion: elastic-quota/v1", "capacity: {kai: {}}", f"unmatched: {unmatched}", "gracePeriodSeconds: 20"]
    return parse_projects("\n".join([*head, *(["projects:", *rows] if rows else [])]))


def test_each_queue_is_a_project() -> None:
    found = with_queues(document(), QUEUES)
    assert found.projects == (
        Project("nlp", 8, 10, 2.0, 1, "org", grace_period=20.0, patterns=({"queue": "nlp"},)),
        Project("org", 12, 16, grace_period=20.0),
        Project("vision", 4, parent="org", grace_period=20.0),
    )
    assert found.warnings == ()


def test_the_document_overrides_field_by_field() -> None:
    found = with_queues(document("- {name: nlp, limit: 6, weight: 0.5, minRunSeconds: 60}"), QUEUES)
    assert found.named("nlp") == Project(
        "nlp", 6, 6, 0.5, 1, "org", min_run_seconds=60.0, grace_period=20.0, patterns=({"queue": "nlp"},)
    )


def test_a_project_that_is_no_queue_is_one_beside_them_and_may_have_queues_below_it() -> None:
    rows = ("- {name: dept}", "- {name: nlp, parent: dept, match: {namespace: nlp}}", "- {name: lab, guaranteed: 3}")
    found = with_queues(document(*rows), QUEUES)
    assert found.named("lab").guaranteed == 3
    assert (found.named("dept").guaranteed, found.named("nlp").parent) == (8, "dept")
    project = found.project_of({"namespace": "nlp"})
    assert project is not None
    assert project.name == "nlp"


def test_of_two_that_match_the_same_jobs_the_documents_wins() -> None:
    found = with_queues(document("- {name: mine, match: {queue: nlp}}"), QUEUES)
    project = found.project_of({"queue": "nlp"})
    assert project is not None
    assert project.name == "mine"


def test_of_two_queues_with_one_name_the_tighter_numbers_hold() -> None:
    found = with_queues(document(), (Queue("a", 4, None, 2.0), Queue("a", 6, 8, 3.0)))
    assert found.projects == (Project("a", 4, 8, 2.0, grace_period=20.0),)


def test_jobs_of_no_queue_go_to_the_default_project_or_the_queue_of_that_name() -> None:
    assert with_queues(document(unmatched="default"), QUEUES).named("default").patterns == ()
    found = with_queues(document(unmatched="default"), (Queue("default", 2),))
    assert found.projects == (Project("default", 2, grace_period=20.0),)


@pytest.mark.parametrize(
    ("rows", "queues", "unmatched", "warning"),
    [
        ((), (Queue("a", parent="gone"),), "refuse", "project a: no project or queue is named gone; it has no parent"),
        (
            (),
            (Queue("a"),),
            "gone",
            "unmatched: no project or queue is named gone; jobs that no project matches are refused",
        ),
        (
            ("- {name: org, guaranteed: 5}",),
            QUEUES,
            "refuse",
            "the projects below org are guaranteed 12 GPUs, and org itself 5; when not all of them are there, they are "
            "shared in proportion",
        ),
    ],
)
def test_what_is_odd_is_a_warning(
    rows: tuple[str, ...], queues: tuple[Queue, ...], unmatched: str, warning: str
) -> None:
    assert with_queues(document(*rows, unmatched=unmatched), queues).warnings == (warning,)


def test_parents_in_a_circle_are_refused() -> None:
    with pytest.raises(QuotaError, match="the parents nlp → org → nlp are a circle"):
        with_queues(document("- {name: org, parent: nlp}"), QUEUES)
