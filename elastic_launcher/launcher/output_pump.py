"""Writes the launcher's output in threads of their own, so that a blocked reader blocks nothing else.

A reader may block for hours: ``| less``, Ctrl-S, a connection that hangs. Unread output waits in memory.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TextIO, cast

MOST_BYTES = 16 << 20
"""Kept for a reader that is behind. The oldest lines go first: all are in the job's files too."""
STANDS_SECONDS = 5.0
"""A reader that takes nothing for so long counts as blocked: the end does not wait for it."""
GONE = (errno.EPIPE, errno.EIO)
"""Errors of writing to a reader that has gone, and to a terminal that was closed: nothing will come of trying again."""
_PIECE = 1 << 16
"""Bytes written at a time: what a pipe holds."""


class Outlet:
    """Writes lines to one reader, in the order in which it gets them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._left_out = 0
        self._writing = False
        self._moved_at = 0.0  # when something was last written
        held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread, at once
        threading.Thread(target=self._run, name="outlet", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, held)

    @property
    def behind(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._lines)

    def put(self, descriptor: int, line: bytes) -> None:
        """Takes a line, all of which is written at once, and never waits."""
        with self._changed:
            self._lines.append((descriptor, line))
            self._bytes += len(line)
            while self._bytes > MOST_BYTES:
                self._bytes -= len(self._lines.popleft()[1])
                self._left_out += 1
            self._changed.notify_all()

    def drain(self, asked: float) -> None:
        """Waits until all is written, except for a reader that was blocked since ``asked`` (monotonic seconds)."""
        with self._changed:
            while self._lines or self._writing:
                left = max(asked, self._moved_at) + STANDS_SECONDS - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                descriptor, piece = self._next()
                self._writing = True
            _write(descriptor, piece)
            with self._changed:
                self._writing, self._moved_at = False, time.monotonic()
                self._changed.notify_all()

    def _next(self) -> tuple[int, bytes]:
        descriptor, piece = self._lines[0][0], bytearray()
        if self._left_out:
            piece += (
                f"elastic-launcher: {self._left_out:,} lines are left out here, since this output was not read in "
                "time; all are in the work directory (logs/, events.jsonl)\n"
            ).encode()
            self._left_out = 0
        while self._lines and self._lines[0][0] == descriptor and len(piece) < _PIECE:
            line = self._lines.popleft()[1]
            self._bytes -= len(line)
            piece += line
        return descriptor, bytes(piece)


class Stream(io.TextIOBase):
    """A replacement for a stream, whose lines an outlet writes."""

    def __init__(self, stream: TextIO, outlet: Outlet) -> None:
        self._stream = stream
        self._descriptor = stream.fileno()
        self._part = b""
        self._adding = threading.RLock()
        self.outlet = outlet

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The other stream's."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The other stream's."""
        return self._stream.errors

    def fileno(self) -> int:
        """Returns the other stream's descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Returns whether that is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Returns that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Takes a text; whole lines of it are handed on."""
        written = text.encode(self.encoding, self.errors or "strict")
        with self._adding:
            self._part += written
            if "\n" in text:
                self.flush()
        return len(text)

    def flush(self) -> None:
        """Hands on what was written so far; does not wait until it is read."""
        with self._adding:
            part, self._part = self._part, b""
        if part:
            self.outlet.put(self._descriptor, part)


@contextlib.contextmanager
def unblocked() -> Iterator[None]:
    """Has outlets write what a block writes to standard output and error; at its end, all of it is written."""
    before = sys.stdout, sys.stderr
    out = _outlet_stream(sys.stdout, None)
    error = _outlet_stream(sys.stderr, out)
    sys.stdout, sys.stderr = cast(TextIO, out or sys.stdout), cast(TextIO, error or sys.stderr)
    try:
        yield
    finally:
        drain()
        sys.stdout, sys.stderr = before


def drain() -> None:
    """Waits until all that was written is read, except for a blocked reader."""
    asked = time.monotonic()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Stream):
            stream.flush()
            stream.outlet.drain(asked)


def _outlet_stream(stream: TextIO, other: Stream | None) -> Stream | None:
    """Returns the replacement of a stream; None where it has no descriptor.

    Where ``other`` has the same reader, lines of both keep their order.
    """
    try:
        stream.flush()
        descriptor = stream.fileno()
    except (AttributeError, OSError):  # closed when we were started, or a test's own
        return None
    together = other is not None and os.path.sameopenfile(descriptor, other.fileno())
    return Stream(stream, other.outlet if other is not None and together else Outlet())


def _write(descriptor: int, piece: bytes) -> None:
    """Writes a piece; it is left out if the stream has no reader or the disk is full."""
    try:
        while piece:
            try:
                piece = piece[os.write(descriptor, piece) :]
            except BlockingIOError:  # another process that has the same pipe or terminal made it non-blocking for all
                _wait_for_room(descriptor)
    except OSError as error:
        if error.errno not in GONE:
            return  # what scripts write is in their own files, and what happens among the events
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), descriptor)


def _wait_for_room(descriptor: int) -> None:
    """Waits until something can be written, or there is no reader any more."""
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    room.poll()
