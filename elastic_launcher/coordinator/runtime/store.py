"""The c10d store in which each generation's process groups find each other; it outlives every worker."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from elastic_launcher.coordinator.runtime.endpoints import HERE, LOOPBACK, Endpoint
from elastic_launcher.host.imports import uncollected

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

GROUPS = "formation"  # what the keys of a group begin with; its number follows
BACKLOG = 1024  # members that connect before torch is imported wait here


class Store:
    """A TCPStore on a socket of our own, which has its address (``host:port``) at once."""

    def __init__(self, where: Endpoint = HERE) -> None:
        self._bind = where.bind
        self._socket = _listen(where.bind, where.store_port)
        self._port: int = self._socket.getsockname()[1]
        self._server: TCPStore | None = None
        self.address = f"{where.advertised}:{self._port}"

    async def serve(self) -> None:
        """Starts to answer. Torch is imported in a thread, since that takes seconds.

        Raises:
            ImportError: If torch is not installed.
            RuntimeError: If the store can't be opened.
        """
        if self._socket.fileno() >= 0:
            self._server = await asyncio.to_thread(self._open)

    def forget_before(self, formation: int) -> None:
        """Removes the keys of groups before a formation that has met: they would add up with each resize."""
        for key in self._keys():
            kind, _, rest = key.partition("/")
            number = rest.partition("/")[0]
            if kind == GROUPS and number.isdecimal() and int(number) < formation:
                self._delete(key)

    def forget_all(self) -> None:
        """Removes all keys: their owners are gone, and a script's own groups would use the same ones."""
        if self._server is not None and not hasattr(self._server, "list_keys"):  # an older torch: another store there
            self._server = None
            self._socket = _listen(self._bind, self._port)
            self._server = self._open()
        for key in self._keys():
            self._delete(key)

    async def set(self, key: str, value: str) -> None:
        """Puts a value where nodes find it; the store must have begun to answer."""
        if self._server is not None:
            await asyncio.to_thread(self._server.set, key, value)

    def close(self) -> None:
        """Stops to listen."""
        self._server = None  # its destructor stops it
        self._socket.close()

    def _keys(self) -> list[str]:
        if self._server is None or not hasattr(self._server, "list_keys"):
            return []  # an older torch, which can't list its keys: some 200 bytes a rank and resize stay
        return list(self._server.list_keys())

    def _delete(self, key: str) -> None:
        assert self._server is not None
        self._server.delete_key(key)

    def _open(self) -> TCPStore:
        return serve_on(self._socket.detach(), self._port)


def _listen(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # in a takeover, connections of the coordinator before may still be open on this port
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(BACKLOG)
    return listener


def serve_on(listener: int, port: int) -> TCPStore:
    """Returns a store that answers on a listening socket, given by its descriptor, and closes it at its end."""
    with uncollected():
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        return TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener)
    except NotImplementedError:  # torch 2.5 takes a socket in its older server only
        return TCPStore(
            LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener, use_libuv=False
        )
