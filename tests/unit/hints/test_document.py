"""What a document says, and every way in which it can be wrong (the bad-input table of the hints contract)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.hints import HintError, parse
from elastic_launcher.hints.document import Entry
from tests.support.hint_documents import hint, hints, text

EXAMPLE = """{"apiVersion": "elastic-hints/v1", "generation": 42, "observedAt": "2026-11-20T10:00:00Z",
 "ttlSeconds": 120, "source": {"kind": "kueue", "object": "clusterqueue/team-a", "resourceVersion": "190175"},
 "defaults": {"gpus": {"allowed": 1}},
 "hints": [
  {"match": {"namespace": "ml", "queue": "team-a", "pipeline": "bert", "job": "*"}, "priority": 50,
   "gpus": {"guaranteed": 2, "allowed": 6, "limit": 8}, "flavor": "a100", "gpusPerNode": 2,
   "sizes": [8, 4, 2], "growAfterSeconds": 300,
   "reclaim": {"by": "2026-11-20T10:00:30Z", "to": 2, "reason": "InCohortReclamation"}}]}"""


def test_the_contracts_example() -> None:
    found = parse(EXAMPLE)
    assert (found.generation, found.observed_at, found.ttl_seconds, found.warnings) == (42, 1795168800.0, 120.0, ())
    assert found.defaults == Entry("defaults", {}, 1)
    match = {"namespace": "ml", "queue": "team-a", "pipeline": "bert", "job": "*"}
    assert found.entries == (Entry("hints[0]", match, 6, 2, 8, 50, 2, (2, 4, 8), 300.0, 2, 1795168830.0),)


def test_the_flat_form() -> None:
    found = parse(
        '{"default": "1:4", "queue.team-a": "8", "job.bert-ft.v2": " 2 : 6 ", "project.nlp": "9", "id.b": "3"}'
    )
    assert found.defaults == Entry("default", {}, 4, 1)
    assert found.entries == (
        Entry("queue.team-a", {"queue": "team-a"}, 8),
        Entry("job.bert-ft.v2", {"job": "bert-ft.v2"}, 6, 2),
        Entry("project.nlp", {"project": "nlp"}, 9),
        Entry("id.b", {"id": "b"}, 3),
    )


@pytest.mark.parametrize(
    "least",
    ['{"apiVersion": "elastic-hints/v1", "hints": []}', '{"apiVersion": "elastic-hints/v1", "defaults": %s}'],
)
def test_only_the_version_and_one_of_defaults_and_hints_are_needed(least: str) -> None:
    found = parse(least.replace("%s", json.dumps(hint(3))))
    assert (found.generation, found.observed_at, found.ttl_seconds, found.warnings) == (None, None, None, ())


def test_an_entry_and_defaults_may_say_how_long_a_job_waits() -> None:
    found = parse(text(hint(3, waitSeconds=86400), defaults=hint(0, waitSeconds=0)))
    assert (found.entries[0].wait, found.defaults and found.defaults.wait, found.warnings) == (86400.0, 0.0, ())


@pytest.mark.parametrize(
    "odd",
    [
        EXAMPLE.replace("\n", "\r\n"),
        "\ufeff" + EXAMPLE,
        ("\ufeff" + EXAMPLE).encode(),
        EXAMPLE + "  \n\n\t ",
        "\n  " + EXAMPLE,
        EXAMPLE.encode(),
    ],
    ids=["CRLF", "BOM", "BOM in bytes", "trailing spaces", "leading spaces", "bytes"],
)
def test_whitespace_and_byte_order_marks_are_accepted(odd: str | bytes) -> None:
    assert parse(odd) == parse(EXAMPLE)


def entry(gpus: str) -> str:
    """A document whose fourth entry has these GPUs, as text."""
    good = json.dumps(hint(1))
    return f'{{"apiVersion": "elastic-hints/v1", "hints": [{good}, {good}, {good}, {{"gpus": {gpus}}}]}}'


GPUS = "it must be a whole number of GPUs, 0 or more"


@pytest.mark.parametrize(
    ("gpus", "path", "said"),
    [
        ('{"allowed": -2}', "allowed", f'"allowed" is -2 (hints[3].gpus.allowed); {GPUS}'),
        ('{"allowed": 1.5}', "allowed", f'"allowed" is 1.5 (hints[3].gpus.allowed); {GPUS}'),
        ('{"allowed": 2.0}', "allowed", f'"allowed" is 2.0 (hints[3].gpus.allowed); {GPUS}'),
        ('{"allowed": true}', "allowed", f'"allowed" is true (hints[3].gpus.allowed); {GPUS}'),
        ('{"allowed": null}', "allowed", f'"allowed" is null (hints[3].gpus.allowed); {GPUS}'),
        ('{"allowed": "8Gi"}', "allowed", f'"allowed" is "8Gi" (hints[3].gpus.allowed); {GPUS}'),
        ('{"allowed": "8"}', "allowed", f'"allowed" is "8" (hints[3].gpus.allowed); {GPUS}'),
        ('{"allowed": [8]}', "allowed", f'"allowed" is a list (hints[3].gpus.allowed); {GPUS}'),
        ('{"allowed": NaN}', "allowed", '"allowed" is NaN (hints[3].gpus.allowed); it must be a JSON number'),
        ('{"allowed": -Infinity}', "allowed", '"allowed" is -Infinity (hints[3].gpus.allowed); it must be'),
        ('{"allowed": 1e999}', "allowed", '"allowed" is Infinity (hints[3].gpus.allowed); it must be'),
        ('{"allowed": 1, "limit": %s}' % ("9" * 5000), "limit", '"limit" is Infinity (hints[3].gpus.limit)'),
        ('{"allowed": 1%s}' % ("0" * 30), "allowed", '"allowed" is 1e+30 (hints[3].gpus.allowed); it must be'),
        ('{"allowed": 100001}', "allowed", "(hints[3].gpus.allowed); it must be 100000 GPUs at most"),
        (
            '{"guaranteed": 3, "allowed": 2}',
            "guaranteed",
            '"guaranteed" is 3 (hints[3].gpus.guaranteed); it must be at most what is allowed, 2',
        ),
        (
            '{"allowed": 3, "limit": 2}',
            "allowed",
            '"allowed" is 3 (hints[3].gpus.allowed); it must be at most the limit, 2',
        ),
        ("{}", "allowed", f'"allowed" is missing (hints[3].gpus.allowed); {GPUS}'),
        (
            '{"allowed": 1, "allowed": 2}',
            "allowed",
            '"allowed" is there twice (hints[3].gpus.allowed); each key is there once',
        ),
    ],
)
def test_wrong_numbers_of_gpus_are_refused_with_their_place(gpus: str, path: str, said: str) -> None:
    with pytest.raises(HintError) as error:
        parse(entry(gpus))
    assert said in str(error.value)
    assert error.value.path == f"hints[3].gpus.{path}"


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ('{"allowed": 08}', "a number has no leading zeros, and here one has, at line 2, column 15"),
        ('{"allowed": -01}', "leading zeros"),
        ('{"allowed": 10 1}', "Expecting ',' delimiter"),
        ('{"allowed": "0"1}', "Expecting ',' delimiter"),
        ('{"allowed": +8}', "line 2, column 14"),
        ('{"allowed": 8', "line 2"),
        ("{'allowed': 8}", "line 2, column 3"),
    ],
)
def test_what_is_not_json_is_refused_with_line_and_column(gpus: str, said: str) -> None:
    with pytest.raises(HintError, match="^not JSON: .*; the document must be one JSON object$") as error:
        parse(entry("\n " + gpus))
    assert said in str(error.value)


def changed(**more: Any) -> str:
    return text(hint(4, match={"job": "a"}), **more)


def one(**more: Any) -> str:
    return text(hint(4, **more))


@pytest.mark.parametrize(
    ("wrong", "path", "said"),
    [
        ("", "", "the document is empty"),
        (" \n", "", "the document is empty"),
        ("[]", "", "the document is a list; it must be a JSON object"),
        ("null", "", "the document is null"),
        ("{}", "apiVersion", '"apiVersion" is missing; it must be "elastic-hints/v1"'),
        ('{"hints": []}', "apiVersion", '"apiVersion" is missing'),
        (changed(apiVersion="elastic-hints/v2"), "apiVersion", '"apiVersion" is "elastic-hints/v2"; it must be'),
        (changed(apiVersion=1), "apiVersion", '"apiVersion" is 1; it must be "elastic-hints/v1"'),
        ('{"apiVersion": "elastic-hints/v1"}', "hints", 'neither "hints" nor "defaults" is there'),
        (
            '{"apiVersion": "elastic-hints/v1", "hints": [], "hints": []}',
            "hints",
            '"hints" is there twice; each key',
        ),
        (changed(generation=-1), "generation", '"generation" is -1; it must be a whole number, 0 or more'),
        (changed(generation=1.0), "generation", '"generation" is 1.0'),
        (changed(generation=True), "generation", '"generation" is true'),
        (changed(generation="42"), "generation", '"generation" is "42"'),
        (changed(generation=None), "generation", '"generation" is null'),
        (changed(observedAt="yesterday"), "observedAt", '"observedAt" is "yesterday"; it must be a time such as "2026'),
        (changed(observedAt=1795168800), "observedAt", '"observedAt" is 1795168800; it must be a time'),
        (changed(observedAt="0001-01-01T00:00:00+23:59x"), "observedAt", '"observedAt" is'),
        (changed(ttlSeconds=-1), "ttlSeconds", '"ttlSeconds" is -1; it must be a number of seconds'),
        (changed(ttlSeconds=True), "ttlSeconds", '"ttlSeconds" is true'),
        (changed(source="kueue"), "source", '"source" is "kueue"; it must be an object'),
        (changed(defaults=[]), "defaults", '"defaults" is a list; it must be an object'),
        (changed(defaults={}), "defaults.gpus", '"gpus" is missing (defaults.gpus); it must be an object'),
        (changed(hints={}), "hints", '"hints" is an object; it must be a list of entries'),
        (text(7), "hints[0]", '"hints[0]" is 7; it must be an object'),  # type: ignore[arg-type]
        (text({"gpus": 4}), "hints[0].gpus", '"gpus" is 4 (hints[0].gpus); it must be an object with "allowed"'),
        (one(match="a"), "hints[0].match", '"match" is "a" (hints[0].match); it must be an object'),
        (one(match={"team": "a"}), "hints[0].match.team", '"team" is unknown (hints[0].match.team); it must be one of'),
        (one(match={"job": ""}), "hints[0].match.job", '"job" is "" (hints[0].match.job); it must be a name, or "*"'),
        (one(match={"job": 1}), "hints[0].match.job", '"job" is 1 (hints[0].match.job)'),
        (one(priority="high"), "hints[0].priority", '"priority" is "high" (hints[0].priority); it must be a whole'),
        (one(flavor=1), "hints[0].flavor", '"flavor" is 1 (hints[0].flavor); it must be a text'),
        (one(gpusPerNode=0), "hints[0].gpusPerNode", '"gpusPerNode" is 0 (hints[0].gpusPerNode); it must be a whole'),
        (one(sizes=2), "hints[0].sizes", '"sizes" is 2 (hints[0].sizes); it must be a list'),
        (one(sizes=[2, 0]), "hints[0].sizes[1]", '"sizes[1]" is 0 (hints[0].sizes[1]); it must be a whole number, 1'),
        (one(growAfterSeconds=-0.5), "hints[0].growAfterSeconds", '"growAfterSeconds" is -0.5'),
        (one(waitSeconds="day"), "hints[0].waitSeconds", '"waitSeconds" is "day" (hints[0].waitSeconds); it must be a'),
        (one(reclaim=2), "hints[0].reclaim", '"reclaim" is 2 (hints[0].reclaim); it must be an object with "to"'),
        (one(reclaim={}), "hints[0].reclaim.to", '"to" is missing (hints[0].reclaim.to)'),
        (one(reclaim={"to": 1, "by": "9999-12-31T23:59:59.999999Z"}), "hints[0].reclaim.by", "it must be a time"),
        (one(reclaim={"to": 1, "by": "0001-01-01T00:00:00+05:00"}), "hints[0].reclaim.by", "it must be a time"),
        (one(reclaim={"to": 1, "by": 3}), "hints[0].reclaim.by", '"by" is 3 (hints[0].reclaim.by); it must be a time'),
        (one(leave=3), "hints[0].leave", '"leave" is 3 (hints[0].leave); it must be a list of numbers of nodes'),
        (
            one(match={"id": "a"}, leave=[2, 0]),
            "hints[0].leave[1]",
            '"leave[1]" is 0 (hints[0].leave[1]); it must be a whole number, 1 or more',
        ),
        (one(match={"id": "a"}, leave=["node-1"]), "hints[0].leave[0]", '"leave[0]" is "node-1"'),
        (
            one(match={"job": "a"}, leave=[2]),
            "hints[0].leave",
            '"leave" names nodes of one job, and the entry matches others too (hints[0].leave); give its "match" the '
            "id of the job",
        ),
        (one(match={"id": "a*"}, leave=[2]), "hints[0].leave", "the entry matches others too (hints[0].leave)"),
        (text(*[hint()] * 1001), "hints", '"hints" has 1001 entries; it must have 1000 at most'),
        (json.dumps({f"job.j{i}": "1" for i in range(1001)}), "hints", "has 1001 entries"),
        (changed() + " " * 2**20, "", "bytes; it must have 1048576 at most"),
        ("[" * 10**5, "", "too deeply nested"),
        (b"\xff\xfe{\x00}\x00", "", "byte 0 of the document is not UTF-8"),
    ],
)
def test_wrong_documents_are_refused_with_their_place(wrong: str | bytes, path: str, said: str) -> None:
    with pytest.raises(HintError) as error:
        parse(wrong)
    assert said in str(error.value)
    assert error.value.path == path
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "path", "said"),
    [
        ({"default": "08"}, "default", '"default" is "08"; it must be a text of GPUs'),
        ({"default": "+8"}, "default", '"default" is "+8"'),
        ({"default": "-1"}, "default", '"default" is "-1"'),
        ({"default": "1.5"}, "default", '"default" is "1.5"'),
        ({"default": "8Gi"}, "default", '"default" is "8Gi"'),
        ({"default": "1٣"}, "default", '"default" is "1\\u0663"'),
        ({"default": ""}, "default", '"default" is ""'),
        ({"default": 8}, "default", '"default" is 8; it must be a text of GPUs'),
        ({"default": "1:2:3"}, "default", '"default" is "1:2:3"'),
        ({"default": "01:2"}, "default", '"default" is "01:2"'),
        ({"job.a": "3:2"}, "job.a", '"job.a" is "3:2"; it must be guaranteed:allowed, the first not larger'),
        ({"job.a": "100001"}, "job.a", '"job.a" is "100001"; it must be 100000 GPUs at most'),
        ({"job.a": "9" * 5000}, "job.a", '"job.a" is "999'),
        ({"default": "1", "team.a": "2"}, "team.a", '"team.a" is no key of the flat form; it must be default, '),
        ({"job.": "1"}, "job.", '"job." is no key of the flat form'),
        ({"job.\x1b[31m\n": "x"}, r"job.\u001b[31m\n", r'"job.\u001b[31m\n" is "x"; it must be a text of GPUs'),
    ],
)
def test_wrong_flat_documents_are_refused_with_their_key(wrong: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(HintError) as error:
        parse(json.dumps(wrong))
    assert said in str(error.value)
    assert error.value.path == path


def test_unknown_fields_are_ignored_with_a_warning_that_names_them() -> None:
    row = hint(4, reclaim={"to": 1, "so": 1}, colour="red")
    row["gpus"]["wanted"] = 9
    found = parse(text(row, defaults=hint(1, match={"job": "a"}), note="", **{"a\x1b\n": 1}))
    assert found.warnings == (
        "note is unknown, and ignored",
        '["a\\u001b\\n"] is unknown, and ignored',
        "hints[0].colour is unknown, and ignored",
        "hints[0].gpus.wanted is unknown, and ignored",
        "hints[0].reclaim.so is unknown, and ignored",
        "defaults.match is unknown, and ignored",
    )


def test_what_contradicts_itself_but_has_a_meaning_is_warned_of() -> None:
    found = parse(text(hint(4, 2, sizes=[3, 4], gpusPerNode=2, reclaim={"to": 1}), ttlSeconds=60))
    assert found.warnings == (
        "hints[0].reclaim.to is 1, fewer than the 2 that are guaranteed; it is followed",
        "size 3 of hints[0].sizes is never used: it is no multiple of gpusPerNode, 2",
        '"ttlSeconds" is ignored, since "observedAt" is missing',
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    hints(),
    st.sampled_from(["match", "priority", "gpus", "gpusPerNode", "sizes", "growAfterSeconds", "waitSeconds", "leave"]),
    JSON,
)
def test_any_value_anywhere_is_read_or_refused_in_order(row: dict[str, Any], key: str, value: Any) -> None:
    try:
        found = parse(text(row | {key: value}))
    except HintError as error:
        assert error.path.startswith(f"hints[0].{key}")
        return
    for one_entry in found.entries:
        guaranteed = 0 if one_entry.guaranteed is None else one_entry.guaranteed
        limit = one_entry.allowed if one_entry.limit is None else one_entry.limit
        assert 0 <= guaranteed <= one_entry.allowed <= limit


@given(st.binary(max_size=60) | st.text(max_size=60) | JSON.map(json.dumps))
def test_any_text_is_read_or_refused(garbage: str | bytes) -> None:
    try:
        assert parse(garbage).entries is not None
    except HintError as error:
        assert str(error)
