"""What a quota hints document says: parsing and checking its two forms.

Form B is a JSON document (``apiVersion``: ``elastic-hints/v1``); form A is the flat one, a JSON object of texts such as
``{"default": "1:4", "job.bert": "8"}`` (allowed, or guaranteed:allowed).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

API_VERSION = "elastic-hints/v1"
MATCH_KEYS = ("namespace", "queue", "pipeline", "job")
"""From the most general to the most specific."""
MAX_BYTES = 2**20
MAX_HINTS = 1000
MAX_GPUS = 10**5
DEFAULT_GROW_AFTER = 60.0
_WHOLE = "a whole number of GPUs, 0 or more"
_TOP_KEYS = {"apiVersion", "generation", "observedAt", "ttlSeconds", "source", "defaults", "hints"}
_ENTRY_KEYS = {"match", "priority", "gpus", "flavor", "gpusPerNode", "sizes", "growAfterSeconds", "reclaim"}


class HintError(ValueError):
    """A document that can't be used.

    Attributes:
        path: What is wrong in it, such as ``hints[3].gpus.allowed``; empty for the document as a whole.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Entry:
    """What the document says about the jobs that it matches. All numbers are GPUs.

    Attributes:
        path: Where it stands in the document.
        match: What a job must be; empty matches every one.
        allowed: What each such job may hold now.
        guaranteed: What nobody takes back, or None.
        limit: What is never exceeded, or None.
        priority: Decides between entries that are equally specific.
        gpus_per_node: Numbers are rounded down to multiples of it.
        sizes: The only numbers that are used, ascending; empty for any.
        grow_after: Seconds that growth waits after a shrink, a notice or a loss.
        reclaim_to: What is to be left, when GPUs are being taken back.
    """

    path: str
    match: Mapping[str, str]
    allowed: int
    guaranteed: int | None = None
    limit: int | None = None
    priority: int = 0
    gpus_per_node: int = 1
    sizes: tuple[int, ...] = ()
    grow_after: float = DEFAULT_GROW_AFTER
    reclaim_to: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A whole hints document.

    Attributes:
        entries: In the order of the document.
        defaults: For jobs that nothing matches, or None.
        generation: Grows with each version; None where every new content is newer.
        observed_at: When its numbers were seen, in seconds since the epoch, or None.
        ttl_seconds: How long they hold from then on, or None for ever.
        warnings: What was odd, and ignored.
    """

    entries: tuple[Entry, ...]
    defaults: Entry | None = None
    generation: int | None = None
    observed_at: float | None = None
    ttl_seconds: float | None = None
    warnings: tuple[str, ...] = field(default=())


def parse(text: str | bytes) -> Document:
    """Reads a document of either form.

    Raises:
        HintError: If it can't be used; the message says where and why, and what it must be.
    """
    if len(text) > MAX_BYTES:
        raise HintError(f"the document has {len(text)} bytes; at most {MAX_BYTES} are read")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise HintError(f"the document is not UTF-8 (byte {error.start})") from error
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise HintError("the document is empty; it must be a JSON object")
    try:
        found = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise HintError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise HintError("not a hints document: too deeply nested") from error
    if not isinstance(found, dict):
        raise HintError(f"the document is {_name(found)}; it must be a JSON object")
    if "apiVersion" not in found and found and all(isinstance(value, str) for value in found.values()):
        return _parse_flat(found)
    return _parse_document(found)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise HintError(f"the key {key!r} is there twice", key)
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise HintError(f"{name} is no JSON number; numbers must be {_WHOLE}")


def _name(value: Any) -> str:
    names = {bool: "true or false", dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), "a number")


def _parse_flat(found: dict[str, str]) -> Document:
    entries: list[Entry] = []
    defaults: Entry | None = None
    for key, text in found.items():
        match = re.fullmatch(r"\s*(?:(0|[1-9]\d*)\s*:\s*)?(0|[1-9]\d*)\s*", text)
        if match is None:
            raise HintError(
                f'"{key}" is {text!r}; it must be GPUs, such as "8", or guaranteed:allowed, such as "2:6"', key
            )
        guaranteed = int(match[1]) if match[1] is not None else None
        kind, _, value = key.partition(".")
        if key != "default" and (kind not in MATCH_KEYS or not value):
            known = ", ".join(f"{name}.NAME" for name in MATCH_KEYS)
            raise HintError(f'"{key}" is no key of the flat form; use default, {known}', key)
        entry = Entry(key, {} if key == "default" else {kind: value}, int(match[2]), guaranteed)
        _check_order(entry, key)
        if key == "default":
            defaults = entry
        else:
            entries.append(entry)
    return Document(tuple(entries), defaults)


def _parse_document(found: dict[str, Any]) -> Document:
    version = found.get("apiVersion")
    if version != API_VERSION:
        what = "is missing" if version is None else f"is {version!r}"
        raise HintError(f'"apiVersion" {what}; it must be "{API_VERSION}"', "apiVersion")
    if "defaults" not in found and "hints" not in found:
        raise HintError('neither "defaults" nor "hints" is there; one of them is needed', "hints")
    warnings = [f'unknown key "{key}" is ignored' for key in found if key not in _TOP_KEYS]
    rows = found.get("hints", [])
    if not isinstance(rows, list):
        raise HintError(f'"hints" is {_name(rows)}; it must be a list', "hints")
    if len(rows) > MAX_HINTS:
        raise HintError(f'"hints" has {len(rows)} entries; at most {MAX_HINTS} are read', "hints")
    entries = tuple(_parse_entry(row, f"hints[{number}]", warnings) for number, row in enumerate(rows))
    defaults = _parse_entry(found["defaults"], "defaults", warnings) if "defaults" in found else None
    return Document(
        entries,
        defaults,
        _integer(found, "generation", "", "a whole number, 0 or more"),
        _time(found.get("observedAt")),
        _seconds(found, "ttlSeconds", ""),
        tuple(warnings),
    )


def _parse_entry(row: Any, path: str, warnings: list[str]) -> Entry:
    if not isinstance(row, dict):
        raise HintError(f'"{path}" is {_name(row)}; it must be an object', path)
    warnings += [f'unknown key "{path}.{key}" is ignored' for key in row if key not in _ENTRY_KEYS]
    match = row.get("match", {})
    if not isinstance(match, dict) or not all(isinstance(value, str) for value in match.values()):
        raise HintError(f'"{path}.match" must be an object of texts', f"{path}.match")
    unknown = [key for key in match if key not in MATCH_KEYS]
    if unknown:
        raise HintError(f'"{path}.match.{unknown[0]}" is unknown; keys are {", ".join(MATCH_KEYS)}', f"{path}.match")
    gpus = row.get("gpus")
    if not isinstance(gpus, dict):
        raise HintError(f'"{path}.gpus" must be an object with "allowed"', f"{path}.gpus")
    warnings += [
        f'unknown key "{path}.gpus.{k}" is ignored' for k in gpus if k not in ("guaranteed", "allowed", "limit")
    ]
    guaranteed, allowed, limit = (
        _integer(gpus, name, f"{path}.gpus", _WHOLE) for name in ("guaranteed", "allowed", "limit")
    )
    if allowed is None:
        if guaranteed is None:
            raise HintError(f'"{path}.gpus.allowed" is missing; it must be {_WHOLE}', f"{path}.gpus.allowed")
        allowed = guaranteed
    grow_after = _seconds(row, "growAfterSeconds", path)
    entry = Entry(
        path,
        match,
        allowed,
        guaranteed,
        limit,
        _priority(row, path),
        _at_least_one(row, "gpusPerNode", path),
        _sizes(row, path),
        DEFAULT_GROW_AFTER if grow_after is None else grow_after,
        _reclaim(row, path),
    )
    _check_order(entry, f"{path}.gpus")
    return entry


def _check_order(entry: Entry, path: str) -> None:
    if entry.guaranteed is not None and entry.guaranteed > entry.allowed:
        raise HintError(f"guaranteed {entry.guaranteed} is more than allowed {entry.allowed} ({path})", path)
    if entry.limit is not None and entry.allowed > entry.limit:
        raise HintError(f"allowed {entry.allowed} is more than limit {entry.limit} ({path})", path)
    if entry.allowed > MAX_GPUS:
        raise HintError(f"allowed {entry.allowed} is absurd; at most {MAX_GPUS} GPUs are believed ({path})", path)


def _integer(row: Mapping[str, Any], key: str, path: str, what: str) -> int | None:
    value = row.get(key)
    if value is None and key not in row:
        return None
    where = f"{path}.{key}" if path else key
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise HintError(f'"{key}" is {json.dumps(value)} ({where}); it must be {what}', where)
    return value


def _priority(row: Mapping[str, Any], path: str) -> int:
    value = row.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HintError(
            f'"priority" is {json.dumps(value)} ({path}.priority); it must be a whole number', f"{path}.priority"
        )
    return value


def _at_least_one(row: Mapping[str, Any], key: str, path: str) -> int:
    value = _integer(row, key, path, "a whole number, 1 or more")
    if value == 0:
        raise HintError(f'"{key}" is 0 ({path}.{key}); it must be a whole number, 1 or more', f"{path}.{key}")
    return 1 if value is None else value


def _sizes(row: Mapping[str, Any], path: str) -> tuple[int, ...]:
    value = row.get("sizes", [])
    where = f"{path}.sizes"
    if not isinstance(value, list):
        raise HintError(f'"sizes" is {_name(value)} ({where}); it must be a list of whole numbers', where)
    for size in value:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise HintError(f'"sizes" holds {json.dumps(size)} ({where}); it must hold whole numbers, 1 or more', where)
    return tuple(sorted(set(value)))


def _reclaim(row: Mapping[str, Any], path: str) -> int | None:
    value = row.get("reclaim")
    if value is None:
        return None
    if not isinstance(value, dict) or "to" not in value:
        raise HintError(f'"{path}.reclaim" must be an object with "to"', f"{path}.reclaim")
    if "by" in value:
        _time(value["by"], f"{path}.reclaim.by")
    return _integer(value, "to", f"{path}.reclaim", _WHOLE)


def _seconds(row: Mapping[str, Any], key: str, path: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    where = f"{path}.{key}" if path else key
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 10**9:
        raise HintError(f'"{key}" is {json.dumps(value)} ({where}); it must be seconds, 0 or more', where)
    return float(value)


def _time(value: Any, path: str = "observedAt") -> float | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        what = 'a time such as "2026-11-20T10:00:00Z"'
        raise HintError(f'"{path}" is {json.dumps(value)}; it must be {what}', path) from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def parse_match(pairs: list[str]) -> dict[str, str]:
    """Reads ``KEY=VALUE`` texts as a match.

    Raises:
        HintError: If one is not of that form, or its key unknown.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not value or key not in MATCH_KEYS:
            raise HintError(f"--match {pair}: it must be KEY=VALUE with KEY one of {', '.join(MATCH_KEYS)}", key)
        found[key] = value
    return found
