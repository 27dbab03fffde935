"""What happened in a job, one JSON object a line: the kinds, writing them, and reading them.

It is what the report, the metrics, the progress line and the tests read. Writing never stops a training: what can't be
written is counted, and the gap is marked as soon as there is room again.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
KINDS = (
    "job_started",
    "hint_applied",
    "hint_rejected",
    "hint_missing",
    "node_started",
    "node_warm",
    "node_left",
    "node_failed",
    "node_lost",
    "notice",
    "generation_formed",
    "progress",
    "log",
    "step_redone",
    "warning",
    "events_gap",
    "job_finished",
)


class EventError(ValueError):
    """A file of events that can't be read; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Event(Mapping[str, Any]):
    """Something that happened; its fields are its items.

    Attributes:
        kind: One of `KINDS`, or of a later version's.
        time: Seconds since the epoch.
        generation: The generation that trained then, 0 before the first.
        fields: What else is known of it.
    """

    kind: str
    time: float
    generation: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def to_line(self) -> str:
        """Returns the event as a line of the file, with its end."""
        head = {"v": VERSION, "time": self.time, "kind": self.kind, "generation": self.generation}
        return json.dumps({**head, **_plain(dict(self.fields))}, separators=(",", ":"), allow_nan=False) + "\n"

    @staticmethod
    def from_line(line: str) -> Event:
        """Reads a line.

        Raises:
            EventError: If it is no event, or of a version that this one can't read.
        """
        try:
            found = json.loads(line)
            version = found.pop("v")
            if version > VERSION:
                raise EventError(f"events of version {version}; this elastic-launcher reads {VERSION}: use a newer one")
            return Event(found.pop("kind"), float(found.pop("time")), int(found.pop("generation")), found)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if isinstance(error, EventError):
                raise
            raise EventError(f"no event: {line[:80]!r}") from error


def _plain(value: Any) -> Any:
    """Replaces numbers that JSON lacks by their names: nan, inf, -inf."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


class EventLog:
    """Appends events to a file, each by one write, so that a reader never sees half of two.

    Args:
        path: The file; made if it is not there.
        clock: Seconds since the epoch.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._clock = clock
        self._lost = 0
        self._torn = False

    def append(self, kind: str, generation: int = 0, **fields: Any) -> Event:
        """Writes an event and returns it; a full disk is no error, but marked by an ``events_gap`` afterwards."""
        event = Event(kind, self._clock(), generation, fields)
        if self._lost:
            gap = Event("events_gap", event.time, generation, {"lost": self._lost})
            if not self._write(gap.to_line()):
                self._lost += 1
                return event
            self._lost = 0
        if not self._write(event.to_line()):
            self._lost += 1
        return event

    def _write(self, line: str) -> bool:
        data = ("\n" if self._torn else "") + line
        encoded = data.encode()
        try:
            written = os.write(self._file, encoded)
        except OSError:
            return False
        self._torn = written < len(encoded)  # the disk became full within the line: the next one starts afresh
        return not self._torn

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


class EventFollower:
    """Reads a file of events as it grows.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def poll(self) -> list[Event]:
        """Returns the events that came since the last call.

        Raises:
            EventError: If a line is of a version that can't be read.
        """
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return _events(lines)


def _events(lines: list[bytes]) -> list[Event]:
    """Reads lines; one that a full disk or a power failure has torn is left out."""
    events = []
    for line in lines:
        text = line.decode(errors="replace").strip()
        if not text:
            continue
        try:
            events.append(Event.from_line(text))
        except EventError as error:
            if "version" in str(error):
                raise
    return events


def read_events(path: Path) -> list[Event]:
    """Reads a whole file of events; an incomplete last line is left out.

    Raises:
        EventError: If a line is of a version that can't be read.
        OSError: If the file can't be read.
    """
    return _events(Path(path).read_bytes().split(b"\n"))
