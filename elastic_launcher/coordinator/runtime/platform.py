"""The interface to a platform that controls the launcher from outside, such as a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from elastic_launcher.coordinator.model.observations import Observation
from elastic_launcher.coordinator.model.state import State


class JobControl(Protocol):
    """The coordinator, as a platform sees it."""

    @property
    def state(self) -> State:
        """The state of the job."""

    def observe(self, make: Callable[[float], Observation]) -> None:
        """Takes an observation from outside, made with the present time; held until a takeover is complete."""

    def leave(self, why: str, close: Callable[[], None]) -> None:
        """Ends this launcher alone: the job continues under another one; ``close`` lets go of the nodes."""

    def note(self, kind: str, **fields: Any) -> None:
        """Writes an event; held likewise."""


class Platform(Protocol):
    """Follows what happens to the launcher from outside."""

    async def run(self, job: JobControl) -> None:
        """Reports what happens there until it is cancelled, also before a takeover is complete."""

    async def signalled(self, job: JobControl) -> None:
        """Handles SIGTERM: stops the job, or has only this launcher leave it."""
