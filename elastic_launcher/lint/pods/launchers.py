"""Checks the launcher's command line in containers that run it: its own words, not its script's."""

from __future__ import annotations

import itertools
import posixpath
import shlex
from collections.abc import Iterator, Sequence

from elastic_launcher.lint.documents.tree import Node

_PROGRAMS = ("elastic-launcher", "elastic_launcher")
_RUN = "run"
_END = "--"
"""After it come the script and what is the script's own."""
_BETWEEN = frozenset("();<>|&")
"""Of what a shell's signs between commands are made."""


def launches(container: Node) -> list[list[str]]:
    """Returns the words after each ``elastic-launcher run`` in a container's command."""
    words = list(_words(container))
    starts = [
        index
        for index, (word, following) in enumerate(itertools.pairwise(words), 2)
        if posixpath.basename(word) in _PROGRAMS and following == _RUN
    ]
    return [list(itertools.takewhile(_is_own, words[start:])) for start in starts]


def value(words: Sequence[str], flag: str) -> str:
    """Returns what a flag is given; "" where it is not."""
    for word, following in itertools.pairwise([*words, ""]):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return ""


def _is_own(word: str) -> bool:
    return word != _END and not (word and _BETWEEN.issuperset(word))


def _words(container: Node) -> Iterator[str]:
    for part in (*container.at("command").items, *container.at("args").items, container.at("source")):
        if any(map(str.isspace, part.text)):
            yield from _of_a_shell(part.text)
        elif part.text:
            yield part.text


def _of_a_shell(text: str) -> Iterator[str]:
    """Yields the words of a shell's text, and the signs between its commands."""
    lines = text.replace("\\\n", " ").splitlines()
    for number, line in enumerate(lines):
        if number:
            yield ";"
        found = shlex.shlex(line, posix=True, punctuation_chars=True)
        found.whitespace_split = True
        try:
            yield from list(found)
        except ValueError:  # a quote that ends in another line
            yield from line.split()
