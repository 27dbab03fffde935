"""Decides which jobs an entry matches, and how specific its match is.

A value is a name, or holds ``*`` for any text; a bare ``*``, like a key that is left out, names nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from elastic_launcher.hints.values import HintError, join, objects, quoted, wrong
from elastic_launcher.options import MATCH_KEYS, ConfigError, read_pairs

ANY = "*"


def parse_match(texts: Iterable[str]) -> dict[str, str]:
    """Reads texts of one or several ``KEY=VALUE`` as what a job is matched by; see ``read_pairs``.

    Raises:
        HintError: If one is not of that form, its key is unknown, or a key has two values.
    """
    try:
        found = read_pairs(texts)
    except ConfigError as error:
        raise HintError(str(error)) from error
    for key in found:
        if key not in MATCH_KEYS:
            raise HintError(f"--match has the unknown key {key!r}; known are {', '.join(MATCH_KEYS)}", key)
    return found


def read_match(value: Any, path: str) -> dict[str, str]:
    """Returns the match of an entry.

    Args:
        value: What the document has there.
        path: Its position.

    Raises:
        HintError: If it is no object of names by known keys.
    """
    found = objects(value, path)
    for key, text in found.items():
        where = join(path, key)
        if key not in MATCH_KEYS:  # an entry that is understood by half would speak for too many jobs
            raise HintError(f"{quoted(key)} is unknown ({where}); it must be one of {', '.join(MATCH_KEYS)}", where)
        if not isinstance(text, str) or not text:
            raise wrong(where, text, 'a name, or "*" for any')
    return dict(found)


def matches(pattern: Mapping[str, str], job: Mapping[str, str]) -> bool:
    """Returns whether an entry matches a job; a job without a key is matched by no value of it."""
    return all(text == ANY or (key in job and _fits(text, job[key])) for key, text in pattern.items())


def _fits(text: str, name: str) -> bool:
    return fnmatchcase(name, text.replace("[", "[[]").replace("?", "[?]"))


def specificity(pattern: Mapping[str, str]) -> tuple[int, ...]:
    """Returns what the most specific of several matching entries has the most of.

    An id is more specific than a job's name, that than a pipeline, a queue, a project and a namespace, in this order.
    At each of them a name is more specific than a name with ``*``, and that than nothing.
    """
    return tuple(_precision(pattern.get(key, ANY)) for key in reversed(MATCH_KEYS))


def _precision(text: str) -> int:
    if text == ANY:
        return 0
    return 1 if ANY in text else 2


def named(pattern: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys that name something: two entries with the same ones speak for the same jobs."""
    return {key: text for key, text in pattern.items() if text != ANY}


def spelled(pattern: Mapping[str, str]) -> str:
    """Returns a match as it is shown."""
    return ", ".join(f"{key}={text}" for key, text in named(pattern).items()) or "every job"
