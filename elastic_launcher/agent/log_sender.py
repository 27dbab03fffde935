"""Sends the ranks' output to the coordinator, where the coordinator can't read their files.

Invariants: what is sent of a rank has no gap that is not named; what waits to be sent never grows without bound,
however much a script writes or however long the coordinator is away.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from elastic_launcher.agent.echo import Echo

CHUNK = 1 << 17
"""Bytes told of one rank at a time."""
MOST_BEHIND = 1 << 20
"""Bytes that a rank may be ahead of what is sent: of more, the oldest are left out."""
CUT_BYTES = 64 << 20
"""A file above this size that was sent completely is truncated: its writer, which appends, continues at the start."""


class LogSender:
    """Follows one rank's file.

    Args:
        path: The file; it need not be there yet.
        send: Takes how many bytes were sent before, and the next ones in base64.
    """

    def __init__(self, path: Path, send: Callable[[int, str], None], echo: Echo) -> None:
        self._path = path
        self._send = send
        self._echo = echo
        self._read = 0
        self._told = 0

    def send(self) -> bool:
        """Sends a piece of the new output; returns whether there may be more."""
        # not there yet, or not given for now: the next look tries again
        with contextlib.suppress(OSError), open(self._path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            self._leave_out(size)
            file.seek(self._read)
            found = file.read(CHUNK)
            if found:
                self._read += len(found)
                self._put(found)
            if self._read >= CUT_BYTES and os.fstat(file.fileno()).st_size == self._read:
                file.truncate(0)
                self._read = 0
            return len(found) == CHUNK
        return False

    def send_rest(self) -> None:
        """Sends what is left, a bounded amount: a process may still write."""
        for _ in range(MOST_BEHIND // CHUNK + 1):
            if not self.send():
                break
        self._echo.end()

    def _leave_out(self, size: int) -> None:
        skipped = size - self._read - MOST_BEHIND
        if skipped > 0:
            self._read += skipped
            self._put(f"\n[elastic-launcher: {skipped} bytes of this log are left out here]\n".encode())

    def _put(self, data: bytes) -> None:
        self._send(self._told, base64.b64encode(data).decode())
        self._told += len(data)
        self._echo.take(data)
