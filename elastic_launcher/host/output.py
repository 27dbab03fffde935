"""Writes the output of a rank or an agent to its log, on a disk that may be full."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE})


class _Log(io.FileIO):
    """A file that leaves out what its disk does not take."""

    def write(self, data: Buffer, /) -> int:
        rest = memoryview(data).cast("B")
        try:
            while rest and (written := super().write(rest)):  # a pipe takes a part where a signal comes in between
                rest = rest[written:]
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        return memoryview(data).nbytes


def spare_output() -> None:
    """Has a print that the disk refuses leave out its text, where it would raise OSError in the program.

    A stream that the program has replaced by its own is left as it is.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream: Any = getattr(sys, name)
        if type(stream) is io.TextIOWrapper and stream.fileno() == descriptor:
            stream.flush()
            log = _Log(descriptor, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(log, stream.encoding, stream.errors, write_through=True))


def give_up_unflushable() -> None:
    """Puts Python's own streams back where the program's can't be flushed: Python would end with code 120 for that."""
    for name in ("stdout", "stderr"):
        if not hasattr(getattr(sys, name), "flush"):
            setattr(sys, name, getattr(sys, f"__{name}__"))


def say(line: str, descriptor: int = 2) -> None:
    """Writes a line to standard error or, with descriptor 1, to standard output itself, whatever replaced `sys.stdout`.

    The line is for the log, not for the program's own text. A full disk keeps nobody here.
    """
    rest = f"{line}\n".encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]
