"""The rendezvous of the restart-based resize: the coordinator opens and closes the rounds.

It announces them in its store, as one JSON object: ``{"round": 3, "nodes": [1, 4], "store": "host:port", "over": 2}``.
A node that takes part is the rank of its place in ``nodes``. torchrun sees that a round is over as a node that waits
to come in: it ends its workers (SIGTERM, 30 s, SIGKILL) and comes for the next one.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from elastic_launcher import variables
from elastic_launcher.agent.rank_exec import tell_life

ANNOUNCED = "elastic-launcher/round"
"""Where the store has the object."""
POLL = 0.05
"""Seconds between looks for the next round."""
STORE_TIMEOUT = timedelta(seconds=60)
"""For one answer of a store; torchrun's own."""


class Rounds:
    """The rendezvous of one node, round after round, by the coordinator's store."""

    def __init__(self, host: str, port: int, node: int) -> None:
        self._address = host, port
        self._node = node
        self._store: TCPStore | None = None
        self._round = 0

    def next(self) -> RendezvousInfo:
        """Waits for a round that this node takes part in."""
        tell_life(waits=self._round)
        while True:
            found = self._look()
            if found["round"] > max(self._round, found["over"]) and self._node in found["nodes"]:
                break
            time.sleep(POLL)
        self._round = found["round"]
        os.environ[variables.ROUND] = str(self._round)  # for the workers
        host, _, port = found["store"].rpartition(":")
        store = TCPStore(host, int(port), is_master=False, timeout=STORE_TIMEOUT)
        place = found["nodes"].index(self._node)
        agents = PrefixStore("elastic-launcher/agents", store)  # workers have the keys without a prefix
        return RendezvousInfo(agents, place, len(found["nodes"]), RendezvousStoreInfo(host, int(port)))

    def is_over(self) -> bool:
        """Returns whether the workers of this node's round are to end."""
        try:
            return bool(self._look()["over"] >= self._round)
        except DistError:
            return False  # the coordinator has gone: how long its nodes go on is for the agent to say

    def _look(self) -> dict[str, Any]:
        if self._store is None:
            self._store = TCPStore(*self._address, is_master=False, timeout=STORE_TIMEOUT)
        found: dict[str, Any] = json.loads(self._store.get(ANNOUNCED))  # waits for the first announcement
        return found
