"""Who knows what is done to a launcher from outside, where it does not run by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from elastic_launcher.coordinator.model.observations import Observation
from elastic_launcher.coordinator.model.state import State


class Escorted(Protocol):
    """A coordinator, as its escort needs it."""

    @property
    def state(self) -> State:
        """What is known of the job."""

    def observe(self, make: Callable[[float], Observation]) -> None:
        """Takes what happened outside, made for the present time; kept until it is known where the job stands."""

    def leave(self, why: str, close: Callable[[], None]) -> None:
        """Ends this launcher alone: the job goes on, with another coordinator.

        Args:
            why: What the user is told.
            close: Lets go of the nodes.
        """

    def note(self, kind: str, **fields: Any) -> None:
        """Writes an event; kept likewise."""


class Platform(Protocol):
    """Follows the launcher's surroundings."""

    async def run(self, job: Escorted) -> None:
        """Tells what happens there, for ever: also before it is known where the job stands."""

    async def signalled(self, job: Escorted) -> None:
        """SIGTERM has come: has the job stopped, or only this launcher leave it."""
