"""Splits an expression of Argo's language into tokens: numbers, texts, names, operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

END = "end"


class SyntaxFault(Exception):
    """An invalid expression; the message has the error."""


class Unread(Exception):
    """An expression that this linter does not know and that may be valid; the message names the part."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word.

    Attributes:
        kind: ``number``, ``text``, ``name``, ``sign``, ``placeholder`` or ``end``.
        text: What it says; a text's without its quotes.
    """

    kind: str
    text: str


_WORD = re.compile(
    r"""\s+
    | (?P<comment>//|/\*)
    | (?P<placeholder>\{\{.*?\}\})
    | (?P<number>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|(?:[0-9][0-9_]*)?\.?[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)
    | (?P<name>[^\W\d][\w]*)
    | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
    | (?P<quote>["'`])
    | (?P<sign>\?\.|\?\?|\*\*|\|\||&&|==|!=|<=|>=|\.\.|[-+*/%^<>!?:,.()\[\]|=])
    | (?P<unknown>[{}\#;$&])
    | (?P<stranger>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def words(text: str) -> Iterator[Word]:
    """Yields the words of an expression, and then the end.

    Raises:
        SyntaxFault: If there is what no expression has.
        Unread: If there is what this linter does not know.
    """
    for found in _WORD.finditer(text):
        kind = found.lastgroup
        if kind is None:
            continue
        if kind == "quote":
            raise SyntaxFault(f"the quote {found[0]} is never closed")
        if kind == "stranger":
            raise SyntaxFault(f"{found[0]!r} has no meaning there")
        if kind in ("comment", "unknown"):
            raise Unread(f"{found[0]!r}")
        yield Word(kind, found[0][1:-1] if kind == "text" else found[0])
    yield Word(END, "")
