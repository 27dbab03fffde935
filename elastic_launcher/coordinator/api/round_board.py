"""Announces the rounds of the restart-based resize: in an object of the job's store, with a store for each round.

Each round's workers find each other in a store that is the coordinator's and new: no worker's end takes it away, and no
key of an earlier round is in it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from elastic_launcher.coordinator.runtime.store import Store

ANNOUNCED = "elastic-launcher/round"
"""The object's key; `agent.rounds` says what is in it."""


class RoundBoard:
    """Announces rounds, one after the other, in the job's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._meeting: Store | None = None
        self._now: dict[str, Any] = {"round": 0, "nodes": [], "store": "", "over": 0}
        self._changes: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def open(self, number: int, nodes: tuple[int, ...]) -> None:
        """Announces a round."""
        self._changes.put_nowait({"round": number, "nodes": list(nodes)})

    def close(self, number: int) -> None:
        """Announces that a round is over."""
        self._changes.put_nowait({"over": number})

    async def run(self) -> None:
        """Writes the announcements until it is cancelled; the job's store must answer."""
        while True:
            await self._store.set(ANNOUNCED, json.dumps(self._now))
            change = await self._changes.get()
            if "round" in change:
                before, self._meeting = self._meeting, Store()
                await self._meeting.serve()
                change["store"] = self._meeting.address
                if before is not None:
                    before.close()
            self._now |= change

    def shut(self) -> None:
        """Closes the last round's store."""
        if self._meeting is not None:
            self._meeting.close()
