"""Projects: which one a job belongs to, and what they claim."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.hints.match import matches, named, specificity
from elastic_launcher.options import MATCH_KEYS
from elastic_launcher.quota.fair_share import Claim, fair_share
from elastic_launcher.quota.projects import Project, Projects, QuotaError

ORG = Projects(
    (
        Project("org", guaranteed=12, limit=16),
        Project("nlp", 8, 14, 2.0, 1, "org", patterns=({"namespace": "ml", "queue": "nlp"}, {"namespace": "nlp-*"})),
        Project("bert", 2, 20, parent="nlp", patterns=({"namespace": "ml", "queue": "nlp", "job": "bert-*"},)),
        Project("guests", patterns=({"namespace": "*"},)),
    ),
    unmatched="guests",
)


def name_of(projects: Projects, match: Mapping[str, str]) -> str | None:
    project = projects.project_of(match)
    return None if project is None else project.name


@pytest.mark.parametrize(
    ("match", "name"),
    [
        ({"namespace": "ml", "queue": "nlp"}, "nlp"),
        ({"namespace": "ml", "queue": "nlp", "job": "gpt"}, "nlp"),
        ({"namespace": "ml", "queue": "nlp", "job": "bert-large"}, "bert"),
        ({"namespace": "nlp-dev", "job": "bert-large"}, "nlp"),
        ({"namespace": "nlp-dev", "project": "org"}, "org"),
        ({"namespace": "ml", "queue": "cv"}, "guests"),
        ({"project": "nlp"}, "guests"),
        ({}, "guests"),
    ],
)
def test_the_most_specific_match_wins(match: dict[str, str], name: str) -> None:
    assert name_of(ORG, match) == name


def test_a_project_without_a_match_takes_the_jobs_that_name_it() -> None:
    projects = Projects((Project("nlp"), Project("cv", patterns=())))
    assert [name_of(projects, {"project": name, "job": "bert"}) for name in ("nlp", "cv", "other")] == [
        "nlp",
        None,
        None,
    ]


def test_a_job_that_two_projects_match_equally_well_is_an_error_that_names_both() -> None:
    projects = Projects(
        (
            Project("nlp", patterns=({"job": "bert-*"},)),
            Project("labs", patterns=({"job": "*-large"}, {"job": "b*-large"})),
        )
    )
    assert name_of(projects, {"job": "bert-small"}) == "nlp"
    with pytest.raises(QuotaError) as caught:
        projects.project_of({"namespace": "ml", "job": "bert-large"})
    assert str(caught.value) == (
        "the job of namespace=ml, job=bert-large is matched equally well by the projects nlp (job=bert-*) and labs "
        "(job=*-large); give one of them a match that is more specific"
    )


def test_two_matches_of_one_project_are_no_tie() -> None:
    projects = Projects((Project("labs", patterns=({"job": "*-large"}, {"job": "b*"})),))
    assert name_of(projects, {"job": "bert-large"}) == "labs"


NAMES = st.sampled_from(["a", "b", "*", "a*", "*b"])
PATTERNS = st.dictionaries(st.sampled_from(MATCH_KEYS), NAMES, max_size=3)


@given(
    st.lists(st.lists(PATTERNS, max_size=3), max_size=5), st.dictionaries(st.sampled_from(MATCH_KEYS), st.text("ab"))
)
def test_a_job_gets_the_project_that_a_look_at_all_of_them_finds(
    patterns: list[list[dict[str, str]]], match: dict[str, str]
) -> None:
    projects, taken = [], []
    for number, found in enumerate(patterns):
        kept = []
        for pattern in found:  # as in a document, no two projects have the same match
            if named(pattern) not in taken:
                taken.append(named(pattern))
                kept.append(pattern)
        projects.append(Project(f"p{number}", patterns=tuple(kept)))
    fitting = [(specificity(one), each.name) for each in projects for one in each.matched_by if matches(one, match)]
    best = {name for rank, name in fitting if rank == max(fitting)[0]}
    try:
        name = name_of(Projects(tuple(projects)), match)
    except QuotaError:
        assert len(best) > 1
    else:
        assert {name} == (best or {None})


def test_relations_of_projects() -> None:
    assert [project.name for project in ORG.path("bert")] == ["bert", "nlp", "org"]
    assert (ORG.children("org"), ORG.children("nlp"), ORG.children("guests")) == (("nlp",), ("bert",), ())
    assert (ORG.limit_of("bert"), ORG.limit_of("nlp"), ORG.limit_of("guests")) == (14, 14, None)
    assert ORG.named("nlp").weight == 2.0
    with pytest.raises(KeyError, match="cv"):
        ORG.named("cv")


def test_all_projects_claim_with_what_they_ask_for_and_hold() -> None:
    claims = ORG.claims({"nlp": 5, "guests": 3}, {"guests": 2})
    assert claims == [
        Claim("org", 0, 12, 16),
        Claim("nlp", 5, 8, 14, 2.0, 1, "org"),
        Claim("bert", 0, 2, 20, 1.0, 0, "nlp"),
        Claim("guests", 3, 0, None, 1.0, 0, None, 2),
    ]
    assert fair_share(7, claims) == {"org": 5, "nlp": 5, "bert": 0, "guests": 2}


@pytest.mark.parametrize("counts", [({"cv": 1}, {}), ({}, {"cv": 1})])
def test_a_claim_of_no_project_is_refused(counts: tuple[dict[str, int], dict[str, int]]) -> None:
    with pytest.raises(KeyError, match="cv"):
        ORG.claims(*counts)
