"""Checks that events and ``job.json`` hold the types that their readers rely on: someone may have edited the files."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

JOB = "job.json"
_MOST = 1 << 63
"""Above every count: what no machine counts to is none."""
_MOST_NODES = 10**6
"""Nodes and ranks of a node: tables have a row for each."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _MOST_NODES


def _is_code(value: Any) -> bool:
    return type(value) is int and abs(value) < _MOST


def _is_finite(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or _is_code(value)


def _is_number(value: Any) -> bool:
    return value in ("nan", "inf", "-inf") or _is_finite(value)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _are_members(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and _is_count(one.get("member")) and _is_count(one.get("node")) for one in value
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(one is None or _is_number(one) for one in row) for row in value
    )


def _are_bounds(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, bool) or _is_count(one) for one in value.values())


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(type(one) is not float or math.isfinite(one) for one in value.values())


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


_Shape = tuple[tuple[str, ...], Callable[[Any], bool], str]
_SHAPES: tuple[_Shape, ...] = (
    (("min_nodes", "max_nodes", "nproc_per_node"), _is_size, f"a whole number, 1 to {_MOST_NODES:,}"),
    (
        (
            *("step", "epoch", "epochs", "total_steps", "samples", "world_size", "first_step", "resumed_step", "steps"),
            *("node", "member", "rank", "global_batch_size", "guaranteed", "allowed", "limit", "target_nodes"),
            *("old", "new", "bytes", "lost", "batch", "term"),
        ),
        _is_count,
        "a whole number, 0 or more",
    ),
    (("exit_code", "signal"), _is_code, "a whole number"),
    (
        (
            *("loss", "samples_per_second", "statistical_epoch", "pause_seconds", "held_seconds", "seconds"),
            *("step_seconds", "factor", "wait_seconds", "gain", "noise_scale", "waited"),
        ),
        _is_number,
        "a number",
    ),
    (("members", "pending", "queued", "joined", "left"), _are_counts, "a list of whole numbers"),
    (("command",), _are_texts, "a list of texts"),
    (("times",), _are_rows, "a list of lists of numbers"),
    (("values",), _is_object, "an object"),
    (("bounds",), _are_bounds, "an object of whole numbers"),
    (("adaptive",), _are_numbers, "an object of numbers"),
)
_FIELDS = {name: (fits, needed) for names, fits, needed in _SHAPES for name in names}
_OF_RANKS = {**_FIELDS, "members": (_are_members, 'a list of objects with "member" and "node"')}
_OF_JOB = {
    **dict.fromkeys(("min_nodes", "max_nodes", "nproc_per_node"), _FIELDS["min_nodes"]),
    **dict.fromkeys(
        ("first_node", "first_member", "term", "global_batch_size", "autoscale_batch_size"), _FIELDS["step"]
    ),
    **dict.fromkeys(("config", "content", "match", "scheduling"), _FIELDS["values"]),
    **dict.fromkeys(("created", "orphan_timeout", "grace_period", "wait_for_quota"), (_is_finite, "a number")),
    "priority": _FIELDS["exit_code"],
}
_TABLES = {"generation_formed": _OF_RANKS, "coordinator_adopted": _OF_RANKS, JOB: _OF_JOB}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("straggler", "silent"), ("member",)),
    "batch_changed": ("old", "new"),
    "step_times": ("batch",),
}
"""The fields that an event of a kind is nothing without."""
_NEVER_NULL = ("node", "times", "bounds", "batch")


def wrong_field(fields: Mapping[str, Any], kind: str) -> str:
    """Returns which field is missing or of another type, and what it must be; "" if none is.

    Fields that this version does not know are not looked at, and most may be null.

    Args:
        fields: Of an event, of ``job.json``, or of its ``config``.
        kind: The event's kind; or `JOB`.
    """
    for name in _NEEDED.get(kind, ()):
        if fields.get(name) is None:
            return f'"{name}" is missing'
    shapes = _TABLES.get(kind, _FIELDS)
    for name, value in fields.items():
        if name in shapes and (value is not None or name in _NEVER_NULL):
            fits, needed = shapes[name]
            if not fits(value):
                return f'"{name}" is {reprlib.repr(value)}; it must be {needed}'
    return ""
