"""Writes a script's argument as one word of its command line, for every front."""

from __future__ import annotations

import enum
import json
import numbers
import os

_EXAMPLE = 60
"""So much of a wrong value is shown."""


def word(value: object) -> str:
    """Returns a value as a word of a command line: a text as it is, anything else as JSON has it.

    What JSON has no form of is a word where it has one of its own, as a path, a date or a decimal number.

    Raises:
        ValueError: If it has none, as bytes, a set or a function, or no program can be given it.
    """
    match value:
        case str():
            text = str.__str__(value)  # of an Enum that is a text, too
        case None | bool() | int() | float() | list() | tuple() | dict():
            try:
                text = json.dumps(value, default=_plain)
            except (TypeError, ValueError, RecursionError) as error:
                raise _no_word(value) from error
        case numbers.Real():  # of NumPy: in as few digits as distinguish it
            text = str(value)
        case _:
            plain = _plain(value)
            text = plain if isinstance(plain, str) else word(plain)
    if "\0" in text:
        raise ValueError(f"{_shown(value)} can't be an argument: no program can be given a text with a NUL character")
    return text


def _plain(value: object) -> object:
    """Returns what JSON has a form of, or a text, for what it has none of.

    Raises:
        ValueError: If there is neither.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes | bytearray | memoryview | set | frozenset | range) or callable(value):
        raise _no_word(value)
    if (to_list := getattr(value, "tolist", None)) is not None:  # of NumPy and torch: an array, a number, a boolean
        return to_list()
    if type(value).__str__ is object.__str__ and not isinstance(value, os.PathLike):
        raise _no_word(value)
    return str(value)


def _no_word(value: object) -> ValueError:
    what = f"{_shown(value)}, of type {type(value).__name__}, can't be an argument"
    return ValueError(f"{what}: give a text, a number, true or false, or a list or dict of these")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _EXAMPLE else f"{text[:_EXAMPLE]}…"
