"""The events of a job, one JSON object a line: their kinds, writing and reading.

It is what the report, the metrics, the progress line and the tests read. Invariant: writing never stops a training.
What can't be written is counted, and the gap is marked as soon as there is room again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_launcher.field_types import wrong_field
from elastic_launcher.host.files import ends_within_a_line
from elastic_launcher.host.modes import open_shared

VERSION = 1
KINDS = (
    "job_started",
    "coordinator_adopted",
    "hint_applied",
    "hint_rejected",
    "hint_missing",
    "node_started",
    "node_placed",
    "node_warm",
    "node_requeued",
    "node_left",
    "node_failed",
    "node_lost",
    "notice",
    "generation_formed",
    "progress",
    "log",
    "step_redone",
    "batch_changed",
    "micro_batch_lowered",
    "step_times",
    "straggler",
    "silent",
    "checkpoint_saved",
    "quota_lost",
    "quota_wait",
    "quota_back",
    "nodes_taken",
    "nodes_wait",
    "warning",
    "events_gap",
    "job_finished",
)
"""What this version writes; a reader takes others too."""
_KNOWN = frozenset(KINDS)


class EventError(ValueError):
    """Events that can't be read; the message says where and why."""


class EventVersionError(EventError):
    """Events of a later version than this one knows."""


class EventFieldError(EventError):
    """An event with a field that is missing or of another type; the message names it."""


@dataclass(frozen=True, slots=True)
class Event(Mapping[str, Any]):
    """Something that happened; its fields are its items.

    Attributes:
        kind: One of `KINDS`, or of a later version's.
        time: Seconds since the epoch.
        generation: The generation that trained then, 0 before the first.
        fields: What else is known of it, as JSON values.
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

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a field; ``default`` where it is missing, as in events of other versions."""
        return self.fields.get(name, default)

    def to_line(self) -> str:
        """Returns the event as a line of the file, with its end."""
        head = {"v": VERSION, "time": self.time, "kind": self.kind, "generation": self.generation}
        document = {**head, **_plain(self.fields), **head}  # no field takes the place of these
        return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"

    @staticmethod
    def from_line(line: str | bytes) -> Event:
        """Reads a line.

        Raises:
            EventVersionError: If it is of a version that this one can't read.
            EventError: If it is no event.
        """
        try:
            found = json.loads(line)
            version = found.pop("v")
            if version > VERSION:
                raise EventVersionError(
                    f"events of version {version}, and this elastic-launcher reads {VERSION}: use a newer one"
                )
            head = sys.intern(str(found.pop("kind"))), float(found.pop("time")), int(found.pop("generation"))
            if not math.isfinite(head[1]):
                raise ValueError("no time")
            if head[0] in _KNOWN and (wrong := wrong_field(found, head[0])):
                raise EventFieldError(f"{head[0]}: {wrong}")
            return Event(*head, {sys.intern(name): value for name, value in found.items()})  # long files, few names
        except EventError:
            raise
        except (ValueError, OverflowError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise EventError(f"no event: {line[:80]!r}") from error


def finite(value: object) -> float | None:
    """Returns a field's number; None for what is none, not finite (``nan``, ``inf`` and ``-inf`` are texts here), or
    beyond what a float holds.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value) if math.isfinite(value) else None
    return None


def _plain(value: Any) -> Any:
    """Replaces numbers that JSON lacks by their names: nan, inf, -inf."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def steady_clock(
    earliest: float = 0.0, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Returns a clock that reads the wall clock once, which someone may set, and then runs independent of it.

    It begins at ``earliest`` (seconds since the epoch) at the earliest.
    """
    offset = max(wall(), earliest) - monotonic()
    return lambda: offset + monotonic()


def _last_time(file: int, path: Path) -> float:
    if not os.fstat(file).st_size:  # nothing, or a device, which may have no end
        return 0.0
    try:
        return max((finite(event.time) or 0.0 for event in read_last(path)), default=0.0)
    except EventVersionError:
        return 0.0


class EventLog:
    """Appends events to a file, each by one write, so that a reader never sees half of two.

    A full disk or an I/O error is no error here: what is lost is counted, and an ``events_gap`` marks the place when
    writing works again.

    Args:
        path: The file; made if it is not there, continued if it is.
        clock: Seconds since the epoch; a steady one from the file's last event on, if None.

    Raises:
        OSError: If the file can't be opened.
    """

    def __init__(self, path: Path, clock: Callable[[], float] | None = None) -> None:
        self._file: int | None = open_shared(path, os.O_RDWR | os.O_APPEND)
        self._clock = clock if clock is not None else steady_clock(_last_time(self._file, path))
        self._lost = 0
        self._torn = ends_within_a_line(self._file)

    def append(self, kind: str, generation: int = 0, **fields: Any) -> Event:
        """Writes an event, and returns it as a reader will find it.

        Raises:
            ValueError: If the log is closed.
        """
        event = Event(kind, self._clock(), generation, _plain(fields))
        if not (self._mark_gap(event.time, generation) and self._write(event.to_line())):
            self._lost += 1
        return event

    @property
    def lost(self) -> int:
        """How many events are missing at the end of the file."""
        return self._lost

    def _mark_gap(self, now: float, generation: int) -> bool:
        """Returns whether nothing is missing from the file, or what is missing has now been marked."""
        if self._lost:
            if not self._write(Event("events_gap", now, generation, {"lost": self._lost}).to_line()):
                return False
            self._lost = 0
        return True

    def _write(self, line: str) -> bool:
        if self._file is None:
            raise ValueError("the events are closed")
        encoded = (("\n" if self._torn else "") + line).encode()
        try:
            written = os.write(self._file, encoded)
        except OSError:
            return False
        self._torn = written < len(encoded)  # the disk became full within the line: the next one starts afresh
        return written >= len(encoded) - 1  # all but the end of the line is a whole event

    def close(self) -> None:
        """Closes the file, after a last attempt to mark a gap; does nothing the second time."""
        if self._file is not None:
            self._mark_gap(self._clock(), 0)
            os.close(self._file)
            self._file = None


LeftOut = Callable[[int, EventError], object]


class EventFollower:
    """Reads a file of events, which need not be there yet, as it grows; one that takes its place from the beginning.

    Args:
        offset: What lies before this place in it, a line's beginning, is left out.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._rest = b""
        self._file = 0  # the number of the file that was read

    def poll(self, left_out: LeftOut = lambda *_: None) -> list[Event]:
        """Returns the events that came since the last call.

        Args:
            left_out: Takes the number, from 1, and the error of each new line that is left out.

        Raises:
            EventVersionError: If a line is of a version that can't be read.
            OSError: If the file is there and can't be read.
        """
        try:
            with open(self._path, "rb") as file:
                number = os.fstat(file.fileno()).st_ino
                if self._file not in (0, number):
                    self._offset, self._rest = 0, b""
                self._file = number
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return list(_events(lines, left_out))


def read_last(path: Path, size: int = 1 << 16) -> list[Event]:
    """Returns the last events of a file, as many as fit into ``size`` bytes; none where there is no file.

    Raises:
        EventVersionError: If one is of a version that can't be read.
        OSError: If the file is there and can't be read.
    """
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size))
            return list(_events(file.read().split(b"\n")))
    except FileNotFoundError:
        return []


def _events(lines: Iterable[bytes], left_out: LeftOut = lambda *_: None) -> Iterator[Event]:
    """Reads lines; one that a full disk or a power failure has torn, or that someone edited, is left out."""
    for number, line in enumerate(lines, 1):
        try:
            if line:
                yield Event.from_line(line)
        except EventVersionError:
            raise
        except EventError as error:
            left_out(number, error)


def read_events(path: Path, tell: Callable[[str], object] = lambda _: None) -> list[Event]:
    """Reads a whole file of events; torn lines are left out, an incomplete last one too.

    Args:
        path: The file.
        tell: Takes a message about the lines that were left out, if there are any but an incomplete last one.

    Raises:
        EventVersionError: If a line is of a version that can't be read; the message names the file.
        EventError: If there is text in the file, and no event; the message names the file.
        OSError: If the file can't be read.
    """
    *lines, last = Path(path).read_bytes().split(b"\n")
    wrong: list[tuple[int, EventError]] = []
    try:
        events = list(_events(lines, lambda number, error: wrong.append((number, error))))
        events += _events([last])
    except EventVersionError as newer:
        raise EventVersionError(f"{path}: {newer}") from None
    if not events and lines:
        raise EventError(
            f"{path} holds no events" + "".join(f"; line {number}: {error}" for number, error in wrong[:1])
        )
    if wrong:
        number, error = wrong[0]
        others = f", with {len(wrong) - 1:,} more of the kind" if len(wrong) > 1 else ""
        tell(f"{path}, line {number}: {error}; this line is left out{others}")
    return events


def significant(value: float, digits: int) -> float:
    """Returns a number with so many significant digits, as events and documents have it."""
    return float(f"{value:.{digits}g}")
