"""The new start of a job in which nothing is left to go on with: all its nodes end, and it begins from a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from elastic_launcher.coordinator.model.observations import Interrupted, Observation, StopAsked, TargetChanged
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.resume.resume_search import ResumeSearch
from elastic_launcher.coordinator.rules.checkpoint_restart import state_after
from elastic_launcher.coordinator.runtime.engine_driver import EngineDriver
from elastic_launcher.coordinator.runtime.store import Store


class FullRestart:
    """Brings a job from its last node's end to its new beginning, as often as that is asked for.

    Args:
        driver: Ends its nodes.
        store: Where its groups met.
        again: Finds what it goes on from.
    """

    def __init__(self, driver: EngineDriver, store: Store, search: ResumeSearch) -> None:
        self._driver = driver
        self._store = store
        self._resume_search = search
        self._asked = asyncio.Event()
        self._held: list[Observation] = []

    def ask(self, target: TargetChanged | None) -> None:
        """Has the job begin anew.

        Args:
            target: What it is to begin with; None where that is not known yet.
        """
        self._asked.set()
        self._held = [] if target is None else [target]

    def holds(self, observation: Observation) -> bool:
        """Keeps what somebody wants of the job for when it has begun anew; returns whether it was that."""
        wanted = self._asked.is_set() and isinstance(observation, (TargetChanged, Interrupted, StopAsked))
        self._held += [observation] if wanted else []
        return wanted

    async def run(self, ended: Callable[[], State], begin: Callable[[State, Sequence[str]], None]) -> None:
        """Does so whenever it is asked for, for ever.

        Args:
            ended: Returns what was known of the job when its nodes were ended.
            begin: Takes what is known when it begins anew, and why checkpoints were refused; what was kept comes after.

        Raises:
            CannotRestart: If no checkpoint could be had for too long.
        """
        while True:
            await self._asked.wait()
            await self._driver.end_all()
            self._store.forget_all()
            first, refused = await self._resume_search.look(ended())
            self._asked.clear()
            begin(state_after(ended(), first), refused)

    def release(self) -> list[Observation]:
        """Returns what was kept, which is to be observed now."""
        held, self._held = self._held, []
        return held
