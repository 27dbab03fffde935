"""The output of a running job: the scripts' lines and the events, in order, with the launcher's own messages."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_launcher.events import Event
from elastic_launcher.launcher.argo_progress import ArgoProgress
from elastic_launcher.launcher.log_cursor import Shown
from elastic_launcher.launcher.log_follower import LOOKS, LogFollower

if TYPE_CHECKING:
    from elastic_launcher.launcher.display import Display

GONE = ("node_left", "node_failed", "node_lost")
"""Kinds of events after which a node has no more to say."""
LAST_LINES = "\nLast lines of "
"""The separator between the coordinator's message and the lines that it quotes."""
PROGRESS_SECONDS = 1.0
"""Between looks whether a line of progress is due: it is late by this at most."""


def say(message: str) -> None:
    """Prints a message of the launcher itself."""
    print(f"elastic-launcher: {message}", file=sys.stderr, flush=True)


class JobOutput:
    """Merges the scripts' output with the events in order, and shows the lines of failed ranks.

    Args:
        folder: The job's ``logs`` folder.
        first_node: Number of the first node whose lines are shown; those before are of earlier runs.
        come_back: Whether an earlier launcher has shown a part of them.
    """

    def __init__(
        self,
        display: Display,
        folder: Path,
        nproc_per_node: int,
        first_node: int = 1,
        come_back: bool = False,
        progress: ArgoProgress | None = None,
    ) -> None:
        self._display = display
        self._progress = progress
        self._nproc_per_node = nproc_per_node
        self.follower = LogFollower(folder, display.script_line, first_node=first_node, shown=Shown(folder, come_back))

    def take(self, event: Event) -> None:
        """Shows an event, after what was written before it."""
        for _ in range(LOOKS):
            if not self.follower.poll():
                break
        if event.kind == "node_failed":
            for local_rank in range(self._nproc_per_node):
                self.follower.show_failure(event["node"], local_rank)
        if event.kind == "node_lost" and event.get("member"):
            self.follower.show_failure(event["node"], (event["member"] - 1) % self._nproc_per_node)
        if event.kind in GONE:
            self.follower.forget(event["node"])
        self._display.feed(event)
        if self._progress is not None:
            self._write_progress(self._progress)

    async def tell_progress(self) -> None:
        """Prints the progress from time to time until it is cancelled, since there may be no event for long."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._display.tell_progress()

    def _write_progress(self, progress: ArgoProgress) -> None:
        try:
            progress.take(self._display.state)
        except OSError as error:
            say(f"the progress can't be written for Argo ({error}): it goes on without")

    def last_words(self, message: str, log_of: tuple[int, int] | None) -> str:
        """Shows the last lines of the rank that ended the job; returns its message without these and a traceback."""
        head, _, tail = message.partition(LAST_LINES)
        if log_of is None or not tail:
            return message
        self.follower.show_failure(*log_of)
        shown = {line.strip() for line in self.follower.last_lines(*log_of, lines=100)}
        return head if all(line.strip() in shown for line in tail.splitlines()[1:]) else message
