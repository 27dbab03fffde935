"""The output of ``run``: live progress on a terminal, plain lines elsewhere.

What the launcher has to say goes to standard error, what the script writes to standard output.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elastic_launcher.config import JobConfig
from elastic_launcher.events import Event
from elastic_launcher.launcher.output_pump import Stream
from elastic_launcher.report.describe import (
    describe,
    done,
    loss,
    position,
    quota,
    silent,
    slow,
    speed,
    time_left,
    waiting,
)
from elastic_launcher.report.progress_line import Told, tell
from elastic_launcher.report.state import JobState, advance
from elastic_launcher.report.words import number, plural

FRAMES_PER_SECOND = 4
MOST_LOGGED = 3
"""Values of ``job.log`` that are shown live."""
MOST_NAME = 24
LEAST_WITH_BAR = 76
"""Columns of a terminal from which on there is room for a bar."""
SILENT = ("job_finished",)
"""Kinds that the launcher itself prints, in its last line."""
ALARMING = ("node_failed", "node_lost", "straggler", "hint_rejected", "hint_missing", "warning", "events_gap")


class _Frames(Live):
    """Live lines that are not redrawn while earlier output is still unread."""

    def refresh(self) -> None:
        """Draws them."""
        file = self.console.file
        if not (isinstance(file, Stream) and file.outlet.behind):
            super().refresh()


class Display:
    """Shows a job while it runs, on standard error by default."""

    def __init__(
        self, config: JobConfig, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = config.name
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._clock = clock
        self._state = JobState()
        self._live: Live | None = None
        self._told = Told(clock())

    @property
    def state(self) -> JobState:
        """The state after the events so far."""
        return self._state

    def start(self) -> None:
        """Begins to show."""
        if self._has_room_for_live_lines():
            self._live = _Frames(
                console=self._console,
                get_renderable=lambda: panel(self._state, self._name, self._console.width),
                refresh_per_second=FRAMES_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=True,  # other output there appears above the live lines
            )
            self._live.start()

    def stop(self) -> None:
        """Ends the live lines; earlier output stays."""
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    def recall(self, events: Sequence[Event]) -> None:
        """Takes events that were shown before."""
        for event in events:
            self._state = advance(self._state, event)

    def feed(self, event: Event) -> None:
        """Takes an event."""
        self._state = advance(self._state, event)
        if event.kind not in SILENT and (line := describe(event)) is not None:
            self._say(line + self._pod(event), alarming=event.kind in ALARMING)
        self.tell_progress()

    def tell_progress(self) -> None:
        """Prints the progress, if that is due and there are no live lines."""
        if self._live is None:
            self._told, line = tell(self._told, self._state, self._clock())
            if line:
                self._say(line)

    def script_line(self, rank: int | None, text: str) -> None:
        """Shows a line that a script wrote; of what it overwrote itself (a progress bar), the last state."""
        text = text.rstrip("\r").rpartition("\r")[2]
        prefix = f"[rank {rank}] " if rank is not None else ""
        if self._live is not None and sys.stdout.isatty():  # the same terminal: above the live lines
            self._console.print(Text(prefix, style="cyan") + Text.from_ansi(text), soft_wrap=True)
        else:
            _print(prefix + text, sys.stdout)

    def _pod(self, event: Event) -> str:
        """Returns under which name ``kubectl`` knows a node that failed, to follow the line that says so."""
        node = self._state.nodes.get(event.get("node")) if event.kind in ("node_failed", "node_lost") else None
        return f" (pod {node.pod})" if node is not None and node.pod else ""

    def _has_room_for_live_lines(self) -> bool:
        """Returns whether a person looks at a terminal that can show them; rich takes FORCE_COLOR for one."""
        console = self._console
        able = console.is_terminal and not console.is_dumb_terminal and console.encoding.lower().startswith("utf")
        return able and console.file.isatty()

    def _say(self, line: str, *, alarming: bool = False) -> None:
        if self._live is not None:
            style = "yellow" if alarming else "dim"
            self._console.print(Text(f"elastic-launcher: {line}", style=style), soft_wrap=True)
        else:
            _print(f"elastic-launcher: {line}", sys.stderr)


def _print(line: str, file: TextIO) -> None:
    """Prints a line with the characters that the stream can encode."""
    try:
        print(line, file=file, flush=True)
    except UnicodeEncodeError:
        print(line.encode("ascii", "backslashreplace").decode("ascii"), file=file, flush=True)


def panel(state: JobState, name: str, width: int) -> RenderableType:
    """Returns the live lines, so many columns wide: how far the training is, and with what."""
    title = Text(name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…", style="bold")
    if not state.generation:
        return Group(Text(""), Text("  ").join([title, Text(f"waiting to train: {waiting(state) or 'no nodes yet'}")]))
    cells: list[RenderableType] = [title, Text(position(state)), Text(time_left(state), style="cyan")]
    bar = bool(state.total_steps) and width >= LEAST_WITH_BAR
    if bar:
        cells.insert(1, ProgressBar(total=1.0, completed=done(state), width=None))
    row = Table.grid(padding=(0, 2), expand=bar)
    for cell in cells:
        row.add_column(ratio=1 if isinstance(cell, ProgressBar) else None, no_wrap=True)
    row.add_row(*cells)
    return Group(Text(""), row, *_lines([Text(fact, style=style) for fact, style in _facts(state) if fact], width))


def _lines(facts: Sequence[Text], width: int) -> list[Text]:
    """Puts facts into lines, each fact whole where it fits."""
    lines: list[Text] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= width:
            lines[-1].append(" · ").append_text(fact)
        else:
            lines.append(Text().append_text(fact))
    return lines


def _facts(state: JobState) -> list[tuple[str, str]]:
    """Returns the second line's parts, each with its style."""
    logged = ((f"{name} {number(value)}", "") for name, value in list(state.logged.items())[:MOST_LOGGED])
    numbers = quota(state.quota)
    return [
        (plural(state.world_size, "rank"), "bold"),
        (numbers, "green"),
        (loss(state), "bold red" if isinstance(state.loss, str) else ""),
        (speed(state), ""),
        (plural(state.resizes, "resize"), ""),
        *logged,
        (slow(state), "yellow"),
        (silent(state), "yellow"),
        (waiting(state), "magenta"),
    ]
