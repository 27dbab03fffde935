"""This process's connections to the c10d store, kept from one formation to the next.

Connecting can take seconds: torch asks the name service for the address's name, even if no answer comes. So a member
connects before it matters, and uses the connection again. A client serves one formation at a time, since one that
waits for a key holds up all other calls, and it never reconnects by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from elastic_launcher.torch.collectives.sockets import shut_connections

_lock = threading.Lock()
_idle: dict[str, list[TCPStore]] = {}


def connect_store(address: str, timeout: float) -> None:
    """Connects to a store at ``host:port`` for the next formation, unless it has; call it beside the training.

    Raises:
        RuntimeError: If the store can't be reached within ``timeout`` seconds.
    """
    with leased_store(address, timeout):
        pass


@contextlib.contextmanager
def leased_store(address: str, timeout: float) -> Iterator[TCPStore]:
    """Lends a client of the store at ``host:port`` exclusively; one with an error is not used again.

    ``timeout`` is in seconds, of the connection and of the client's calls.

    Raises:
        RuntimeError: If the store can't be reached.
    """
    client = _take(address)
    if client is None:
        client = TCPStore(*_host_and_port(address), None, False, timedelta(seconds=timeout), wait_for_workers=False)
    client.set_timeout(timedelta(seconds=timeout))
    yield client
    with _lock:
        _idle.setdefault(address, []).append(client)


def hang_up(address: str) -> None:
    """Ends all waits for a store, in any thread, with an error; the clients are unusable afterwards."""
    shut_connections({_host_and_port(address)})


def _take(address: str) -> TCPStore | None:
    """Returns a client that is still connected."""
    while True:
        with _lock:
            clients = _idle.get(address)
            if not clients:
                return None
            client = clients.pop()
        with contextlib.suppress(RuntimeError):
            client.check(["alive"])
            return client


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
