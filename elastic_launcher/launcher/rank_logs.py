"""Reads the ranks' logs line by line, over all generations and runs, and follows them.

Lines carry no time. In one file they are in the order of writing, with a mark where another generation begins; so lines
are read by generation, and within one by rank.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic_launcher.control.messages import FAREWELLS, MARKER
from elastic_launcher.launcher.log_follower import NAME

UNADMITTED = 1 << 62
"""The generation of processes that never trained; read after all others."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a rank wrote.

    Attributes:
        local_rank: Its place there.
        generation: In which it was written, or of which its writer first was a rank; `UNADMITTED` if never.
        rank: That of its writer then; None if it never had one.
    """

    node: int
    local_rank: int
    generation: int
    rank: int | None
    text: str

    def __str__(self) -> str:
        return f"[node {self.node}] {self.text}" if self.rank is None else f"[rank {self.rank}] {self.text}"


class RankLog:
    """One rank's file, ``N-L.log``, rotated part included.

    Attributes:
        ranks: Which ranks it was, as far as it was read.
    """

    def __init__(self, path: Path) -> None:
        match = NAME.fullmatch(path.name)
        assert match is not None
        self.place = int(match["node"]), int(match["local_rank"])
        self._path = path
        self._rotated = path.with_name(f"{path.name}.1")
        self._offset = -1
        self._part = b""
        self._mark: tuple[int, int] | None = None
        self._held: list[str] = []
        self.ranks: set[int] = set()

    def new(self) -> Iterator[Line]:
        """Yields the new lines; those before the first mark are held back until the mark is there."""
        for raw in self._raw():
            yield from self._take(raw)

    def rest(self, rank: int | None = None) -> Iterator[Line]:
        """Yields what was held back, and a last line without an end: there is nothing more to come.

        ``rank`` wrote it, if there is no mark.
        """
        if self._part:
            part, self._part = self._part, b""
            yield from self._take(part)
        held, self._held = self._held, []
        for text in held:
            yield Line(*self.place, UNADMITTED, rank, text)

    def _take(self, raw: bytes) -> Iterator[Line]:
        # of a progress bar's line, what a terminal would show at its end
        text = raw.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        match = MARKER.search(text)
        before = text if match is None else text[: match.start()]
        if not before.startswith(FAREWELLS) and (match is None or before.strip()):
            if self._mark is None:
                self._held.append(before)
            else:
                yield Line(*self.place, *self._mark, before)
        if match is not None:
            self._mark = int(match["generation"]), int(match["rank"])
            self.ranks.add(self._mark[1])
            held, self._held = self._held, []
            for earlier in held:
                yield Line(*self.place, *self._mark, earlier)

    def _raw(self) -> Iterator[bytes]:
        """Yields new lines without their ends."""
        if self._offset < 0:
            self._offset = 0
            yield from self._read(self._rotated, 0)
        try:
            size = os.stat(self._path).st_size
        except FileNotFoundError:
            return
        if size < self._offset:  # cut, after all that it held was copied
            rest, self._offset = self._offset, 0
            yield from self._read(self._rotated, rest)
            self._offset = 0
        yield from self._read(self._path, self._offset)

    def _read(self, path: Path, offset: int) -> Iterator[bytes]:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            file.seek(offset)
            while chunk := file.read(_CHUNK):
                *lines, self._part = (self._part + chunk).split(b"\n")
                yield from lines
            self._offset = file.tell() if path == self._path else self._offset


class JobLines:
    """The logs of all ranks of a job, in its ``logs`` folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[tuple[int, int], RankLog] = {}

    @property
    def ranks(self) -> set[int]:
        """The ranks read so far."""
        return set().union(*(log.ranks for log in self._logs.values()))

    def written(self) -> Iterator[Line]:
        """Yields what is there, by generation and rank."""
        self._look()
        streams = [log.new() for log in self._logs.values()]
        yield from heapq.merge(*streams, key=lambda line: (line.generation, line.rank, line.node, line.local_rank))

    def new(self) -> Iterator[Line]:
        """Yields what was written since, file by file."""
        self._look()
        for _, log in sorted(self._logs.items()):
            yield from log.new()

    def rest(self) -> Iterator[Line]:
        """Yields what is left of ranks that ended before they trained, and lines without an end.

        Where no rank ever trained, the first one counts as rank 0, as in what the launcher shows.
        """
        first = None if self.ranks else min(self._logs, default=None)
        for place, log in sorted(self._logs.items()):
            yield from log.rest(0 if place == first else None)

    def _look(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in filter(NAME.fullmatch, os.listdir(self._folder)):
                log = RankLog(self._folder / name)
                self._logs.setdefault(log.place, log)
