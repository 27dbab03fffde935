"""Checks the types of an expression: what it compares must be of one type, and its result a boolean.

In a retry expression everything that is known of the last attempt is a text, the exit code too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from elastic_launcher.lint.documents.workflow import PLACEHOLDER
from elastic_launcher.lint.expressions.parser import Call, Expression, Items, Literal, Name, Open, Operation
from elastic_launcher.lint.expressions.patterns import pattern_fault
from elastic_launcher.lint.expressions.words import Unread

STATUSES = ("Failed", "Error")
"""What an attempt's status can be that is asked about: a script's end, and a pod that was taken away."""
LAST_RETRY = ("exitCode", "status", "duration", "message")
NUMBERS_AS_TEXT = {("lastRetry", "exitCode"): "asInt", ("lastRetry", "duration"): "asFloat", ("retries",): "asInt"}
"""Texts that hold a number, and what makes one of them."""
ANY = "any"
_MAPS = ("lastRetry", "sprig")
_ORDER = ("<", ">", "<=", ">=")
_EQUALITY = ("==", "!=")
_OF_TEXTS = ("matches", "contains", "startsWith", "endsWith")
_ARITHMETIC = ("+", "-", "*", "/", "%", "**", "^", "..")
_RETURNS = {
    **dict.fromkeys(("asInt", "asFloat", "int", "float", "len", "abs", "ceil", "floor", "round"), "number"),
    **dict.fromkeys(("indexOf", "lastIndexOf", "sum", "mean", "median"), "number"),
    **dict.fromkeys(("string", "trim", "trimPrefix", "trimSuffix", "upper", "lower"), "text"),
    **dict.fromkeys(("replace", "repeat", "join", "type", "toJson", "toJSON", "toBase64", "fromBase64"), "text"),
    **dict.fromkeys(("hasPrefix", "hasSuffix"), "bool"),
    **dict.fromkeys(("split", "splitAfter", "keys", "values", "sort", "uniq", "reverse", "flatten", "concat"), ANY),
    **dict.fromkeys(("min", "max", "first", "last", "get", "take", "fromJSON", "fromPairs", "toPairs"), ANY),
    **dict.fromkeys(("now", "duration", "date", "jsonpath"), ANY),
}
"""What functions give, as far as they are known here."""
_STATUS = ("lastRetry", "status")
_DURATION = Name(("lastRetry", "duration"))
_TO_WHOLE = ("asInt", "int")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_COMPARE = "compare it with something"
_PLAIN = {"text": "a text", "number": "a number", "bool": "true or false", "nil": "nil", "list": "a list"}


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in an expression: the rule that it breaks, why, and what to write."""

    rule: str
    reason: str
    fix: str


def judge(found: Expression) -> Iterator[Fault]:
    """Finds what can't work in a retry expression.

    Raises:
        Unread: If it calls what this linter does not know.
    """
    try:
        yield from _faults(found)
        result = _type(found)
    except RecursionError:
        raise Unread("its depth") from None
    if result not in (ANY, "bool"):
        reason = f"its result is {_PLAIN[result]}, not true or false: the retry ends in an error"
        yield _mistyped(reason, _COMPARE)


def _faults(found: Expression, *, is_denied: bool = False) -> Iterator[Fault]:
    if isinstance(found, Name):
        yield from _name_faults(found)
    elif isinstance(found, Call):
        if found.function not in _RETURNS and not found.function.startswith("sprig."):
            raise Unread(f"the function {found.function}")
        if found.function in _TO_WHOLE and found.arguments == (_DURATION,):
            reason = f'{_shown(found)} ends in an error: the duration is a text such as "20.73", no whole number'
            yield _mistyped(reason, f"write {_as_number(_DURATION)}")
        for argument in found.arguments:
            yield from _faults(argument)
    elif isinstance(found, Operation):
        yield from _operation_faults(found)
        yield from _status_faults(found, is_denied or found.operator == "!=")
        for operand in found.operands:
            yield from _faults(operand, is_denied=found.operator == "!")
    elif isinstance(found, (Items, Open)):
        for part in found.items if isinstance(found, Items) else found.parts:
            yield from _faults(part)


def _name_faults(found: Name) -> Iterator[Fault]:
    shown = ".".join(found.parts)
    fix = f"write {', '.join(f'lastRetry.{name}' for name in LAST_RETRY)}, or retries"
    if found.parts[0] == "lastRetry" and len(found.parts) > 1 and found.parts[1] not in LAST_RETRY:
        yield Fault("retry-expression-name", f"there is no {shown}: it is empty after every attempt", fix)
    elif found.parts[0] not in (*_MAPS, "retries"):
        yield Fault("retry-expression-name", f"there is no {shown} in a retry expression: it ends in an error", fix)


def _operation_faults(found: Operation) -> Iterator[Fault]:
    kinds = [_type(operand) for operand in found.operands]
    shown = _shown(found)
    if found.operator in (*_ORDER, *_EQUALITY):
        yield from _comparison_faults(found, kinds, shown)
    elif found.operator == "in":
        yield from _membership_faults(found, kinds[0], shown)
    elif found.operator in ("&&", "||", "!", "?:"):
        needed = kinds[:1] if found.operator == "?:" else kinds
        for kind in needed:
            if kind not in (ANY, "bool"):
                reason = f"{_PLAIN[kind]} stands where {shown} needs true or false: the retry ends in an error"
                yield _mistyped(reason, _COMPARE)
    elif found.operator in _OF_TEXTS:
        if found.operator == "matches":
            yield from _pattern_faults(found.operands[1])
        for kind in kinds:
            if kind not in (ANY, "text"):
                reason = f"{shown} needs texts, and has {_PLAIN[kind]}: the retry ends in an error"
                yield _mistyped(reason, "give it a text")
    elif found.operator in _ARITHMETIC and len(kinds) == 2:
        allowed = ("number", "text", ANY) if found.operator == "+" else ("number", ANY)
        if any(kind not in allowed for kind in kinds) or {"text", "number"} <= set(kinds):
            reason = f"{shown} can't be reckoned with {' and '.join(_PLAIN.get(kind, kind) for kind in kinds)}"
            yield _mistyped(reason, _with_numbers(found) or "reckon with numbers")


def _pattern_faults(pattern: Expression) -> Iterator[Fault]:
    """Finds a regular expression that is none for Go."""
    text = pattern.text if isinstance(pattern, Literal) and pattern.type == "text" else ""
    if "\\" in text or PLACEHOLDER in text:  # an escape is read twice; what Argo fills in is not known
        return
    if fault := pattern_fault(text):
        reason = f'"{text}" is no regular expression ({fault}): the retry ends in an error'
        yield Fault("retry-expression-syntax", reason, "mend it")


def _status_faults(found: Operation, is_denied: bool) -> Iterator[Fault]:
    """Finds a status that no attempt has; asked whether it is not the attempt's, it does no harm."""
    if found.operator not in (*_EQUALITY, "in"):
        return
    if not any(isinstance(one, Name) and one.parts == _STATUS for one in found.operands):
        return
    texts = [one.text for side in found.operands for one in _literals(side) if one.type == "text"]
    known = [text for text in texts if text in STATUSES or PLACEHOLDER in text]
    for text in texts:
        if text not in known:
            reason = f'no attempt ends with the status "{text}": no status is ever equal to it'
            rule = "retry-expression-status" if known or is_denied else "retry-expression-value"
            yield Fault(rule, reason, f"write {' or '.join(STATUSES)}, as they are")


def _literals(found: Expression) -> Iterator[Literal]:
    for one in found.items if isinstance(found, Items) else (found,):
        if isinstance(one, Literal):
            yield one


def _comparison_faults(found: Operation, kinds: list[str], shown: str) -> Iterator[Fault]:
    left, right = kinds
    if ANY in kinds or "nil" in kinds:
        return
    if left != right:
        verdict = "is always true" if found.operator == "!=" else "is never true"
        ends = verdict if found.operator in _EQUALITY else "ends in an error"
        yield _mistyped(f"{shown} compares {_PLAIN[left]} with {_PLAIN[right]}: it {ends}", _of_one_type(found))
    elif found.operator in _ORDER and left == "text" and any(_holds_number(one) for one in found.operands):
        reason = f'{shown} compares texts letter by letter: "9" is more than "10"'
        yield _mistyped(reason, _with_numbers(found) or "compare numbers")


def _membership_faults(found: Operation, left: str, shown: str) -> Iterator[Fault]:
    right = found.operands[1]
    if not isinstance(right, Items):
        if _type(right) in ("text", "number", "bool"):
            reason = f"{shown} needs a list on its right: the retry ends in an error"
            yield _mistyped(reason, "write a list, in brackets")
        return
    kinds = {_type(item) for item in right.items}
    if left != ANY and kinds and ANY not in kinds and left not in kinds:
        reason = f"{shown} looks for {_PLAIN[left]} where there is none: it is never true"
        yield _mistyped(reason, _of_one_type(found))


def _mistyped(reason: str, fix: str) -> Fault:
    return Fault("retry-expression-type", reason, fix)


def _of_one_type(found: Operation) -> str:
    """Returns the advice for a comparison of two types."""
    parts = _parts(found)
    numbers = [part for part in parts if _type(part) == "number"]
    fix = _with_numbers(found)
    if (
        fix
        and found.operator in (*_EQUALITY, "in")
        and all(isinstance(part, Literal) for part in numbers)
        and _DURATION not in parts  # no duration is ever equal to a text that somebody wrote
        and not _quoted(parts)
    ):
        fix += f", or put quotes around the {'numbers' if found.operator == 'in' else 'number'}"
    return fix or "compare values of one type"


def _with_numbers(found: Operation) -> str:
    """Returns the advice for an operation on numbers; "" where there is none."""
    parts = _parts(found)
    held = [part for part in parts if isinstance(part, Name) and part.parts in NUMBERS_AS_TEXT]
    quoted = _quoted(parts)
    if any(_type(part) != "number" and part not in (*held, *quoted) for part in parts):
        return ""
    steps = []
    if held:
        steps.append(f"write {' and '.join(dict.fromkeys(map(_as_number, held)))}")
    if quoted:
        steps.append(f"leave out the quotes around {' and '.join(map(_shown, quoted))}")
    return ", and ".join(steps)


def _parts(found: Operation) -> list[Expression]:
    """Returns the operands; of a list, what it holds."""
    return [part for side in found.operands for part in (side.items if isinstance(side, Items) else (side,))]


def _quoted(parts: list[Expression]) -> list[Expression]:
    """Returns the texts that are numbers in quotes."""
    return [
        part for part in parts if isinstance(part, Literal) and part.type == "text" and _NUMBER.fullmatch(part.text)
    ]


def _as_number(found: Name) -> str:
    return f"{NUMBERS_AS_TEXT[found.parts]}({_shown(found)})"


def _holds_number(found: Expression) -> bool:
    return isinstance(found, Name) and found.parts in NUMBERS_AS_TEXT


def _type(found: Expression) -> str:
    """Returns the type of a value: one of a literal's, ``list``, or :data:`ANY`."""
    if isinstance(found, Literal):
        return found.type
    if isinstance(found, Name):
        known = found.parts == ("retries",) or (len(found.parts) == 2 and found.parts[0] == "lastRetry")
        return "text" if known and (len(found.parts) == 1 or found.parts[1] in LAST_RETRY) else ANY
    if isinstance(found, Call):
        return _RETURNS.get(found.function, ANY)
    if isinstance(found, Items):
        return "list"
    if isinstance(found, Open):
        return ANY
    return _result(found)


def _result(found: Operation) -> str:
    kinds = [_type(operand) for operand in found.operands]
    if found.operator in (*_ORDER, *_EQUALITY, *_OF_TEXTS, "in", "&&", "||", "!"):
        return "bool"
    if found.operator == "?:":
        return kinds[1] if kinds[1] == kinds[2] else ANY
    if found.operator == "..":
        return "list"
    return kinds[0] if found.operator in _ARITHMETIC and len(set(kinds)) == 1 else ANY


def _shown(found: Expression) -> str:
    """Returns a short form of a part, for messages."""
    if isinstance(found, Literal):
        return f'"{found.text}"' if found.type == "text" else found.text
    if isinstance(found, Name):
        return ".".join(found.parts)
    if isinstance(found, Call):
        return f"{found.function}({', '.join(map(_shown, found.arguments))})"
    if isinstance(found, Items):
        return f"[{', '.join(map(_shown, found.items))}]"
    if isinstance(found, Open):
        return "…"
    if found.operator == "?:":
        return f"{_shown(found.operands[0])} ? … : …"
    if len(found.operands) == 1:
        return f"{found.operator}{_shown(found.operands[0])}"
    return f" {found.operator} ".join(map(_shown, found.operands))
