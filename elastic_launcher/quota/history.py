"""The changes that the controller made, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elastic_launcher.host.files import ends_within_a_line
from elastic_launcher.quota.rounds.round import Change

_LATEST = 1e11
"""Seconds since the epoch, in the year 5138: dates of what is far later can't be written."""


def append(path: Path, changes: Iterable[Change], now: float) -> None:
    """Adds the changes of one round, all of them or, on a full disk, none.

    Args:
        path: The file; made if it is not there.
        changes: What changed.
        now: Seconds since the epoch.

    Raises:
        OSError: If the file can't be written.
    """
    with open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        left = b"\n" * ends_within_a_line(file.fileno()) + lines_of(changes, now).encode()
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(size)
            raise


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yields all changes, oldest first; it holds one line at a time, for nobody shortens the file.

    Raises:
        OSError: If the file can't be read.
    """
    with open(path, encoding="utf-8", errors="replace", newline="\n") as lines:  # a name may have other ends of lines
        yield from rows_of(lines)


def lines_of(changes: Iterable[Change], now: float) -> str:
    """Returns the lines of one round's changes.

    Args:
        changes: What changed.
        now: Seconds since the epoch.
    """
    return "".join(json.dumps({"v": 1, "time": now, **asdict(change)}, ensure_ascii=False) + "\n" for change in changes)


def rows_of(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the changes of lines; one that is none, torn or edited, is left out."""
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and _is_change(row):
            yield row


def _is_change(row: Mapping[str, Any]) -> bool:
    at = row.get("time")
    told = isinstance(at, (int, float)) and 0 <= at < _LATEST
    return told and all(isinstance(row.get(name), str) for name in ("job", "project", "cause", "reason"))
