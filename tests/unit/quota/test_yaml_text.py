"""YAML and JSON as plain values with their lines, and everything that parsers do not read alike."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from elastic_launcher.quota.projects import QuotaError
from elastic_launcher.quota.yaml_text import Loaded, load


def read(text: str | bytes) -> Loaded:
    return load(text, 10_000)


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads with either of PyYAML's parsers; its fast one is not there everywhere."""
    if request.param == "SafeLoader":
        monkeypatch.delattr(yaml, "CSafeLoader")


BLOCK = """# projects of the lab
a: 1
b:
- c: x
  d: [1.5, -2, "8"]
-
  e: |
    two
    lines
f.g: {h: true, i: null}
"""


@pytest.mark.usefixtures("loader")
def test_each_value_has_its_line() -> None:
    found = read(BLOCK)
    assert found.value == {
        "a": 1,
        "b": [{"c": "x", "d": [1.5, -2, "8"]}, {"e": "two\nlines\n"}],
        "f.g": {"h": True, "i": None},
    }
    paths = ("a", "b", "b[0].c", "b[0].d[2]", "b[1]", "b[1].e", "f.g.h")
    assert [found.line(path) for path in paths] == [2, 3, 4, 5, 7, 7, 10]


def test_what_is_missing_has_the_line_of_what_it_should_be_in() -> None:
    found = read(BLOCK)
    assert [found.line(path) for path in ("b[1].x", "b[7].x.y", "z", "")] == [7, 3, 2, 2]


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    "text", [BLOCK, "---\n" + BLOCK, BLOCK + "...\n", "\ufeff" + BLOCK, BLOCK.replace("\n", "\r\n")]
)
def test_marks_of_one_document_are_accepted(text: str) -> None:
    assert read(text).value == read(BLOCK).value
    assert read(text.encode()).value == read(BLOCK).value


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="\x7f")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc. ", max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(JSON_VALUES, st.sampled_from([None, 1, "\t"]))
def test_json_is_read_as_json(value: Any, indent: int | str | None) -> None:
    text = json.dumps(value, indent=indent)
    assert read(text).value == json.loads(text)


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0), ("1.0e-3", 0.001), ("0", 0), ("-0", 0), ("-12", -12), ("0.5", 0.5), ("9" * 19, 1e19),
        ("true", True), ("FALSE", False), ("null", None), ("~", None), ("NULL", None), ("y", "y"), ("0o10", "0o10"),
        ("1e", "1e"), ("1-2", "1-2"), ("2026-11-20", "2026-11-20"), ("<<", "<<"), ("=", "="), ("08", "08"),
        ('"no"', "no"), ("'010'", "010"), ('"1"', "1"), ('""', ""), (">\n  8", "8"),
    ],
)  # fmt: skip
def test_plain_texts_are_what_yaml_1_1_and_1_2_and_json_agree_on(text: str, value: Any) -> None:
    found = read(f"a: {text}").value["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text", ["no", "No", "yes", "on", "OFF"])
def test_booleans_of_yaml_1_1_must_be_in_quotes(text: str) -> None:
    with pytest.raises(QuotaError) as caught:
        read(f"a:\n- {text}")
    assert str(caught.value) == (
        f"line 2: a[0] is {text}, which YAML 1.1 reads as a boolean; put a text in quotes, or write true or false"
    )


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    "text", ["010", "0x10", "0b1", "1_000", "12:30", "+5", ".5", "5.", "1.5_0", ".nan", ".NaN", ".inf", "-.INF"]
)
def test_numbers_in_other_forms_must_be_plain_or_in_quotes(text: str) -> None:
    with pytest.raises(QuotaError) as caught:
        read(f"a: {text}")
    assert str(caught.value) == (
        f"line 1: a is {text}, which is no plain decimal number; write one such as 8 or 0.5, or a text in quotes"
    )


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("a: 1\nb: 2\na: 3", "a", 'line 3: "a" is there twice; each key is there once'),
        ('b: {a: 1,\n "a": 1}', "b.a", 'line 2: "a" is there twice (b.a); each key is there once'),
        ("a: &x 1\nb: *x", "b", "line 2: b is an alias (*x); write out what it stands for"),
        ("a: &x [*x]", "a[0]", "line 1: a[0] is an alias (*x); write out what it stands for"),
        ("a: &x {b: 1}\nc:\n  <<: *x", 'c["<<"]', 'line 3: c["<<"] is an alias (*x); write out what it stands for'),
        ("a: !!str 8", "a", 'line 1: a has the tag "tag:yaml.org,2002:str"; leave the tag out'),
        ("!x\na: 1", "", 'line 1: the document has the tag "!x"; leave the tag out'),
        ("a: 1\n---\nb: 2", "", "line 2: a second document starts here; all projects are in one: remove ---"),
        ("a: 1\n---\n", "", "line 2: a second document starts here; all projects are in one: remove ---"),
        ("a:\n  ? [b]\n  : 1", "a", "line 2: a key of a is no name; it must be one"),
        ("*x : 1", "", "line 1: a key of the document is no name; it must be one"),
        ("a: 1e999", "a", "line 1: a is 1e999, which is too large; write a smaller number"),
        ("a: 1\nb: \x00", "", "line 2: the document has the character U+0000; remove it, or escape it"),
        ("\x07a: 1", "", "line 1: the document has the character U+0007; remove it, or escape it"),
        ("a:\n\n- \ud83d", "", "line 3: the document has the character U+D83D; remove it, or escape it"),
        ("", "", "the document is empty; it must be a YAML or JSON object"),
        (" \n\t\n", "", "the document is empty; it must be a YAML or JSON object"),
        (b"a: \xff", "", "byte 3 of the document is not UTF-8; it must be YAML or JSON in UTF-8"),
        pytest.param("a" * 10_001, "", "the document has 10001 bytes; it must have 10000 at most", id="large"),
    ],
)
def test_what_is_refused_has_line_path_and_fix(text: str | bytes, path: str, said: str) -> None:
    with pytest.raises(QuotaError) as caught:
        read(text)
    assert (str(caught.value), caught.value.path) == (said, path)


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("level", ["[", "{a: ", "- "], ids=["lists", "objects", "block"])
def test_deep_nesting_is_refused_and_no_crash(level: str) -> None:
    with pytest.raises(QuotaError) as caught:
        read(level * 2000)
    assert str(caught.value) == "line 1: the document is nested too deeply; it must have 16 levels at most"


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "line", "fix"),
    [
        ("a:\n\tb: 1", 2, "indent with spaces, not with tabs"),
        ("a:\n- b: 1\n\tc: 1", 3, "indent with spaces, not with tabs"),
        ("a: 1\n  b: 2", 2, "mend it there, or just before"),
        ("a: b: c", 1, "mend it there, or just before"),
        ('a: "x', 1, "mend it there, or just before"),
        ("a: @b", 1, "mend it there, or just before"),
    ],
)
def test_what_is_not_yaml_has_a_line_and_a_fix(text: str, line: int, fix: str) -> None:
    with pytest.raises(QuotaError, match=rf"line {line}: not YAML: .* \(column \d+\); {fix}$") as caught:
        read(text)
    assert caught.value.line == line


@given(st.text(max_size=60) | st.text("[]{},:-?&*!|>'\"%@#a1 \n\t\x85\u2028", max_size=40) | st.binary(max_size=40))
@example("# only a comment")
@example("a: \ufeff")
@example("%YAML 3.0\n---\n")
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    try:
        found = read(text)
    except QuotaError as error:
        assert str(error)
    else:
        assert found.line("") >= 1


def test_what_is_missing_without_pyyaml_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(QuotaError, match=r"reading projects needs PyYAML: pip install 'elastic-launcher\[quota\]'"):
        read("a: 1")
