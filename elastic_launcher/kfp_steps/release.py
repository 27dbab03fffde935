"""Ends a run whose hint has shrunk, so that its pod releases its GPUs; for ``release="exit"``.

Within a pod a shrink frees nothing for others: the pod keeps its GPUs until it ends.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from elastic_launcher.events import Event, EventError, EventFollower
from elastic_launcher.pipeline_step import going_on_beside, say

LOOK_SECONDS = 0.5
"""Between looks at the events; saving takes longer."""
CHOICES = ("keep", "exit")


class Shrinks:
    """Knows from a run's events whether it has to give something back."""

    def __init__(self) -> None:
        self._nodes = 0

    def take(self, events: Iterable[Event]) -> str:
        """Takes the events since the last call; returns why the run is to end, as soon as it is, "" before."""
        for event in events:
            if event.kind in ("job_started", "quota_back", "nodes_wait"):
                self._nodes = 0  # of a run before, or of this one before it was paused
            elif event.kind == "generation_formed":
                self._nodes = event["nodes"]
            elif event.kind == "hint_applied" and event["target_nodes"] < self._nodes:
                return f"the hint gives it {event['target_nodes']} of its {self._nodes} nodes"
        return ""


@contextlib.contextmanager
def ended_by_shrink(process: subprocess.Popen[str], folder: Path) -> Iterator[None]:
    """Has the run saved and ended (SIGTERM, exit code 75) when its hint shrinks, while the block runs."""

    def follow(over: threading.Event) -> None:
        events, shrinks = EventFollower(folder / "events.jsonl"), Shrinks()
        with contextlib.suppress(OSError, EventError):
            shrinks.take(events.poll())  # what a launcher before this one has done is not done again
        while not over.wait(LOOK_SECONDS):
            try:
                why = shrinks.take(events.poll())
            except (OSError, EventError) as error:
                say(f"release: the events can't be read ({error}): the run is not ended by a shrink")
                return
            if why:
                say(f'release="exit": {why}; it is saved and ended with exit code 75, which frees the GPUs of its pod')
                process.send_signal(signal.SIGTERM)
                return

    with going_on_beside("release", follow):
        yield
