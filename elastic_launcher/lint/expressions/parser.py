"""Parses the part of Argo's expression language that retry expressions use.

There is no maintained parser of that language for Python. This one knows its operators, literals, members and calls; of
what it does not know (closures, maps, ``let``) it says so, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_launcher.lint.expressions.words import END, SyntaxFault, Unread, Word, words

MAX_CHARACTERS = 10_000
_BINARY = {
    "or": 10,
    "||": 10,
    "and": 15,
    "&&": 15,
    **dict.fromkeys(("==", "!=", "<", ">", "<=", ">="), 20),
    **dict.fromkeys(("in", "matches", "contains", "startsWith", "endsWith"), 20),
    "..": 25,
    **dict.fromkeys(("+", "-"), 30),
    **dict.fromkeys(("*", "/", "%"), 60),
    **dict.fromkeys(("**", "^"), 100),
    "??": 500,
}
"""How tightly operators bind, from the language's definition."""
_UNARY = {"not": 50, "!": 50, "-": 90, "+": 90}
_NEGATABLE = ("in", "matches", "contains", "startsWith", "endsWith")
_RIGHT = ("**", "^")
_CONSTANTS = {"true": "bool", "false": "bool", "nil": "nil"}
_STRANGE = ("let", "if", "else")
_SAME = {"or": "||", "and": "&&", "not": "!"}


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: its type (``text``, ``number``, ``bool``, ``nil``) and what it says."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """A name, such as ``lastRetry.exitCode``: its parts."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the function's name and what it is given."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator (``!`` and ``&&`` also where they are written out) and what it acts on."""

    operator: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """A value known only at run time: a placeholder, or an element of one."""

    parts: tuple[Expression, ...] = ()


Expression = Literal | Name | Call | Operation | Items | Open


def parse(text: str) -> Expression:
    """Reads an expression.

    Raises:
        SyntaxFault: If it is none.
        Unread: If it has what this linter does not know.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unread("its length")
    parser = _Parser(list(words(text)))
    try:
        found = parser.expression(0)
    except RecursionError:
        raise Unread("its depth") from None
    parser.expect(END)
    return found


class _Parser:
    """Reads words from the left to the right."""

    def __init__(self, found: Sequence[Word]) -> None:
        self._words = found
        self._position = 0

    @property
    def _word(self) -> Word:
        return self._words[self._position]

    def _next(self) -> Word:
        word = self._word
        self._position += 1
        return word

    def _is(self, *texts: str) -> bool:
        return self._word.kind in ("sign", "name") and self._word.text in texts

    def _skip(self, text: str) -> bool:
        found = self._is(text)
        if found:
            self._position += 1
        return found

    def expect(self, text: str) -> None:
        """Passes over a sign, or the end.

        Raises:
            SyntaxFault: If there is something else.
        """
        if not (self._word.kind == END if text == END else self._is(text)):
            raise self._unexpected()
        if text != END:
            self._position += 1

    def _unexpected(self) -> Exception:
        if self._word.kind == END:
            return SyntaxFault("it ends too early")
        if self._word.kind == "placeholder":  # its value may be an operator, too
            return Unread(self._word.text)
        return SyntaxFault(f"{self._word.text!r} can't stand there")

    def expression(self, binds: int) -> Expression:
        """Returns what is held together at least as tightly as a number says."""
        left = self._unary()
        while (operator := self._operator()) is not None and _BINARY[operator[-1]] >= binds:
            for _ in operator:
                self._next()
            name = operator[-1]
            right = self.expression(_BINARY[name] + (0 if name in _RIGHT else 1))
            left = Operation(_SAME.get(name, name), (left, right))
            if len(operator) == 2:
                left = Operation("!", (left,))
        if binds == 0 and self._skip("?"):
            middle = self.expression(0)
            self.expect(":")
            return Operation("?:", (left, middle, self.expression(0)))
        if binds == 0 and self._is("|"):
            raise Unread("'|'")
        return left

    def _operator(self) -> tuple[str, ...] | None:
        """Returns the operator here, with the ``not`` before it; None where there is none."""
        if self._is("not"):
            following = self._words[self._position + 1]
            return ("not", following.text) if following.text in _NEGATABLE else None
        return (self._word.text,) if self._is(*_BINARY) else None

    def _unary(self) -> Expression:
        if self._is(*_UNARY):
            name = self._next().text
            return Operation(_SAME.get(name, name), (self.expression(_UNARY[name]),))
        return self._members(self._primary())

    def _primary(self) -> Expression:
        word = self._word
        if self._skip("("):
            found = self.expression(0)
            self.expect(")")
            return found
        if self._skip("["):
            return Items(self._until("]"))
        if word.kind == "number" or word.kind == "text":
            self._next()
            return Literal(word.kind, word.text)
        if word.kind == "placeholder":
            self._next()
            return Open()
        if word.kind != "name" or word.text in _BINARY:
            raise self._unexpected()
        if word.text in _STRANGE:
            raise Unread(f"'{word.text}'")
        self._next()
        return Literal(_CONSTANTS[word.text], word.text) if word.text in _CONSTANTS else Name((word.text,))

    def _members(self, found: Expression) -> Expression:
        """Returns what follows a value: its members, elements and calls."""
        while True:
            if self._is(".", "?."):
                self._next()
                if self._word.kind != "name":
                    raise self._unexpected()
                found = _member(found, self._next().text)
            elif self._skip("["):
                found = self._element(found)
            elif self._skip("("):
                arguments = self._until(")")
                found = Call(".".join(found.parts), arguments) if isinstance(found, Name) else Open((found, *arguments))
            else:
                return found

    def _element(self, found: Expression) -> Expression:
        if self._is(":"):
            raise Unread("a slice")
        index = self.expression(0)
        if self._is(":"):
            raise Unread("a slice")
        self.expect("]")
        if isinstance(index, Literal) and index.type == "text":
            return _member(found, index.text)
        return Open((found, index))

    def _until(self, end: str) -> tuple[Expression, ...]:
        """Returns expressions with commas between, up to a bracket."""
        found: list[Expression] = []
        while not self._skip(end):
            found.append(self.expression(0))
            if not self._is(end):
                self.expect(",")
        return tuple(found)


def _member(found: Expression, name: str) -> Expression:
    return Name((*found.parts, name)) if isinstance(found, Name) else Open((found,))
