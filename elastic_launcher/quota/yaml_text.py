"""Reads YAML or JSON as plain values, with the line of each.

Only what all parsers read alike is accepted. ``no``, ``010`` or ``12:30`` are texts to some and booleans or numbers to
others, so they must be in quotes; aliases and tags are refused, as are keys that are there twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_launcher.hints.values import HintError, join, plain_text, quoted
from elastic_launcher.quota.projects import QuotaError

MAX_DEPTH = 16
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_ODD = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_DIGITS = 18  # a longer whole number is no count of anything


@dataclass(frozen=True, slots=True)
class Loaded:
    """A document's content.

    Attributes:
        value: Objects, lists, texts, numbers, booleans and None.
        lines: The line of each value, from 1, by its path, such as ``projects[3].limit``.
    """

    value: Any
    lines: Mapping[str, int]

    def line(self, path: str) -> int:
        """Returns the line of a value; of one that is not there, that of what it should be in."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 1)


def load(text: str | bytes, most: int) -> Loaded:
    """Reads a document.

    Args:
        text: YAML, of which JSON is a part.
        most: The largest number of bytes that it may have.

    Raises:
        QuotaError: If it can't be read; with the line and what to do about it.
    """
    yaml = _yaml()
    try:
        text = plain_text(text, "YAML or JSON", most)
    except HintError as error:
        raise QuotaError(str(error)) from error
    if odd := _ODD.search(text):
        line = len(text[: odd.start()].splitlines()) or 1
        raise QuotaError(f"the document has the character U+{ord(odd[0]):04X}; remove it, or escape it", "", line)
    try:
        return _Reader(yaml, yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = dict(enumerate(text.splitlines())).get(mark.line, "")
        indent = at[: len(at) - len(at.lstrip())]
        fix = "indent with spaces, not with tabs" if "\t" in indent else "mend it there, or just before"
        reason = ": ".join(filter(None, (error.context, error.problem)))
        raise QuotaError(f"not YAML: {reason} (column {mark.column + 1}); {fix}", "", mark.line + 1) from error


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise QuotaError("reading projects needs PyYAML: pip install 'elastic-launcher[quota]'") from error
    return yaml


class _Reader:
    """Makes a value of the parser's events.

    Events, unlike PyYAML's nodes, come without recursion: its fast composer crashes on a document of brackets.
    """

    def __init__(self, yaml: Any, events: Iterator[Any]) -> None:
        self._yaml = yaml
        self._events = events
        self._resolver = yaml.SafeLoader("")
        self._lines: dict[str, int] = {}

    def document(self) -> Loaded:
        """Returns the one document of the stream."""
        found: list[Any] = []
        for event in self._events:
            if isinstance(event, self._yaml.DocumentStartEvent):
                if found:
                    raise self._error(event, "", "a second document starts here; all projects are in one: remove ---")
                found.append(self._value(next(self._events), "", 0))
        return Loaded(found[0] if found else None, self._lines)

    def _error(self, event: Any, path: str, message: str) -> QuotaError:
        return QuotaError(message, path, event.start_mark.line + 1)

    def _value(self, event: Any, path: str, depth: int) -> Any:
        yaml, name = self._yaml, path or "the document"
        self._lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, yaml.AliasEvent):
            raise self._error(event, path, f"{name} is an alias (*{event.anchor}); write out what it stands for")
        if event.tag is not None:
            raise self._error(event, path, f"{name} has the tag {quoted(event.tag)}; leave the tag out")
        if depth > MAX_DEPTH:
            raise self._error(
                event, path, f"the document is nested too deeply; it must have {MAX_DEPTH} levels at most"
            )
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else self._plain(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(one := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(one, f"{path}[{len(items)}]", depth + 1))
            return items
        return self._object(path, depth)

    def _object(self, path: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), self._yaml.MappingEndEvent):
            if not isinstance(event, self._yaml.ScalarEvent):
                raise self._error(event, path, f"a key of {path or 'the document'} is no name; it must be one")
            key, where = event.value, join(path, event.value)
            if key in found:
                at = "" if where == key else f" ({where})"
                raise self._error(event, where, f"{quoted(key)} is there twice{at}; each key is there once")
            self._lines[where] = event.start_mark.line + 1
            found[key] = self._value(next(self._events), where, depth + 1)
        return found

    def _plain(self, event: Any, path: str) -> Any:
        """Returns what a text without quotes stands for."""
        text = event.value
        shown = f"{path or 'the document'} is {text if len(text) <= 60 else text[:57] + '...'}"
        if text in _WORDS:
            return _WORDS[text]
        if _WHOLE.fullmatch(text) and len(text) <= _DIGITS:
            return int(text)
        if _DECIMAL.fullmatch(text):
            if not math.isfinite(number := float(text)):
                raise self._error(event, path, f"{shown}, which is too large; write a smaller number")
            return number
        kind = self._resolver.resolve(self._yaml.ScalarNode, text, (True, False)).rpartition(":")[2]
        if kind == "bool":
            fix = "which YAML 1.1 reads as a boolean; put a text in quotes, or write true or false"
            raise self._error(event, path, f"{shown}, {fix}")
        if kind in ("int", "float"):
            fix = "which is no plain decimal number; write one such as 8 or 0.5, or a text in quotes"
            raise self._error(event, path, f"{shown}, {fix}")
        return text
