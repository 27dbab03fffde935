"""Editing one entry of a document: the rest stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.hints import HintError, edit, parse
from tests.support.hint_documents import hint, hints, text

JOB = {"job": "bert"}


def edited(before: str, match: dict[str, str], **numbers: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(edit(before, match, numbers))
    return found


def test_a_new_document_has_form_b_and_generation_1() -> None:
    assert edited("", JOB, allowed=3, guaranteed=1) == {
        "apiVersion": "elastic-hints/v1",
        "generation": 1,
        "hints": [{"match": JOB, "gpus": {"allowed": 3, "guaranteed": 1}}],
    }


def test_an_entry_keeps_its_other_fields() -> None:
    row = hint(1, 1, 3, match=JOB, colour="grün")
    before = text(hint(9), row, generation=7, note={"a": [1.5]})
    row["gpus"]["allowed"] = 2
    assert edited(before, JOB, allowed=2) == json.loads(text(hint(9), row, generation=8, note={"a": [1.5]}))
    assert "grün" in edit(before, JOB, {"allowed": 2})


def test_a_document_without_a_generation_gets_none() -> None:
    assert "generation" not in edited(text(hint(1, match=JOB)), JOB, allowed=2)


def test_a_star_in_a_match_names_nothing() -> None:
    found = edited(text(hint(1, match={"job": "bert", "queue": "*"})), JOB, allowed=2)
    assert found["hints"] == [hint(2, match={"job": "bert", "queue": "*"})]
    assert len(edited(text(hint(1)), {"job": "*"}, allowed=2)["hints"]) == 1


def test_of_equal_entries_the_one_that_wins_is_edited() -> None:
    rows = [hint(1, match=JOB), hint(2, match=JOB, priority=5), hint(3, match=JOB, priority=5)]
    numbers = [row["gpus"]["allowed"] for row in edited(text(*rows), JOB, allowed=9)["hints"]]
    assert numbers == [1, 9, 3]


def test_defaults_are_edited_without_a_match() -> None:
    found = edited(text(hint(1)), {}, allowed=2)
    assert (found["defaults"], found["hints"]) == (hint(2), [hint(1)])


def test_the_flat_form_stays_flat() -> None:
    flat = '{"default": "1:4", "job.bert": "2:6", "queue.a": "8"}'
    assert edited(flat, JOB, allowed=3) == {"default": "1:4", "job.bert": "2:3", "queue.a": "8"}
    assert edited(flat, {}, allowed=5, guaranteed=0)["default"] == "0:5"
    assert edited(flat, {"queue": "b"}, allowed=5)["queue.b"] == "5"


@pytest.mark.parametrize(
    ("before", "match", "numbers", "said"),
    [
        ("{", JOB, {"allowed": 1}, "not JSON"),
        (text(hint(-1)), JOB, {"allowed": 1}, "hints[0].gpus.allowed"),
        (text(hint(2, 2, match=JOB)), JOB, {"allowed": 1}, "hints[0].gpus.guaranteed"),
        (text(hint(2, limit=2, match=JOB)), JOB, {"allowed": 3}, "at most the limit, 2"),
        (text(), JOB, {"allowed": 100_001}, "100000 GPUs at most"),
        (text(*[hint()] * 1000), JOB, {"allowed": 1}, "1001 entries"),
        ('{"job.bert": "2:6"}', JOB, {"allowed": 1}, "guaranteed:allowed"),
        ('{"job.bert": "2"}', JOB, {"allowed": 1, "limit": 3}, "one match key and no limit"),
        ('{"job.bert": "2"}', {"job": "a", "queue": "b"}, {"allowed": 1}, "one match key and no limit"),
    ],
)
def test_what_could_not_be_used_is_not_written(
    before: str, match: dict[str, str], numbers: dict[str, int], said: str
) -> None:
    with pytest.raises(HintError) as error:
        edit(before, match, numbers)
    assert said in str(error.value)


@given(st.lists(hints(), max_size=3), st.integers(0, 40))
def test_only_the_edited_entry_changes(rows: list[dict[str, Any]], allowed: int) -> None:
    before = text(*rows, generation=1)
    after = parse(edit(before, {"queue": "q"}, {"allowed": allowed}))
    assert after.entries[: len(rows)] == parse(before).entries
    assert (after.entries[-1].allowed, after.generation) == (allowed, 2)
