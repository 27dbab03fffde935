"""Parses and validates the two forms of a quota hints document.

Form B is a JSON document (``apiVersion``: ``elastic-hints/v1``); form A is the flat one, a JSON object of texts such as
``{"default": "1:4", "job.bert": "8"}`` (allowed, or guaranteed:allowed).

Invariant: in every parsed document, ``guaranteed <= allowed <= limit`` holds for every entry; anything else is
refused with its place, what it is and what it must be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_launcher.hints.match import ANY, read_match
from elastic_launcher.hints.values import (
    GPUS,
    HintError,
    describe,
    join,
    load_json,
    missing,
    moment,
    objects,
    plain_text,
    quoted,
    seconds,
    whole,
    whole_value,
    wrong,
)
from elastic_launcher.options import MATCH_KEYS

API_VERSION = "elastic-hints/v1"
MAX_BYTES = 2**20
MAX_HINTS = 1000
MAX_GPUS = 10**5
DEFAULT_GROW_AFTER = 60.0
_COUNT = "a whole number, 1 or more"
_TOP_KEYS = {"apiVersion", "generation", "observedAt", "ttlSeconds", "source", "defaults", "hints"}
_DEFAULTS_KEYS = {"gpus", "flavor", "gpusPerNode", "sizes", "growAfterSeconds", "waitSeconds", "reclaim"}
_ENTRY_KEYS = _DEFAULTS_KEYS | {"match", "priority", "leave"}
_NUMBER = "0|[1-9][0-9]{0,17}"
_FLAT = re.compile(rf"\s*(?:(?P<guaranteed>{_NUMBER})\s*:\s*)?(?P<allowed>{_NUMBER})\s*")


@dataclass(frozen=True, slots=True)
class Entry:
    """The numbers for the jobs that an entry matches. All of them are GPUs.

    Attributes:
        path: Its position in the document.
        match: What a job must be; empty matches every one.
        allowed: What each such job may hold now.
        guaranteed: What nobody takes back, or None.
        limit: What is never exceeded, or None.
        priority: Decides between entries that are equally specific.
        gpus_per_node: Numbers are rounded down to multiples of it.
        sizes: The only numbers that are used, ascending; empty for any.
        grow_after: Seconds that growth waits after a shrink, a notice or a loss.
        reclaim_to: What is to be left, when GPUs are being taken back.
        reclaim_by: When they may be gone, in seconds since the epoch, or None if not given.
        wait: Seconds that a job waits for quota where its user has not said it, or None if not given.
        leave: Numbers of the nodes that go first when the job shrinks.
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
    reclaim_by: float | None = None
    wait: float | None = None
    leave: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Document:
    """A whole hints document.

    Attributes:
        entries: In the order of the document.
        defaults: For jobs that no entry matches, or None.
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
    warnings: tuple[str, ...] = ()


def parse(text: str | bytes) -> Document:
    """Reads a document of either form.

    Raises:
        HintError: If it can't be used; the message says where and why, and what it must be.
    """
    found = load(text)
    if "apiVersion" not in found and (any(map(is_flat, found)) or _all_texts(found)):
        return _parse_flat(found)
    return _parse_document(found)


def load(text: str | bytes) -> dict[str, Any]:
    """Reads a document's JSON object and looks no further.

    Raises:
        HintError: If it is too large, not UTF-8, not JSON, or no object.
    """
    found = load_json(plain_text(text, "JSON", MAX_BYTES))
    if not isinstance(found, dict):
        raise HintError(f"the document is {describe(found)}; it must be a JSON object")
    return found


def is_flat(key: str) -> bool:
    """Whether a key of an object is one of the flat form."""
    kind, _, name = key.partition(".")
    return key == "default" or (kind in MATCH_KEYS and name != "")


def _all_texts(found: Mapping[str, Any]) -> bool:
    return bool(found) and all(isinstance(value, str) for value in found.values())


def _parse_flat(found: Mapping[str, Any]) -> Document:
    _refuse_too_many(len(found), "the document")
    entries: list[Entry] = []
    defaults: Entry | None = None
    for key, text in found.items():
        kind, _, name = key.partition(".")
        if not is_flat(key):
            known = ", ".join(f"{one}.NAME" for one in MATCH_KEYS)
            raise HintError(
                f"{quoted(key)} is no key of the flat form; it must be default, {known} "
                f'(the full form has "apiVersion": "{API_VERSION}")',
                key,
            )
        entry = _flat_entry(key, {} if key == "default" else {kind: name}, text)
        if key == "default":
            defaults = entry
        else:
            entries.append(entry)
    return Document(tuple(entries), defaults)


def _flat_entry(key: str, match: Mapping[str, str], text: Any) -> Entry:
    found = _FLAT.fullmatch(text) if isinstance(text, str) else None
    said = quoted(key)[1:-1]  # on one line, without control characters
    if found is None:
        what = 'a text of GPUs, "8", or guaranteed:allowed, "2:6", without sign or leading zeros'
        raise wrong(said, text, what, said)
    guaranteed = int(found["guaranteed"]) if found["guaranteed"] is not None else None
    entry = Entry(key, match, int(found["allowed"]), guaranteed)
    if guaranteed is not None and guaranteed > entry.allowed:
        raise wrong(said, text, "guaranteed:allowed, the first not larger than the second", said)
    if entry.allowed > MAX_GPUS:
        raise wrong(said, text, f"{MAX_GPUS} GPUs at most", said)
    return entry


def _parse_document(found: Mapping[str, Any]) -> Document:
    version = f'"{API_VERSION}"'
    if "apiVersion" not in found:
        raise missing("apiVersion", version)
    if found["apiVersion"] != API_VERSION:
        raise wrong("apiVersion", found["apiVersion"], version)
    if "defaults" not in found and "hints" not in found:
        raise HintError('neither "hints" nor "defaults" is there; one of them must be', "hints")
    warnings = _unknown(found, _TOP_KEYS, "")
    objects(found.get("source", {}), "source")
    rows = found.get("hints", [])
    if not isinstance(rows, list):
        raise wrong("hints", rows, "a list of entries")
    _refuse_too_many(len(rows), '"hints"')
    entries = tuple(_parse_entry(row, f"hints[{number}]", _ENTRY_KEYS, warnings) for number, row in enumerate(rows))
    defaults = _parse_entry(found["defaults"], "defaults", _DEFAULTS_KEYS, warnings) if "defaults" in found else None
    observed_at, ttl = moment(found, "observedAt", ""), seconds(found, "ttlSeconds", "")
    if ttl is not None and observed_at is None:
        warnings.append('"ttlSeconds" is ignored, since "observedAt" is missing')
    generation = whole(found, "generation", "", "a whole number, 0 or more")
    return Document(entries, defaults, generation, observed_at, ttl, tuple(warnings))


def _refuse_too_many(count: int, what: str) -> None:
    if count > MAX_HINTS:
        raise HintError(f"{what} has {count} entries; it must have {MAX_HINTS} at most", "hints")


def _unknown(row: Mapping[str, Any], known: set[str], path: str) -> list[str]:
    return [f"{join(path, key)} is unknown, and ignored" for key in row if key not in known]


def _parse_entry(row: Any, path: str, known: set[str], warnings: list[str]) -> Entry:
    row = objects(row, path)
    warnings += _unknown(row, known, path)
    guaranteed, allowed, limit = _parse_gpus(row, f"{path}.gpus", warnings)
    if not isinstance(row.get("flavor", ""), str):
        raise wrong(f"{path}.flavor", row["flavor"], "a text")
    priority = whole(row, "priority", path, "a whole number", None) if "priority" in known else None
    per_node = whole(row, "gpusPerNode", path, _COUNT, 1)
    grow_after = seconds(row, "growAfterSeconds", path)
    entry = Entry(
        path,
        read_match(row.get("match", {}), f"{path}.match") if "match" in known else {},
        allowed,
        guaranteed,
        limit,
        priority or 0,
        1 if per_node is None else per_node,
        _parse_sizes(row, path),
        DEFAULT_GROW_AFTER if grow_after is None else grow_after,
        *_parse_reclaim(row, path, guaranteed, warnings),
        wait=seconds(row, "waitSeconds", path),
        leave=_parse_leave(row, path) if "leave" in known else frozenset(),
    )
    warnings += [
        f"size {size} of {path}.sizes is never used: it is no multiple of gpusPerNode, {entry.gpus_per_node}"
        for size in entry.sizes
        if size % entry.gpus_per_node
    ]
    return entry


def _parse_gpus(row: Mapping[str, Any], path: str, warnings: list[str]) -> tuple[int | None, int, int | None]:
    if "gpus" not in row:
        raise missing(path, 'an object with "allowed"')
    gpus = objects(row["gpus"], path, 'an object with "allowed"')
    warnings += _unknown(gpus, {"guaranteed", "allowed", "limit"}, path)
    guaranteed, allowed, limit = (whole(gpus, key, path) for key in ("guaranteed", "allowed", "limit"))
    if allowed is None:
        raise missing(f"{path}.allowed", GPUS)
    if allowed > MAX_GPUS:
        raise wrong(f"{path}.allowed", allowed, f"{MAX_GPUS} GPUs at most")
    if guaranteed is not None and guaranteed > allowed:
        raise wrong(f"{path}.guaranteed", guaranteed, f"at most what is allowed, {allowed}")
    if limit is not None and allowed > limit:
        raise wrong(f"{path}.allowed", allowed, f"at most the limit, {limit}")
    return guaranteed, allowed, limit


def _parse_sizes(row: Mapping[str, Any], path: str) -> tuple[int, ...]:
    where = f"{path}.sizes"
    value = row.get("sizes", [])
    if not isinstance(value, list):
        raise wrong(where, value, "a list of numbers of GPUs")
    sizes = {whole_value(size, f"{where}[{number}]", _COUNT, 1) for number, size in enumerate(value)}
    return tuple(sorted(sizes))


def _parse_leave(row: Mapping[str, Any], path: str) -> frozenset[int]:
    """Returns the nodes of one job that go first; their numbers are those of no other job."""
    where = f"{path}.leave"
    value = row.get("leave", [])
    if not isinstance(value, list):
        raise wrong(where, value, "a list of numbers of nodes")
    if value and ANY in objects(row.get("match", {}), f"{path}.match").get("id", ANY):
        raise HintError(
            f'"leave" names nodes of one job, and the entry matches others too ({where}); '
            'give its "match" the id of the job',
            where,
        )
    return frozenset(whole_value(node, f"{where}[{number}]", _COUNT, 1) for number, node in enumerate(value))


def _parse_reclaim(
    row: Mapping[str, Any], path: str, guaranteed: int | None, warnings: list[str]
) -> tuple[int | None, float | None]:
    if "reclaim" not in row:
        return None, None
    where = f"{path}.reclaim"
    reclaim = objects(row["reclaim"], where, 'an object with "to"')
    warnings += _unknown(reclaim, {"by", "to", "reason"}, where)
    by = moment(reclaim, "by", where)
    left = whole(reclaim, "to", where)
    if left is None:
        raise missing(f"{where}.to", GPUS)
    if guaranteed is not None and left < guaranteed:
        warnings.append(f"{where}.to is {left}, fewer than the {guaranteed} that are guaranteed; it is followed")
    return left, by
