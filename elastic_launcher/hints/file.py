"""Polls the hints in a local file, which may be edited in place, replaced, removed and made again."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

from elastic_launcher.hints.document import MAX_BYTES, parse
from elastic_launcher.hints.source import HintRead
from elastic_launcher.hints.values import HintError

POLL_SECONDS = 0.05  # one stat; an edit is acted on within a tenth of a second
SETTLE_SECONDS = 2.0  # a second edit within one tick of the file system's clock (2 s at worst) leaves no other mark
GRACE_SECONDS = 0.2  # an editor writes, or puts the new file in the old one's place, in far less


class FileSource:
    """Watches a file.

    A valid document is reported at once. A file that can't be read, or parsed, right after a change may be half
    written, and a missing one may be about to be replaced: that is reported only when it stays so for a moment.

    Args:
        path: It need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        """The name of the source in messages."""
        return str(self._path)

    async def changes(self) -> AsyncIterator[HintRead]:
        """Yields what is there now, and again after each change; its identity counts how often it came back."""
        loop = asyncio.get_running_loop()
        mark: object = None
        told: HintRead | None = None
        doubted: HintRead | None = None
        doubted_at = look_until = loop.time()
        returns = 0
        while True:
            now = loop.time()
            new_mark = _mark(self._path)
            if new_mark != mark:
                mark, look_until = new_mark, now + SETTLE_SECONDS
            if doubted is not None or now <= look_until:
                found = read_now(self._path, str(returns))
                if found == told:
                    doubted = None
                elif _is_good(found) or (told is None and found.text is None):
                    told, doubted = found, None
                    yield found
                elif found != doubted:
                    doubted, doubted_at = found, now
                elif now - doubted_at >= GRACE_SECONDS:
                    told, doubted = found, None
                    yield found
                if told is found and _is_absent(found):
                    returns += 1  # a file that returns is another object
            await asyncio.sleep(POLL_SECONDS)


def _mark(path: Path) -> object:
    """Returns what differs after the file was changed, replaced, removed, or made readable."""
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def read_now(path: Path, identity: str = "") -> HintRead:
    """Returns what a file holds now; it never waits for a writer, and reads little more than a document may have."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return HintRead(None, identity, "it is not a regular file")  # reading a pipe could take for ever
        with open(path, "rb") as file:
            return HintRead(file.read(MAX_BYTES + 1), identity)
    except (FileNotFoundError, NotADirectoryError):
        return HintRead(None)
    except OSError as error:
        return HintRead(None, identity, f"it can't be read: {error.strerror or error}")


def _is_absent(found: HintRead) -> bool:
    return found.text is None and not found.error


def _is_good(found: HintRead) -> bool:
    if found.text is None:
        return False
    try:
        parse(found.text)
    except HintError:
        return False
    return True
