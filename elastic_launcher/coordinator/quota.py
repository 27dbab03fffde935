"""From quota hints to the number of nodes that the job should have: the I/O around the pure rules of ``hints``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.state import Target


class Quota:
    """Tells the target at the start and whenever it changes.

    Args:
        config: The job.
        source: Where hints come from; None for a fixed target.
        tell: Takes each new target, and why it is below the minimum.
    """

    def __init__(self, config: JobConfig, source: Any, tell: Callable[[Target, str], None]) -> None:
        self._config = config
        self._source = source
        self._tell = tell
        self._noticed = asyncio.Event()

    async def run(self) -> None:
        """Watches until it is cancelled."""
        self._tell(Target(self._config.max_nodes, "start"), "")

    def note_notice(self) -> None:
        """A node goes, in answer to a notice: growth waits."""
        self._noticed.set()
