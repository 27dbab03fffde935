"""Records how far the ranks' logs were shown, so that a launcher after a takeover shows the rest."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from elastic_launcher.workdir import write_json

FILE = "shown.json"
EVERY_SECONDS = 1.0  # what was shown in between is shown again

RankKey = tuple[int, int]
"""Node and local rank."""


class Shown:
    """Remembers how many bytes of each log were shown; of an earlier launcher too, where this one has come back."""

    def __init__(self, folder: Path, come_back: bool = False) -> None:
        self._path = folder / FILE
        self._before = _read(self._path) if come_back else {}
        self._written: Mapping[RankKey, int] = self._before
        self._written_at = float("-inf")

    def was_shown(self, key: RankKey, end: int) -> bool:
        """Returns whether an earlier launcher has seen the line that ends there."""
        return end <= self._before.get(key, 0)

    def remember(self, ends: Mapping[RankKey, int]) -> None:
        """Writes down, now and then, to where each log was shown; where it can't be written, more is shown twice."""
        now = time.monotonic()
        if ends == self._written or now - self._written_at < EVERY_SECONDS:
            return
        self._before = {key: end for key, end in self._before.items() if ends.get(key, 0) < end}
        document = {f"{node}-{local_rank}": end for (node, local_rank), end in {**ends, **self._before}.items()}
        with contextlib.suppress(OSError):
            write_json(self._path, document)
            self._written, self._written_at = dict(ends), now


def _read(path: Path) -> dict[RankKey, int]:
    """Returns the recorded offsets, without those of logs that are shorter now: these were truncated."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = {name.partition("-"): int(end) for name, end in document.items()}
        keys = {(int(node), int(local_rank)): end for (node, _, local_rank), end in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
    sizes = {key: _size(path.with_name(f"{key[0]}-{key[1]}.log")) for key in keys}
    return {key: end for key, end in keys.items() if end <= sizes[key]}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
