"""Expressions are read as Argo's own language has them, and nothing that may be right is called wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.lint.expression import Call, Literal, Name, Operation, parse
from elastic_launcher.lint.expression_types import judge
from elastic_launcher.lint.expression_words import SyntaxFault, Unread
from tests.unit.lint.retry_cases import EXPRESSION

ONE, TWO, THREE = (Literal("number", text) for text in "123")
STATUS = Name(("lastRetry", "status"))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1 + 2 * 3", Operation("+", (ONE, Operation("*", (TWO, THREE))))),
        ("1 * 2 + 3", Operation("+", (Operation("*", (ONE, TWO)), THREE))),
        ("1 - 2 - 3", Operation("-", (Operation("-", (ONE, TWO)), THREE))),
        ("1 ** 2 ** 3", Operation("**", (ONE, Operation("**", (TWO, THREE))))),
        ("-1 < 2", Operation("<", (Operation("-", (ONE,)), TWO))),
        ("not 1 == 2", Operation("==", (Operation("!", (ONE,)), TWO))),
        ("1 or 2 and 3", Operation("||", (ONE, Operation("&&", (TWO, THREE))))),
        ("1 || 2 ? 2 : 3", Operation("?:", (Operation("||", (ONE, TWO)), TWO, THREE))),
        ("1..2", Operation("..", (ONE, TWO))),
        ("lastRetry.status", STATUS),
        ("lastRetry?.status", STATUS),
        ("lastRetry['status']", STATUS),
        ("sprig.trim(lastRetry.status,)", Call("sprig.trim", (STATUS,))),
        ("`a\\b`", Literal("text", "a\\b")),
        ("lastRetry.status not contains 'a'", Operation("!", (Operation("contains", (STATUS, Literal("text", "a"))),))),
    ],
)
def test_an_expression_is_read(text: str, read: object) -> None:
    assert parse(text) == read


@pytest.mark.parametrize(
    "text",
    [
        EXPRESSION,
        'lastRetry.status == "Error" and not (asInt(lastRetry.exitCode) in 128..160)',
        "asInt(retries) < 3 ? lastRetry.status in ['Error'] : false",
        'lastRetry.message startsWith "pod" || lastRetry.message endsWith "deleted"',
        'len(lastRetry.message) > 0 && upper(lastRetry.status) != "ERROR"',
        '"{{inputs.parameters.policy}}" == "retry"',
        "{{inputs.parameters.retry}} && true",
        'lastRetry.exitCode in [{{inputs.parameters.codes}}, "1"]',
        "(lastRetry.exitCode ?? '1') == '1'",
        "sprig.contains('a', lastRetry.message)",
        "jsonpath(lastRetry.message, '$.a') > 1",
        "int(lastRetry.exitCode) % 2 == 0 or float(lastRetry.duration) / 2 > 1.5e3",
        "lastRetry.exitCode == nil",
        'lastRetry.message matches "(?<why>evict|[[:space:]]*pre)" && lastRetry.message matches "pod(?i)deleted"',
        'lastRetry.message matches "[*+]+\\\\d("',
    ],
)
def test_what_works_is_not_found(text: str) -> None:
    assert list(judge(parse(text))) == []


@given(st.text(alphabet="()[]{}.,?:!&|=<>+-*/%^ \"'`#;\\\nab1lastRetry", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        list(judge(parse(text)))
    except (SyntaxFault, Unread) as error:
        assert str(error)


@pytest.mark.parametrize(
    "text", ["(" * 5000 + "1" + ")" * 5000, "1 + " * 4000 + "1", "1 + " * 2400 + "1", "!" * 9000 + "true"]
)
def test_what_is_too_deep_is_not_judged(text: str) -> None:
    with pytest.raises(Unread):
        list(judge(parse(text)))
