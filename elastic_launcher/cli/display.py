"""What `run` shows: a live line on a terminal, elsewhere a plain line at each change and every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elastic_launcher.config import JobConfig
from elastic_launcher.events import Event
from elastic_launcher.report.state import JobState, advance, describe

PLAIN_SECONDS = 5.0  # between two progress lines where there is no terminal


def progress_line(state: JobState) -> str:
    """Returns where the training stands, in one line."""
    parts = []
    if state.total_steps:
        parts.append(f"{100 * state.step // state.total_steps}%")
    epochs = f"/{state.epochs}" if state.epochs else ""
    steps = f"/{state.total_steps}" if state.total_steps else ""
    parts.append(f"epoch {state.epoch + 1}{epochs}")
    parts.append(f"step {state.step}{steps}")
    if state.loss is not None:
        parts.append(f"loss {state.loss}" if isinstance(state.loss, str) else f"loss {state.loss:.4g}")
    quota = f" (hint {state.quota})" if state.quota else ""
    parts.append(f"{state.world_size} ranks{quota}")
    if state.samples_per_second:
        parts.append(f"{state.samples_per_second:.0f} samples/s")
    if state.resizes:
        parts.append(f"{state.resizes} resizes")
    if state.seconds_left is not None:
        parts.append(f"{_duration(state.seconds_left)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Display:
    """Shows a job while it runs: ours on standard error, the script's lines on standard output.

    Args:
        config: The job.
        console: Where ours goes; standard error by default.
    """

    def __init__(self, config: JobConfig, console: Console | None = None) -> None:
        self._config = config
        self._console = console or Console(stderr=True, highlight=False)
        self._state = JobState()
        self._live: Live | None = None
        self._told = 0.0

    def start(self) -> None:
        """Begins to show."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=4, transient=True)
            self._live.start()

    def stop(self) -> None:
        """Ends the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def feed(self, event: Event) -> None:
        """Takes an event."""
        self._state = advance(self._state, event)
        line = describe(event)
        if line is not None:
            self._say(line)
        elif event.kind == "progress" and self._live is None and time.monotonic() - self._told >= PLAIN_SECONDS:
            self._told = time.monotonic()
            self._say(progress_line(self._state))

    def script_line(self, rank: int | None, text: str) -> None:
        """Shows a line that a script wrote."""
        line = f"[rank {rank}] {text}" if rank is not None else text
        with contextlib.suppress(OSError):  # a full disk behind the output is no reason to end a training
            if self._live is not None and sys.stdout.isatty():
                self._console.print(Text(line))
            else:
                print(line, flush=True)

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            if self._live is not None:
                self._live.console.print(Text(f"elastic-launcher: {line}", style="dim"))
            else:
                print(f"elastic-launcher: {line}", file=sys.stderr, flush=True)

    def _table(self) -> Table:
        state = self._state
        table = Table.grid(padding=(0, 2))
        filled = int(24 * state.step / state.total_steps) if state.total_steps else 0
        bar = Text("━" * filled, style="cyan") + Text("━" * (24 - filled), style="grey30")
        text = progress_line(state) if state.world_size else "waiting for the first nodes"
        table.add_row(Text(str(state.started.get("name", self._config.name)), style="bold"), bar, Text(text))
        return table
