"""A process of another user, for tests that root runs: what files it may use is for the kernel to say."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may become other users")
_VERSION_3 = 0x20080522
"""Of Linux's capability sets."""


@dataclass(frozen=True)
class User:
    """Who a process is; nobody has a capability, as in a pod that drops all.

    Attributes:
        uid: Its user.
        gid: Its own group.
        groups: Further ones.
    """

    uid: int
    gid: int
    groups: Sequence[int] = ()

    def does(self, act: Callable[[], object]) -> str:
        """Calls a function as this user, in a process of its own; returns what it raised, "" if nothing."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = ""
            try:
                os.umask(0o022)
                os.setgroups(list(self.groups))
                os.setgid(self.gid)
                os.setuid(self.uid)
                _drop_capabilities()
                act()
            except BaseException as error:  # noqa: BLE001 - the test is told
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        with open(reading, encoding="utf-8") as told:
            said = told.read()
        os.waitpid(child, 0)
        return said


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")


@contextmanager
def open_folder() -> Iterator[Path]:
    """Gives a folder that all users reach: pytest's own are for one."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path)
