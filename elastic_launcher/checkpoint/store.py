"""One interface to a job's checkpoints, in a folder or under a URL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from elastic_launcher.checkpoint import folder
from elastic_launcher.checkpoint.files import read_manifest
from elastic_launcher.checkpoint.folder import Found
from elastic_launcher.checkpoint.manifest import FileEntry, Manifest, Mark
from elastic_launcher.checkpoint.remote import RemoteStore, Write
from elastic_launcher.checkpoint.storage import is_url


class LocalStore:
    """The checkpoints in a folder; ``job`` is the id of the job that writes there, "" where it is only read.

    Errors are those of the functions of `folder`.
    """

    def __init__(self, path: Path, job: str = "") -> None:
        self.place = str(path)
        self._path = path
        self._job = job
        self._last: tuple[Path, Manifest] | None = None  # that this process has written

    def publish(self, write: Write, mark: Mark, keep: int) -> tuple[str, Manifest]:
        """Adds a checkpoint, all of it or nothing; returns its path and its manifest."""

        def write_draft(draft: Path) -> Manifest:
            return write(draft, lambda entry: self._link(entry, draft))

        path = folder.publish(self._path, write_draft, mark, keep, self._job)
        self._last = path, read_manifest(path)
        return str(path), self._last[1]

    def _link(self, entry: FileEntry, draft: Path) -> bool:
        """Gives a file of the last checkpoint a second name in a draft; returns whether that could be done."""
        if self._last is None or entry not in self._last[1].files:
            return False
        try:
            os.link(self._last[0] / entry.name, draft / entry.name)
        except OSError:  # it is gone, or the file system has no links
            return False
        return True

    def find_newest(self, refuse: Callable[[Manifest], str] = lambda manifest: "") -> Found:
        """Returns the newest good checkpoint."""
        return folder.find_newest(self._path, refuse)

    @contextlib.contextmanager
    def brought(self, path: Path) -> Iterator[Path]:
        """Gives a block a checkpoint as it is: all machines see the folder at the same path."""
        yield path

    def last_term(self) -> int:
        """Returns the last term in which something was written; 0 before the first."""
        return folder.read_pointer(self._path).mark.term

    def raise_fence(self, term: int, generation: int = 0) -> None:
        """Shuts out writers of earlier terms, and of generations up to this one."""
        folder.raise_fence(self._path, term, self._job, generation)

    def set_aside(self, path: Path) -> None:
        """Gives a damaged checkpoint another name."""
        folder.set_aside(path)

    def kept(self) -> str:
        """Describes the last save."""
        try:
            return folder.kept(self._path)
        except OSError as error:
            return f"what is saved can't be read: {error}"


CheckpointStore = LocalStore | RemoteStore
"""A job's checkpoints; ``place`` is where they are, as the user knows it."""


def open_store(place: str | None, default: Path, job: str = "") -> CheckpointStore:
    """Returns a job's checkpoints; touches nothing.

    Args:
        place: A path or a URL; None or "" for ``default``.
        default: The folder in the work directory; what is read from a URL is copied there.
        job: The id of the job that writes there; "" where it is only read.
    """
    if place and is_url(place):
        return RemoteStore(place, default)
    return LocalStore(Path(place) if place else default, job)
