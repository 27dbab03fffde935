"""The record of starts and ends of a node's workers under the restart-based resize."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


class Lives:
    """Follows a node's record; see `rank_exec.tell_life`.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._number = 0

    def read(self) -> list[dict[str, Any]]:
        """Returns the new records, each with its number ``n``, by which a repeated one is recognized."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                found = file.read()
        except OSError:  # not there yet, or not given for now: the next look tries again
            return []
        whole = found[: found.rfind(b"\n") + 1]
        self._offset += len(whole)
        lives = []
        for line in whole.splitlines():
            self._number += 1
            with contextlib.suppress(ValueError):  # the disk became full within that line
                lives.append({"n": self._number, **json.loads(line)})
        return lives
