"""Words of YAML mean what they mean to Kubernetes, and every node knows its line."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launcher.lint.documents.read import read
from elastic_launcher.lint.documents.scalars import pipeline_scalar, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:3", "1:3"),
        ("2026-01-01", "2026-01-01"),
        ("1e3", 1000.0),
        ("5", 5),
        ("-5", -5),
        ("0", 0),
        ("017", 15),
        ("0x1F", 31),
        ("1_000", 1000),
        ("08", 8.0),
        ("5.", 5.0),
        ("5.x", "5.x"),
        ("yes", True),
        ("off", False),
        ("y", True),
        ("true", True),
        ("True", True),
        ("tRue", "tRue"),
        ("~", None),
        ("", None),
        ("null", None),
        ("9" * 30, float("9" * 30)),
        ("-.inf", float("-inf")),
        ("500m", "500m"),
    ],
)
def test_a_word_means_what_kubernetes_reads(text: str, value: Any) -> None:
    assert (scalar(text), type(scalar(text))) == (value, type(value))


WORDS = ["y", "Y", "n", "N", "yes", "No", "on", "OFF"]


@pytest.mark.parametrize("word", WORDS)
def test_a_pipeline_has_texts_where_kubernetes_has_booleans(word: str) -> None:
    assert pipeline_scalar(word) == word
    assert isinstance(scalar(word), bool)


@pytest.mark.parametrize(("word", "value"), [("true", True), ("False", False), ("~", None), ("5", 5), ("1e3", 1000.0)])
def test_other_words_mean_the_same_in_a_pipeline(word: str, value: Any) -> None:
    assert pipeline_scalar(word) == value == scalar(word)


def test_each_document_is_read_as_its_own_reader_reads_it() -> None:
    text = "deploymentSpec: {a: n}\n---\nspec: {a: n}\n---\npipelineSpec: {root: {a: y}}\n---\n- deploymentSpec\n- y\n"
    assert [one.value for one in read(text, "a.yaml")[0]] == [
        {"deploymentSpec": {"a": "n"}},
        {"spec": {"a": False}},
        {"pipelineSpec": {"root": {"a": "y"}}},
        ["deploymentSpec", True],
    ]


def test_quotes_and_tags_make_texts() -> None:
    documents, findings = read("a: '5'\nb: \"5\"\nc: !!str 5\nd: !!int '5'\ne: |\n  5\nf: 5\n", "a.yaml")
    assert findings == []
    assert documents[0].value == {"a": "5", "b": "5", "c": "5", "d": 5, "e": "5\n", "f": 5}


def test_every_node_has_its_line() -> None:
    text = "a:\n  b:\n  - x\n  - {c: 1,\n     d: 2}\n---\ne: f\n"
    (first, second), _ = read(text, "a.yaml")
    lines = {node.where: node.line for document in (first, second) for node in document.walk()}
    assert lines == {"": 7, "a": 1, "a.b": 2, "a.b[0]": 3, "a.b[1]": 4, "a.b[1].c": 4, "a.b[1].d": 5, "e": 7}


def test_merged_fields_give_way_to_own_ones() -> None:
    (document,), findings = read("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n", "a.yaml")
    assert findings == []
    assert document.at("b").value == {"x": 1, "y": 3}


def test_what_is_not_there_has_the_line_of_what_is() -> None:
    (document,), _ = read("a:\n  b: 1\n", "a.yaml")
    absent = document.at("a", "c", 0, "d")
    assert (absent.there, absent.line, absent.where) == (False, 1, "a.c[0].d")
