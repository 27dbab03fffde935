"""The changes that the controller made, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elastic_launcher.host.files import ends_within_a_line
from elastic_launcher.quota.rounds.round import Change


def append(path: Path, changes: Iterable[Change], now: float) -> None:
    """Adds the changes of one round.

    Args:
        path: The file; made if it is not there.
        changes: What changed.
        now: Seconds since the epoch.

    Raises:
        OSError: If the file can't be written.
    """
    with open(path, "a+b") as file:
        torn = ends_within_a_line(file.fileno())
        file.write(b"\n" * torn + lines_of(changes, now).encode())


def read(path: Path) -> list[Mapping[str, Any]]:
    """Returns all changes, oldest first.

    Raises:
        OSError: If the file can't be read.
    """
    return rows_of(path.read_text(encoding="utf-8", errors="replace"))


def lines_of(changes: Iterable[Change], now: float) -> str:
    """Returns the lines of one round's changes.

    Args:
        changes: What changed.
        now: Seconds since the epoch.
    """
    return "".join(json.dumps({"v": 1, "time": now, **asdict(change)}, ensure_ascii=False) + "\n" for change in changes)


def rows_of(text: str) -> list[Mapping[str, Any]]:
    """Returns the changes of a text; a line that a full disk or a power failure has torn is left out."""
    rows: list[Mapping[str, Any]] = []
    for line in text.split("\n"):  # not splitlines(): a name may have other ends of lines
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
