"""Hints from a local file, watched by a short poll: it may be edited in place, replaced, removed and made again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from elastic_launcher.hints.document import MAX_BYTES
from elastic_launcher.hints.policy import HintRead

POLL_SECONDS = 0.05  # one stat; an edit is acted on within a tenth of a second


class FileSource:
    """Watches a file.

    Args:
        path: It need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lives = 0

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return str(self._path)

    async def changes(self) -> AsyncIterator[HintRead]:
        """Yields what is there now, and again after each change."""
        seen: object = object()
        while True:
            mark = self._mark()
            if mark != seen:
                if mark is not None and seen is None:
                    self._lives += 1  # it vanished and came back: a new object
                seen = mark
                yield self._read()
            await asyncio.sleep(POLL_SECONDS)

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> HintRead:
        try:
            with open(self._path, "rb") as file:
                return HintRead(file.read(MAX_BYTES + 1), str(self._lives))
        except FileNotFoundError:
            return HintRead(None)
        except OSError as error:
            return HintRead(None, error=error.strerror or str(error))
