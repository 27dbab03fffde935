"""Finds the hints that a command reads and edits: in a file, or in a ConfigMap of the cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from elastic_launcher.hints.edit import Change
from elastic_launcher.hints.reference import parse_reference
from elastic_launcher.host.files import replacing

try:
    import fcntl
except ImportError:  # not on Windows, where `hints` runs as well
    fcntl = None  # type: ignore[assignment]


class HintPlace(Protocol):
    """A place of a hints document."""

    @property
    def name(self) -> str:
        """The name of the store in messages."""

    def read(self) -> str | bytes:
        """Returns the document.

        Raises:
            OSError: If there is none, or it can't be read.
        """

    def edit(self, change: Change) -> None:
        """Changes the document, or makes it, so that no reader sees half of it and no other edit is lost.

        Raises:
            OSError: If it can't be written.
        """


def hint_place(text: str) -> HintPlace:
    """Returns the place that a text names: a path, or configmap/[NAMESPACE/]NAME.

    Raises:
        ConfigError: If it names neither.
    """
    reference = parse_reference(text)
    if reference is None:
        return FilePlace(Path(text))
    from elastic_launcher.hints.configmap_store import ConfigMapPlace  # loads what speaks with a cluster

    return ConfigMapPlace(reference)


class FilePlace:
    """A file.

    Args:
        path: It need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        """The name of the store in messages."""
        return str(self._path)

    def read(self) -> bytes:
        """Returns the document."""
        return self._path.read_bytes()

    def edit(self, change: Change) -> None:
        """Changes the document, or makes it."""
        target = self._path.resolve()  # a link stays one
        with _locked(target.parent):
            _replace(target, change(target.read_bytes() if target.exists() else b""))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps two edits apart; the lock is on the folder, since the file itself is replaced."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(target: Path, text: str) -> None:
    """Puts a text in a file's place, with the mode and, where that is permitted, the owner of the old one."""
    with replacing(target, mode=0o600, lasting=True) as file:
        file.write(text.encode())
        _keep_mode(Path(file.name), target)


def _keep_mode(new: Path, old: Path) -> None:
    if not old.exists():
        new.chmod(0o644)
        return
    found = old.stat()
    if hasattr(os, "chown"):
        with contextlib.suppress(PermissionError):
            os.chown(new, found.st_uid, found.st_gid)
    new.chmod(found.st_mode & 0o7777)
