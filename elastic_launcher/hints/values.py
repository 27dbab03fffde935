"""Reads one JSON value, with an error that says what it must be, what it is, and where it is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

GPUS = "a whole number of GPUs, 0 or more"
MAX_SECONDS = 10**9
_DIGITS = 18  # a longer whole number is no count of anything; Python refuses to read the longest ones
_LEADING_ZERO = re.compile(r"(?<![\w.\"])-?0\Z")
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


class HintError(ValueError):
    """Hints that can't be used.

    Attributes:
        path: What is wrong, such as ``hints[3].gpus.allowed``; empty for the document as a whole.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class _Object(dict[str, Any]):
    """A JSON object that remembers a key that was there twice."""

    twice: str | None = None


def plain_text(text: str | bytes, form: str, most: int) -> str:
    """Returns a document's text without its byte order mark.

    Args:
        text: The document.
        form: What it must be, such as JSON.
        most: The largest number of bytes that it may have.

    Raises:
        HintError: If it is too large, not UTF-8, or empty.
    """
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise HintError(f"the document has {size} bytes; it must have {most} at most")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise HintError(f"byte {error.start} of the document is not UTF-8; it must be {form} in UTF-8") from error
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise HintError(f"the document is empty; it must be a {form} object")
    return text


def load_json(text: str) -> Any:
    """Reads JSON as it is defined: each key once, and no number that is infinite or none at all.

    Raises:
        HintError: If it is not; with line and column, or with the path of what is wrong.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_whole_number)
        _refuse_odd(value)
    except json.JSONDecodeError as error:
        zero = _LEADING_ZERO.search(text, 0, error.pos) and text[error.pos : error.pos + 1].isdigit()
        reason = "a number has no leading zeros, and here one has," if zero else error.msg
        raise HintError(
            f"not JSON: {reason} at line {error.lineno}, column {error.colno}; the document must be one JSON object"
        ) from error
    except RecursionError as error:
        raise HintError("too deeply nested; the document must be one JSON object of a few levels") from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object()
    for key, value in pairs:
        if key in found and found.twice is None:
            found.twice = key
        found[key] = value
    return found


def _whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _refuse_odd(value: Any, path: str = "") -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong(path, value, f"a JSON number, and where GPUs are counted {GPUS}")
    if isinstance(value, _Object):
        if value.twice is not None:
            where = join(path, value.twice)
            raise HintError(
                f"{quoted(value.twice)} is there twice{_at(where, value.twice)}; each key is there once", where
            )
        for key, inner in value.items():
            _refuse_odd(inner, join(path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _refuse_odd(inner, f"{path}[{number}]")


def join(path: str, key: str) -> str:
    """Returns the path of a key within the object at ``path``."""
    if not _PLAIN.fullmatch(key):
        return f"{path}[{quoted(key)}]"
    return f"{path}.{key}" if path else key


def quoted(text: str) -> str:
    """Returns a text of the document as one line without control characters."""
    return json.dumps(text if len(text) <= 60 else text[:57] + "...")


def describe(value: Any) -> str:
    """Returns what a value is, in a few characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def _at(path: str, name: str) -> str:
    return "" if path == name else f" ({path})"


def wrong(path: str, value: Any, what: str, name: str | None = None) -> HintError:
    """Returns the error of a value that is not what it must be.

    Args:
        path: Its position.
        value: What is there.
        what: What it must be.
        name: What it is called; by default the last part of the path.
    """
    name = path.rpartition(".")[2] if name is None else name
    return HintError(f'"{name}" is {describe(value)}{_at(path, name)}; it must be {what}', path)


def missing(path: str, what: str) -> HintError:
    """Returns the error of a value that is not there."""
    name = path.rpartition(".")[2]
    return HintError(f'"{name}" is missing{_at(path, name)}; it must be {what}', path)


def whole(row: Mapping[str, Any], key: str, path: str, what: str = GPUS, least: int | None = 0) -> int | None:
    """Returns the whole number under a key, or None where there is no such key.

    Args:
        row: The object.
        key: Which of its values.
        path: The object's position.
        what: What the value must be.
        least: The smallest that it may be, or None.
    """
    if key not in row:
        return None
    return whole_value(row[key], join(path, key), what, least)


def whole_value(value: Any, path: str, what: str, least: int | None) -> int:
    """Returns a value that must be a whole number; see `whole`."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise wrong(path, value, what)
    return value


def seconds(row: Mapping[str, Any], key: str, path: str) -> float | None:
    """Returns the duration under a key, or None where there is no such key."""
    if key not in row:
        return None
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_SECONDS:
        raise wrong(join(path, key), value, f"a number of seconds, 0 to {MAX_SECONDS}")
    return float(value)


def moment(row: Mapping[str, Any], key: str, path: str) -> float | None:
    """Returns the time under a key in seconds since the epoch, or None where there is no such key.

    A time without a zone is UTC.
    """
    if key not in row:
        return None
    value = row[key]
    try:
        found = datetime.fromisoformat(value)
        at = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
        datetime.fromtimestamp(at, UTC)  # it will be shown again
        return at
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong(join(path, key), value, 'a time such as "2026-11-20T10:00:00Z"') from error


def objects(value: Any, path: str, what: str = "an object") -> dict[str, Any]:
    """Returns a value that must be an object."""
    if not isinstance(value, dict):
        raise wrong(path, value, what)
    return value
