"""torchrun's rendezvous with itself: each node has a round of its own, so that none ever waits for another.

Real ranks come from the job's generations. The round's store lives in the process, hence torchrun never touches the
network and outlives the coordinator; ``MASTER_ADDR`` and ``MASTER_PORT`` are the coordinator's store, given as
``--rdzv-endpoint``.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

BACKEND = "elastic-launcher"


class OwnRound(RendezvousHandler):
    """A rendezvous of one.

    Args:
        parameters: What torchrun was started with.

    Raises:
        ValueError: If the endpoint is not HOST:PORT.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        host, _, port = parameters.endpoint.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"--rdzv-endpoint is {parameters.endpoint!r}: it must be the HOST:PORT of the job's store")
        self._store_info = RendezvousStoreInfo(host, int(port))
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


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Returns what makes the handler: the entry point that torchrun's registry calls without arguments."""
    return OwnRound
