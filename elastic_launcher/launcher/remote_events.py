"""Keeps a copy of a job's events beside its checkpoints in a store, for a launcher on another machine.

Nothing can be added to an object, so each part of the file is one of its own, and all of them in the order of their
names are the file. A launcher that was replaced and does not know it adds to its own term.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from elastic_launcher.checkpoint.storage import RemoteFolder, StorageError, is_url
from elastic_launcher.config import JobConfig
from elastic_launcher.events import Event, EventError
from elastic_launcher.host.files import replacing
from elastic_launcher.host.transient import unavailable
from elastic_launcher.options import ConfigError
from elastic_launcher.resume_advice import retry_advice
from elastic_launcher.workdir import Layout, follows_another

FOLDER = "events"
LOOK_SECONDS = 1.0
"""Seconds between copies: a launcher that is killed leaves no more than that uncopied."""
MINOR = ("progress", "log")
"""Kinds that come all the time; a part with nothing else is not worth an object of its own."""
MINOR_SECONDS = 300.0
"""After which it is."""
END_SECONDS = 30.0
"""For the last part."""


def recall_events(config: JobConfig, path: Path) -> bool:
    """Fetches the events of a job whose file is not on this machine; returns whether there were some.

    Raises:
        ConfigError: If they can't be read.
        StoreAway: If that may pass.
        OSError: If they can't be written here.
    """
    place = config.checkpoint_dir or ""
    if not is_url(place) or follows_another(Layout(path.parent)) or (path.exists() and path.stat().st_size):
        return False
    try:
        told = read_parts(RemoteFolder(place))
    except StorageError as error:
        raise ConfigError(f"--checkpoint-dir: {error}") from error
    except OSError as error:
        why = f"the checkpoints in {place} can't be read: {error}"
        raise unavailable(f"{why}; once they can, {retry_advice()}", error) from error
    if told:
        with replacing(path, lasting=True) as file:  # a part of it would count as all, and its numbers be used again
            file.write(told)
    return bool(told)


@contextlib.contextmanager
def copied_events(config: JobConfig, path: Path, term: int, say: Callable[[str], None]) -> Iterator[None]:
    """Copies what is added to a file of events while a block runs, where the job's checkpoints are under a URL.

    ``say`` takes a line for the user, where the last of it could not be copied.
    """
    place = config.checkpoint_dir or ""
    if not is_url(place):
        yield
        return
    copier = _Copier(RemoteFolder(place), path, term)
    thread = threading.Thread(target=copier.run, name="events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        copier.ended.set()
        thread.join(END_SECONDS)
        if thread.is_alive() or copier.trouble:
            why = copier.trouble or f"no answer for {END_SECONDS:g} s"
            say(f"the last events could not be written to {place}: {why}; all are in {path}")


def read_parts(folder: RemoteFolder) -> bytes:
    """Returns what all parts hold together.

    Raises:
        OSError: If they can't be read.
    """
    with folder.opened() as storage:
        storage.invalidate_cache()
        return b"".join(storage.cat_file(name) for name in sorted(storage.find(f"{folder.root}/{FOLDER}")))


class _Copier:
    """Adds what is new in a file to its parts.

    Attributes:
        ended: Set when nothing more is written to the file.
        trouble: Why the last try failed; "" if it did not.
    """

    def __init__(self, folder: RemoteFolder, path: Path, term: int) -> None:
        self.ended = threading.Event()
        self.trouble = ""
        self._folder = folder
        self._path = path
        self._name = f"t{term:08d}-{{:08d}}-{secrets.token_hex(4)}.jsonl"
        self._number = 0
        self._begun = path.stat().st_size if path.exists() else 0
        self._offset: int | None = None
        self._last = time.monotonic()

    def run(self) -> None:
        """Copies until the end, and once more then."""
        over = False
        while not over:
            over = self.ended.wait(LOOK_SECONDS)
            try:
                self._copy(over)
                self.trouble = ""
            except OSError as error:  # tried again with the next look
                self.trouble = str(error)

    def _copy(self, over: bool) -> None:
        if self._offset is None:
            self._offset = self._known()
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            found = file.read()
        part = found[: found.rfind(b"\n") + 1]
        due = over or time.monotonic() - self._last > MINOR_SECONDS or any(map(_matters, part.splitlines()))
        if not part or not due:
            return
        with self._folder.opened() as storage:
            storage.makedirs(f"{self._folder.root}/{FOLDER}", exist_ok=True)
            storage.pipe_file(f"{self._folder.root}/{FOLDER}/{self._name.format(self._number)}", part)
        self._number += 1
        self._offset += len(part)
        self._last = time.monotonic()

    def _known(self) -> int:
        """Returns how much of the file the parts hold already: the launcher before may have been killed in between."""
        told = read_parts(self._folder)
        with open(self._path, "rb") as file:
            return len(told) if file.read(len(told)) == told else self._begun


def _matters(line: bytes) -> bool:
    try:
        event = Event.from_line(line)
        return event.kind not in MINOR and not event.get("renewed")
    except EventError:
        return False
