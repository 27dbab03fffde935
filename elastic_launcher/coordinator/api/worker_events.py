"""Turns the agents' reports on workers of a restart-based resize into observations; see `agent.rank_exec.tell_life`."""

from __future__ import annotations

from collections.abc import Callable

from elastic_launcher.control.requests import Life
from elastic_launcher.coordinator.model.observations import NodeWaits, Observation, RankEnded, RankStarted
from elastic_launcher.coordinator.model.roster import Exit


class WorkerEvents:
    """Turns the agents' reports into observations, each once.

    Attributes:
        let_go: The nodes that have to leave after their next heartbeat.
    """

    def __init__(self, observe: Callable[[Observation], None], monotonic: Callable[[], float]) -> None:
        self._observe = observe
        self._monotonic = monotonic
        self._told: dict[int, int] = {}
        self.let_go: set[int] = set()

    def take(self, node: int, life: Life) -> None:
        """Takes what happened.

        Raises:
            ValueError: If it is nothing that is known.
        """
        if life.n <= self._told.get(node, 0):
            return  # repeated, since the answer to the first time was lost
        now = self._monotonic()
        found: Observation
        match life:
            case Life(started=int(place), pid=int(pid), rank=int(rank), world_size=int(size)):
                found = RankStarted(now, node, place, pid, rank, size)
            case Life(ended=int(place), exit_code=int() | None as code, signal=int() | None as by):
                found = RankEnded(now, node, place, Exit(code, by))
            case Life(waits=int()):
                found = NodeWaits(now, node)
            case _:
                raise ValueError(f"nothing is known that happens as {life}")
        self._told[node] = life.n
        self._observe(found)
