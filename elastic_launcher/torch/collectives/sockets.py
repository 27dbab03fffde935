"""Finds the TCP connections of this process that belong to one process group, and shuts exactly those.

Each group has a listening socket of its own, and its members exchange their addresses. So a connection
belongs to the group if and only if one of its ends is the listener of one of them, even while other threads open and
close meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

FOLDER = "/proc/self/fd"
ATTEMPTS = 20  # another thread has to open a listener within the same fraction of a millisecond each time

Address = tuple[str, int]
T = TypeVar("T")


def _sockets() -> Iterator[socket.socket]:
    """Yields a duplicate of each IP stream socket of this process: its number can't be reused while it is looked at."""
    for name in os.listdir(FOLDER):
        with contextlib.suppress(OSError):
            if not os.readlink(f"{FOLDER}/{name}").startswith("socket:"):
                continue
            with _socket(os.dup(int(name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    yield found


def _socket(descriptor: int) -> socket.socket:
    """Returns the socket of a descriptor, which is closed where it is none: another thread may have used its number."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise


def _connections(listeners: set[Address]) -> Iterator[socket.socket]:
    """Yields a duplicate of each connection of this process whose one end is one of ``listeners``."""
    for found in _sockets():
        ends: set[Address] = set()
        with contextlib.suppress(OSError):  # without a peer it is not connected
            ends = {_address(found.getpeername()), _address(found.getsockname())}
        if ends & listeners:
            yield found


def _listeners() -> set[Address]:
    return {
        _address(found.getsockname())
        for found in _sockets()
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def _address(name: tuple[Any, ...]) -> Address:
    """Returns the address of an end as others write it: torch's own sockets are of IPv6, also towards IPv4."""
    return name[0].removeprefix("::ffff:"), name[1]


def open_listening(open_it: Callable[[], T]) -> tuple[T, Address]:
    """Opens a listener on a new port, and returns its address.

    ``open_it`` is called again in the rare case that another thread opened a listener at the same time.

    Raises:
        OSError: If the address can't be determined.
    """
    for _ in range(ATTEMPTS):
        before = _listeners()
        opened = open_it()
        new = _listeners() - before
        if len(new) == 1:
            return opened, new.pop()
    raise OSError(f"can't find the process group's listening socket among {len(new)} new ones of this process")


def find_connections(listeners: set[Address]) -> frozenset[int]:
    """Returns what identifies the connections of this process with one end in ``listeners``, for as
    long as they are open.
    """
    return frozenset(os.fstat(one.fileno()).st_ino for one in _connections(listeners))


def any_open(connections: frozenset[int]) -> bool:
    """Returns whether one of these connections is open; see `find_connections`."""
    return any(os.fstat(one.fileno()).st_ino in connections for one in _sockets())


def shut_connections(listeners: set[Address]) -> int:
    """Shuts every connection of this process whose one end is one of ``listeners``; returns how many there were.

    No listener itself is shut. Whoever waits for such a connection, here or at its other end, gets an error at once.
    """
    count = 0
    for found in _connections(listeners):
        with contextlib.suppress(OSError):  # its peer may close it at any time
            found.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def address_towards(host: str, port: int) -> str:
    """Returns this machine's address on the way to a host; ``127.0.0.1`` for one on this machine's loopback.

    Raises:
        OSError: If there is no way.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])
