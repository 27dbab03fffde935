"""What the agents tell of their workers, where these are started again and again; see `agent.rank_exec.tell_life`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastic_launcher.coordinator.model.observations import NodeWaits, Observation, RankEnded, RankStarted
from elastic_launcher.coordinator.model.roster import Exit


class WorkerEvents:
    """Turns what agents tell into observations, each once, and remembers which nodes are told to go.

    Args:
        observe: Takes what happened.
        monotonic: The clock of observations.
    """

    def __init__(self, observe: Callable[[Observation], None], monotonic: Callable[[], float]) -> None:
        self._observe = observe
        self._monotonic = monotonic
        self._told: dict[int, int] = {}
        self._let_go: set[int] = set()

    def let_go(self, node: int) -> None:
        """Has a node told to go when it is heard of next."""
        self._let_go.add(node)

    def is_let_go(self, node: int) -> bool:
        """Returns whether a node is to go."""
        return node in self._let_go

    def take(self, node: int, life: dict[str, Any]) -> None:
        """Takes what happened.

        Raises:
            ValueError: If it is nothing that is known.
        """
        try:
            number, now = int(life["n"]), self._monotonic()
            if number <= self._told.get(node, 0):
                return  # told again, since the answer to the first time was lost
            found: Observation
            if "started" in life:
                place = int(life["rank"]), int(life["world_size"])
                found = RankStarted(now, node, int(life["started"]), int(life["pid"]), *place)
            elif "ended" in life:
                found = RankEnded(now, node, int(life["ended"]), Exit(life["exit_code"], life["signal"]))
            elif "waits" in life:
                found = NodeWaits(now, node)
            else:
                raise ValueError(f"nothing is known that happens as {life}")
        except (KeyError, TypeError) as error:
            raise ValueError(f"not all is said of {life}: {error}") from error
        self._told[node] = number
        self._observe(found)
