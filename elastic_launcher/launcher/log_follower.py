"""Follows the ranks' output: shows rank 0's lines and those of failures, and keeps the files small.

Each rank writes to a file of its own, ``logs/N-L.log``, in which the torch library marks each generation and the rank
that it has there. Before the first mark the first rank's file counts as rank 0's; what others write until then is held
back, and shown if one of them turns out to be rank 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from elastic_launcher.control.messages import FAREWELLS, MARKER
from elastic_launcher.coordinator.runtime.failure_excerpt import TRACEBACK, last_lines
from elastic_launcher.launcher.log_cursor import Shown

NAME = re.compile(r"(?P<node>\d+)-(?P<local_rank>\d+)\.log")

POLL = 0.1
"""Seconds between looks at the files."""
ROTATE_BYTES = 64 << 20
"""A file above this is copied to ``N-L.log.1`` and cut to nothing; its writer, which appends, goes on at the start."""
_CHUNK = 1 << 18
"""Bytes read of one file at a time, so that a script that floods its log holds up nobody."""
LOOKS = 4
"""Pieces of each log that an event waits for: a script that floods its log would have it wait for ever."""
_LONGEST_LINE = 1 << 16
_QUIET = 100
"""Looks without anything new after which a file is closed until it grows: most nodes of a long job are gone."""
_APART = 100
"""Polls from one look at a closed file of a node that is gone to the next: nothing writes there any more."""
_HELD = 1000
"""Lines kept of each rank: what may have to be shown later."""
_FAR = 200
"""Lines before the end of a log in which a traceback is looked for."""


@dataclass(slots=True)
class _Log:
    """One rank's file.

    Attributes:
        descriptor: Its open file; None while it is quiet.
        quiet: Looks since something new was there.
        offset: How much of it was read.
        part: The beginning of a line whose end is not written yet.
        rank: The rank that its last mark names.
        shown: Whether its lines are shown at any rank.
        gone: Whether its node is.
        recent: Its last lines.
        unseen: How many of the newest of them were not shown.
    """

    path: Path
    descriptor: int | None = None
    quiet: int = 0
    offset: int = 0
    part: bytes = b""
    rank: int | None = None
    shown: bool = False
    gone: bool = False
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=_HELD))
    unseen: int = 0

    def close(self) -> None:
        """Closes its file until it is read again."""
        if self.descriptor is not None:
            with contextlib.suppress(OSError):  # a stale handle: it is gone all the same
                os.close(self.descriptor)
            self.descriptor = None


class LogFollower:
    """Reads the files of a job's ranks as they grow.

    Args:
        folder: The job's ``logs`` folder.
        show: Takes each line to show, with its rank; before the rank is known with None, and the line names the node.
        rotate_bytes: The size above which a file is rotated.
        first_node: Number of the first node that is followed; those before are of earlier runs.
        shown: Remembers how far the files were shown: a launcher after a takeover reads them from the beginning, and
            shows what comes after that.
    """

    def __init__(
        self,
        folder: Path,
        show: Callable[[int | None, str], None],
        rotate_bytes: int = ROTATE_BYTES,
        *,
        first_node: int = 1,
        shown: Shown | None = None,
    ) -> None:
        self._folder = folder
        self._show = show
        self._rotate_bytes = rotate_bytes
        self._first_node = first_node
        self._logs: dict[tuple[int, int], _Log] = {}
        self._marked = False
        self._known = shown
        self._muted = False
        self._polls = 0

    async def run(self) -> None:
        """Follows the files until it is cancelled."""
        while True:
            if not self.poll():
                self._remember()
                await asyncio.sleep(POLL)
            await asyncio.sleep(0)

    def _remember(self) -> None:
        if self._known is not None:
            self._known.remember({place: log.offset - len(log.part) for place, log in self._logs.items()})

    def poll(self) -> bool:
        """Reads a piece of what is new in each file; returns whether there may be more.

        Closed files of nodes that are gone are looked at in turn, a few in each poll.
        """
        self._polls += 1
        self._find()
        due = [
            (place, log)
            for number, (place, log) in enumerate(sorted(self._logs.items()))
            if not log.gone or log.descriptor is not None or (number + self._polls) % _APART == 0
        ]
        more = [self._read(place, log) for place, log in due]
        return any(more)

    def _find(self) -> None:
        for name in self._names():
            match = NAME.fullmatch(name)
            if not match or int(match["node"]) < self._first_node:
                continue
            place = int(match["node"]), int(match["local_rank"])
            if place not in self._logs:
                self._logs[place] = _Log(self._folder / name)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except OSError:  # not given for now: the files that are known are read all the same
            return []

    def close(self) -> None:
        """Reads what is left, lines without an end too, and closes the files."""
        self._find()
        for place, log in sorted(self._logs.items()):
            while self._read(place, log):
                pass
            if log.part:
                self._take(place, log, log.part)
            log.close()
        self._logs.clear()

    def show_failure(self, node: int, local_rank: int, lines: int = 20) -> None:
        """Shows the last lines of a rank that were not shown yet, and from now on all that it writes.

        All of the last traceback is among them: some libraries write much at the end of Python.
        """
        log = self._logs.get((node, local_rank))
        if log is None or log.shown:
            return
        self._catch_up((node, local_rank), log)
        log.shown = True
        _recall(log)
        newest = [log.recent[-back] for back in range(1, min(log.unseen, _FAR) + 1)]
        traceback = next((back for back, line in enumerate(newest, 1) if line.startswith(TRACEBACK)), 0)
        log.unseen = min(log.unseen, max(lines, traceback))
        self._show_unseen((node, local_rank), log)

    def forget(self, node: int) -> None:
        """Drops the lines of a node that is gone, which its files keep: a long job has many such nodes."""
        for (other, _), log in self._logs.items():
            if other == node:
                log.gone = True
                log.recent.clear()

    def last_lines(self, node: int, local_rank: int, lines: int = 20) -> list[str]:
        """Returns the last lines that a rank wrote."""
        log = self._logs.get((node, local_rank))
        if log is None:
            return []
        self._catch_up((node, local_rank), log)
        if not log.recent:
            return last_lines(log.path, lines)
        recent = [*log.recent, log.part.decode(errors="replace")] if log.part else list(log.recent)
        return recent[-lines:]

    def _catch_up(self, place: tuple[int, int], log: _Log) -> None:
        for _ in range(LOOKS):
            if not self._read(place, log):
                break

    def _read(self, place: tuple[int, int], log: _Log) -> bool:
        try:
            if log.descriptor is None:
                if log.quiet and os.stat(log.path).st_size == log.offset:
                    return False
                log.descriptor = os.open(log.path, os.O_RDWR | os.O_CLOEXEC)
            if os.fstat(log.descriptor).st_size < log.offset:  # cut by someone else
                log.offset = 0
            chunk = os.pread(log.descriptor, _CHUNK, log.offset)
        except OSError:  # removed by someone, or not given for now: the next poll tries again
            log.close()
            return False
        log.quiet = 0 if chunk else log.quiet + 1
        if log.quiet > _QUIET:
            log.close()
            return False
        end = log.offset - len(log.part)
        log.offset += len(chunk)
        *lines, log.part = (log.part + chunk).split(b"\n")
        for line in lines:
            end += len(line) + 1
            self._muted = self._known is not None and self._known.was_shown(place, end)
            self._take(place, log, line)
        self._muted = False
        if len(log.part) > _LONGEST_LINE:
            self._take(place, log, log.part)
            log.part = b""
        if len(chunk) < _CHUNK and log.offset >= self._rotate_bytes:
            self._rotate(place, log, log.descriptor)
        return len(chunk) == _CHUNK

    def _take(self, place: tuple[int, int], log: _Log, line: bytes) -> None:
        # of a progress bar's line, what a terminal would show at its end
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        match = MARKER.search(text)
        if match:
            self._mark(place, log, int(match["rank"]))
            text = text[: match.start()]
            if not text.strip():
                return
        if text.startswith(FAREWELLS):
            return
        log.recent.append(text)
        log.unseen = min(log.unseen + 1, _HELD)
        presumed = not self._marked and place == min(self._logs)
        if log.shown or log.rank == 0 or presumed:
            self._show_unseen(place, log, presumed=presumed)

    def _mark(self, place: tuple[int, int], log: _Log, rank: int) -> None:
        held_back = log.rank is None and rank == 0
        self._marked = True
        log.rank = rank
        if held_back:
            self._show_unseen(place, log)
        else:
            log.unseen = 0

    def _show_unseen(self, place: tuple[int, int], log: _Log, *, presumed: bool = False) -> None:
        rank = 0 if presumed and log.rank is None else log.rank
        _recall(log)
        newest = [log.recent[-back] for back in range(log.unseen, 0, -1)]
        log.unseen = 0
        for text in newest if not self._muted else ():
            self._show(rank, text if rank is not None else f"[node {place[0]}] {text}")

    def _rotate(self, place: tuple[int, int], log: _Log, descriptor: int) -> None:
        """Copies a file that was read to its end, and cuts it."""
        node, local_rank = place
        try:
            copy = os.open(self._folder / f"{node}-{local_rank}.log.1", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError:  # no room for a copy: the file itself goes on
            return
        try:
            position = 0
            while position < log.offset:
                position += os.copy_file_range(descriptor, copy, log.offset - position, position)
            if os.fstat(descriptor).st_size == log.offset:  # written to meanwhile: the next poll tries again
                os.ftruncate(descriptor, 0)
                log.offset = 0
        except OSError:
            return
        finally:
            with contextlib.suppress(OSError):
                os.close(copy)


def _recall(log: _Log) -> None:
    """Reads lines that were forgotten, and not shown, from the file again."""
    if log.unseen > len(log.recent):
        log.recent.extend(last_lines(log.path, log.unseen))
        log.unseen = min(log.unseen, len(log.recent))
