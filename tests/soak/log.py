"""The committed account of the last run of each case, a line each, ordered by number."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from pathlib import Path


class Log:
    """Lines by the number that they begin with; the file is whole at any time.

    Args:
        path: The file; made with the first line.
        afresh: Numbers whose lines of before are dropped.

    Raises:
        ValueError: If the file is there and is none of ours.
    """

    def __init__(self, path: Path, afresh: Container[int]) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        if strange := [line for line in lines if not re.match(r"\d{3,} ", line)]:
            raise ValueError(f"{path} is no log of launches: {strange[0][:80]!r}")
        self._lines = {number: line for line in lines if (number := int(line.split()[0])) not in afresh}

    def add(self, number: int, line: str) -> None:
        """Writes a line in its place."""
        self._lines[number] = line
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        aside.write_text("".join(f"{text}\n" for _, text in sorted(self._lines.items())))
        os.replace(aside, self._path)
