"""Replaces files as a whole: a reader sees all of the new one, or what was there before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from elastic_launcher.host.modes import share

OF_OTHERS = 0o077


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
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(draft, "xb", opener=partial(os.open, mode=mode)) as file:
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


def sync_folder(path: Path) -> None:
    """Has the names in a folder put on disk; does nothing on Windows, where a folder can't be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
