"""One interface to a job's checkpoints, in a folder or under a URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elastic_launcher.checkpoint import folder
from elastic_launcher.checkpoint.files import read_manifest
from elastic_launcher.checkpoint.folder import Found
from elastic_launcher.checkpoint.manifest import Manifest, Mark
from elastic_launcher.checkpoint.remote import RemoteStore
from elastic_launcher.checkpoint.storage import is_url


class LocalStore:
    """The checkpoints in a folder; ``job`` is the id of the job that writes there, "" where it is only read.

    Errors are those of the functions of `folder`.
    """

    def __init__(self, path: Path, job: str = "") -> None:
        self.place = str(path)
        self._path = path
        self._job = job

    def publish(self, write: Callable[[Path], Manifest], mark: Mark, keep: int) -> tuple[str, Manifest]:
        """Adds a checkpoint, all of it or nothing; returns its path and its manifest."""
        path = folder.publish(self._path, write, mark, keep, self._job)
        return str(path), read_manifest(path)

    def find_newest(self, refuse: Callable[[Manifest], str] = lambda manifest: "") -> Found:
        """Returns the newest good checkpoint."""
        return folder.find_newest(self._path, refuse)

    def bring(self, path: Path) -> Path:
        """Returns a checkpoint as it is: all machines see the folder at the same path."""
        return path

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
