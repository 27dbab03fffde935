"""Expressions are read as Argo's own language has them, and nothing that may be right is called wrong."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.lint.expressions.parser import Call, Literal, Name, Operation, parse
from elastic_launcher.lint.expressions.types import judge
from elastic_launcher.lint.expressions.words import SyntaxFault, Unread
from tests.support.lint.retry_cases import EXPRESSION

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
        "asFloat(lastRetry.duration) < 120 && int(float(lastRetry.duration)) < 120",
        "jsonpath(lastRetry.message, '$.a') > 1",
        "int(lastRetry.exitCode) % 2 == 0 or float(lastRetry.duration) / 2 > 1.5e3",
        "lastRetry.exitCode == nil",
        'lastRetry.message matches "(?<why>evict|[[:space:]]*pre)" && lastRetry.message matches "pod(?i)deleted"',
        'lastRetry.message matches "[*+]+\\\\d("',
    ],
)
def test_what_works_is_not_found(text: str) -> None:
    assert list(judge(parse(text))) == []


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("lastRetry.exitCode > 1", "write asInt(lastRetry.exitCode)"),
        ("retries >= 2", "write asInt(retries)"),
        ("120 > lastRetry.duration", "write asFloat(lastRetry.duration)"),
        ("lastRetry.duration == 60", "write asFloat(lastRetry.duration)"),
        ("asInt(lastRetry.duration) < 120", "write asFloat(lastRetry.duration)"),
        ("int(lastRetry.duration) < 120", "write asFloat(lastRetry.duration)"),
        ("lastRetry.exitCode == 75", "write asInt(lastRetry.exitCode), or put quotes around the number"),
        ("lastRetry.exitCode in [75, 76]", "write asInt(lastRetry.exitCode), or put quotes around the numbers"),
        ("75 in [lastRetry.exitCode]", "write asInt(lastRetry.exitCode), or put quotes around the numbers"),
        ('asInt(lastRetry.exitCode) == "75"', 'leave out the quotes around "75"'),
        ('asInt(lastRetry.exitCode) in ["75", "76"]', 'leave out the quotes around "75" and "76"'),
        ('lastRetry.duration > "60"', 'write asFloat(lastRetry.duration), and leave out the quotes around "60"'),
        ("lastRetry.exitCode > retries", "write asInt(lastRetry.exitCode) and asInt(retries)"),
        ("lastRetry.exitCode > lastRetry.message", "compare numbers"),
        ("lastRetry.exitCode + 1 == 2", "write asInt(lastRetry.exitCode)"),
        ("lastRetry.duration * 2 > 60", "write asFloat(lastRetry.duration)"),
        ("lastRetry.status == 1", "compare values of one type"),
        ("lastRetry.exitCode == true", "compare values of one type"),
        ("lastRetry.message * 2 > 1", "reckon with numbers"),
        ("!lastRetry.exitCode", "compare it with something"),
        ("retries in 3", "write a list, in brackets"),
    ],
)
def test_the_fix_names_what_is_wrong_and_the_function_for_it(text: str, fix: str) -> None:
    (found,) = judge(parse(text))
    assert (found.rule, found.fix) == ("retry-expression-type", fix)


@pytest.mark.parametrize(
    "pattern",
    ["(?i)foo(?-i)Bar", "(?-i)Bar", "(?i-s)Bar", "(?is:a|b)c", "(?U)a+", "^*a", "$+", "(^|a)?b", "[(?=]", "[a||b]"]
    + [
        "a(?i)*",
        "[]a]+?",
        "[^]a]",
        "[[:alpha:]-]",
        "(?P<why>a)(?<who>b)",
        "a{,3}+",
        "a{1000}",
        "a{x}*",
        "[*+]+",
        "{,}a",
        "a+(?i)*",
    ],
)
def test_a_pattern_of_go_is_not_found(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(judge(parse(f'lastRetry.message matches "{pattern}"'))) == []


@pytest.mark.parametrize(
    "pattern",
    ["a++", "a*+", "a?+", "a{2}+", "a{2}{3}", "a+?+", "a**", "a{1001}", "a{2,1001}", "a{3,2}", "(?x)a", "(?a)x"]
    + ["(?u)x", "(?L:x)", "(?i-)x", "a(", "a)", "[a", "[b-a]", "*a", "(*a)", "a|*", "(?=a)", "(?<=a)b", "(?>a)"]
    + ["(?#a)", "(?P=a)", "(?P<a>a)(?P<a>b)", "(?P<1>a)"],
)
def test_a_pattern_that_go_has_not_is_found(pattern: str) -> None:
    (found,) = judge(parse(f'lastRetry.message matches "{pattern}"'))
    assert found.rule == "retry-expression-syntax"


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
