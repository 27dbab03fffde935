"""A lock file that one process holds for as long as it lives, and that names this process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic_launcher.host.modes import open_shared

HELD = (errno.EWOULDBLOCK, errno.EACCES)


class LockHeld(Exception):
    """Another process holds the file; the message says which."""


class Lock:
    """A lock file, which the system gives up with this process, however that ends.

    Attributes:
        owner: How the file names this process.

    Raises:
        OSError: If it can't be written.
    """

    def __init__(self, path: Path) -> None:
        self.owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid())}
        self._descriptor: int | None = open_shared(path, os.O_RDWR)

    def take(self) -> None:
        """Takes the lock, and writes down who has it.

        Raises:
            LockHeld: If another process has it.
            OSError: If the file can't be written.
        """
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = self._read()
            if error.errno in HELD or _lives_here(other):  # a file system without locks: the owner's own word
                known = f"process {other['pid']} on {other.get('host')}" if other.get("pid") else "another launcher"
                raise LockHeld(known) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(self.owner).encode(), 0)

    def release(self) -> None:
        """Gives the lock up, if this process has it; the file stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self) -> dict[str, Any]:
        assert self._descriptor is not None
        try:
            found = json.loads(os.pread(self._descriptor, 4096, 0))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def process_start(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot: with the pid, that names it for good.

    None if it has ended, also where nobody has taken its exit code yet.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _lives_here(owner: dict[str, Any]) -> bool:
    pid = owner.get("pid")
    here = owner.get("host") == socket.gethostname() and isinstance(pid, int)
    return here and process_start(int(pid or 0)) == owner.get("started")


def launcher_lives(
    owner: Mapping[str, Any], host: str | None = None, started: Callable[[int], int | None] = process_start
) -> bool | None:
    """Returns whether the process that runs a job is alive; None where that can't be seen from here.

    Args:
        owner: ``host``, ``pid`` and, if known, ``started``, of the launcher.
        host: This machine; found out if None.
        started: Returns when a process started, and None where there is none.
    """
    pid = owner.get("pid")
    if not isinstance(pid, int) or owner.get("host") != (host or socket.gethostname()):
        return None
    found = started(pid)
    return found is not None and owner.get("started") in (None, found)
