"""Restarts a job from its last checkpoint after all its nodes have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.resume.resume_search import ResumeSearch
from elastic_launcher.coordinator.rules.checkpoint_restart import state_after
from elastic_launcher.coordinator.runtime.engine_driver import EngineDriver
from elastic_launcher.coordinator.runtime.store import Store


class FullRestart:
    """Ends all nodes of a job and restarts it from its last checkpoint, at each request."""

    def __init__(self, driver: EngineDriver, store: Store, search: ResumeSearch) -> None:
        self._driver = driver
        self._store = store
        self._resume_search = search
        self._asked = asyncio.Event()

    @property
    def under_way(self) -> bool:
        """Whether a restart was requested and has not been completed."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Requests a restart."""
        self._asked.set()

    async def run(self, ended: Callable[[], State], begin: Callable[[State, Sequence[str]], None]) -> None:
        """Restarts the job at each request, until it is cancelled.

        Args:
            ended: Returns the state of the job when its nodes were ended.
            begin: Takes the first state after the restart, and why checkpoints were refused.

        Raises:
            CannotRestart: If no checkpoint could be read for too long.
        """
        while True:
            await self._asked.wait()
            await self._driver.end_all()
            self._store.forget_all()
            first, refused = await self._resume_search.look(ended())
            self._asked.clear()
            begin(state_after(ended(), first), refused)
