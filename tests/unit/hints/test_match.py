"""Which jobs an entry speaks for, and which of several entries is the most specific."""

from __future__ import annotations

from itertools import pairwise

import pytest

from elastic_launcher.hints import HintError, parse_match
from elastic_launcher.hints.match import matches, specificity

JOB = {"namespace": "ml", "job": "bert-ft"}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({}, True),
        ({"job": "bert-ft"}, True),
        ({"job": "bert"}, False),
        ({"job": "BERT-FT"}, False),
        ({"job": "bert-*"}, True),
        ({"job": "*-ft"}, True),
        ({"job": "b*t*t"}, True),
        ({"job": "bert-?t"}, False),
        ({"job": "[b]ert-ft"}, False),
        ({"job": "*"}, True),
        ({"queue": "*"}, True),
        ({"queue": "**"}, False),
        ({"queue": "a"}, False),
        ({"namespace": "ml", "job": "bert-ft"}, True),
        ({"namespace": "other", "job": "bert-ft"}, False),
        ({"project": "nlp"}, False),
        ({"project": "*"}, True),
        ({"id": "bert-ft"}, False),
    ],
)
def test_what_matches(pattern: dict[str, str], expected: bool) -> None:
    assert matches(pattern, JOB) is expected


def test_a_name_with_brackets_is_matched_by_itself() -> None:
    assert matches({"job": "sweep[1]?"}, {"job": "sweep[1]?"})


def test_many_stars_take_no_time() -> None:
    assert not matches({"job": "*a" * 200 + "b"}, {"job": "a" * 5000})


def test_the_order_of_specificity() -> None:
    from_general_to_specific = [
        {},
        {"namespace": "ml"},
        {"project": "nlp*"},
        {"project": "nlp"},
        {"project": "nlp", "namespace": "ml"},
        {"queue": "team-*"},
        {"queue": "team-a"},
        {"queue": "team-a", "namespace": "ml"},
        {"pipeline": "p"},
        {"pipeline": "p", "queue": "team-a", "namespace": "ml"},
        {"job": "b*"},
        {"job": "bert"},
        {"job": "bert", "namespace": "ml"},
        {"job": "bert", "pipeline": "p"},
        {"id": "bert-*"},
        {"id": "bert-20261121-063320-1f2e"},
        {"id": "bert-20261121-063320-1f2e", "job": "bert"},
    ]
    assert all(specificity(a) < specificity(b) for a, b in pairwise(from_general_to_specific))
    assert specificity({"job": "*"}) == specificity({})


def test_pairs_are_read() -> None:
    assert parse_match(["job=a=b", " queue = team-a ", "job=a=b"]) == {"job": "a=b", "queue": "team-a"}
    assert parse_match(["job=a,b, queue=team-a"]) == {"job": "a,b", "queue": "team-a"}, "as of run"
    assert parse_match(["id=bert-1f2e,project=nlp"]) == {"id": "bert-1f2e", "project": "nlp"}


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["team=a"], "--match has the unknown key 'team'; known are namespace, project, queue, pipeline, job, id"),
        (["job"], "--match is 'job': it must be KEY=VALUE, for example --match queue=team-a"),
        (["job="], "--match is 'job=': it must be KEY=VALUE"),
        (["=a"], "--match is '=a': it must be KEY=VALUE"),
        (["job=a", "job=b"], "--match gives job twice: 'a' and 'b'"),
    ],
)
def test_pairs_that_cannot_be(pairs: list[str], said: str) -> None:
    with pytest.raises(HintError) as error:
        parse_match(pairs)
    assert said in str(error.value)
