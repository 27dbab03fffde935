"""Replaces files as a whole: a reader sees all of the new one, or what was there before. Tells torn ends of others."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from elastic_launcher.host.modes import share, sync_folder

OF_OTHERS = 0o077
ABANDONED_SECONDS = 600.0  # since its last write: the writer of such a draft was killed


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666, lasting: bool = False) -> Iterator[BinaryIO]:
    """Opens a file that takes its place once all of it is written.

    Args:
        path: Its place, which another file may have.
        mode: As `os.open` takes it; a file that others may read is shared as its folder is.
        lasting: Whether it is on disk before it has its place, and its name afterwards: it outlasts its machine.

    Yields:
        The file, which has a name of its own until then.

    Raises:
        OSError: If it can't be written; then nothing of it stays.
    """
    draft = path.parent / f".{path.name}.{os.urandom(4).hex()}"  # "." and "/" have no name
    try:
        with open(draft, "xb", opener=partial(os.open, mode=mode)) as file:
            _remove_abandoned(path, os.fstat(file.fileno()).st_mtime)
            if mode & OF_OTHERS:
                share(draft)
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if lasting:
        sync_folder(path.parent)


def _remove_abandoned(path: Path, now: float) -> None:
    """Removes the drafts of killed writers, by the clock of their disk.

    One that was only frozen can't put its old text in the file's place then.
    """
    with contextlib.suppress(OSError):
        for draft in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"):
            if now - draft.stat().st_mtime > ABANDONED_SECONDS:
                draft.unlink()


def ends_within_a_line(file: int) -> bool:
    """Returns whether an open file's last line has no end, as where the disk became full within it.

    Args:
        file: Its descriptor, which it can be read by.
    """
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
