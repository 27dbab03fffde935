"""The record of starts and ends of a node's workers under the restart-based resize."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from elastic_launcher.control.messages import decode
from elastic_launcher.control.requests import Life


class Lives:
    """Follows a node's record, a file that need not be there yet; see `rank_exec.tell_life`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._number = 0

    def read(self) -> list[Life]:
        """Returns the new records, each with its number, by which a repeated one is recognized."""
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
                lives.append(decode({**json.loads(line), "n": self._number}, Life, "life"))
        return lives
