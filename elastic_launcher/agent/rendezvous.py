"""The rendezvous handlers for torchrun: one for in-process resizes, one for rounds that the coordinator calls.

In process each node has a round of its own, so that none ever waits for another.

Real ranks come from the job's generations. The round's store lives in the process, hence torchrun never touches the
network and outlives the coordinator; ``MASTER_ADDR`` and ``MASTER_PORT`` are the coordinator's store, given as
``--rdzv-endpoint``.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from elastic_launcher import variables
from elastic_launcher.agent.rounds import Rounds

BACKEND = "elastic-launcher"
SHARED = "shared"
"""Key of ``--rdzv-conf`` that asks for rounds of all nodes."""


class OwnRound(RendezvousHandler):
    """A rendezvous of one.

    Raises:
        ValueError: If the endpoint is not HOST:PORT.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._store_info = RendezvousStoreInfo(*_address(parameters))
        self._store = HashStore()
        self._run_id = parameters.run_id
        self._closed = False

    def get_backend(self) -> str:
        """Returns the name that ``--rdzv-backend`` knows it by."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether scripts may connect to ``MASTER_ADDR``: yes, the coordinator serves it as long as the job runs."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Returns at once: rank 0 of 1."""
        return RendezvousInfo(self._store, 0, 1, self._store_info)

    def is_closed(self) -> bool:
        """Returns whether torchrun closed the round."""
        return self._closed

    def set_closed(self) -> None:
        """Closes the round."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Returns 0: nobody else comes to this round, so torchrun never restarts its ranks."""
        return 0

    def get_run_id(self) -> str:
        """Returns the job's id."""
        return self._run_id

    def shutdown(self) -> bool:
        """Returns true: there is nothing to release."""
        return True


class SharedRound(OwnRound):
    """A rendezvous of all nodes that the coordinator names, again whenever it says so.

    Raises:
        ValueError: If the endpoint is not HOST:PORT.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        super().__init__(parameters)
        self._rounds = Rounds(*_address(parameters), int(os.environ[variables.NODE]))

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for the next round that this node takes part in."""
        return self._rounds.next()

    def num_nodes_waiting(self) -> int:
        """Returns 1 once the round is over: torchrun ends its workers and comes for the next one."""
        return int(self._rounds.is_over())


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Returns what makes the handler: the entry point that torchrun's registry calls without arguments."""
    return _make


def _make(parameters: RendezvousParameters) -> RendezvousHandler:
    return SharedRound(parameters) if parameters.get_as_bool(SHARED) else OwnRound(parameters)


def _address(parameters: RendezvousParameters) -> tuple[str, int]:
    host, _, port = parameters.endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"--rdzv-endpoint is {parameters.endpoint!r}: it must be the HOST:PORT of the job's store")
    return host, int(port)
