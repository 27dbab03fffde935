"""Checkpoints in an object store or another fsspec file system: without rename, fsync, locks or overwriting.

A checkpoint's files go under a name that nobody else uses, its manifest last: it is there as soon as that is. The name
holds its mark, and the newest is the one with the largest mark, so that what an earlier writer adds late changes
nothing. A run of the job leaves a file in ``terms/`` whenever it begins from what is there, which names the checkpoints
that count: what earlier runs and generations write afterwards does not. All this needs of the store is that a file
which was written is listed at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic_launcher.checkpoint.files import MANIFEST, check
from elastic_launcher.checkpoint.folder import Fenced, Found, TakenOver, search
from elastic_launcher.checkpoint.manifest import CheckpointDamaged, CheckpointError, FileEntry, Manifest, Mark
from elastic_launcher.checkpoint.storage import RemoteFolder

NAME = re.compile(r"step-(\d{8,})-t(\d{8,})-g(\d{8,})-[0-9a-f]{8}")
TERM = re.compile(r"(\d{8,})-(?:g(\d{8,})-)?[0-9a-f]{8}\.json")
TERMS = "terms"
RUN = secrets.token_hex(4)
"""Of this process."""
Write = Callable[[Path, Callable[[FileEntry], bool]], Manifest]
"""Writes all files of a checkpoint but its manifest into a folder, and returns that.

What it is given brings a file of the last checkpoint that this process has written, and returns whether it has.
"""


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of the store at one time.

    Attributes:
        whole: Checkpoints with a manifest that count, by name.
        unfinished: Those without one, and those that don't count.
        terms: Files of `TERMS`, by name: what is shut out is below.
    """

    whole: dict[str, Mark]
    unfinished: dict[str, Mark]
    terms: dict[str, Mark]

    @property
    def fence(self) -> Mark:
        """A fence that only later marks pass."""
        return max(self.terms.values(), default=Mark(0, 0, -1))


class RemoteStore:
    """The checkpoints under a URL.

    Args:
        url: As ``s3://bucket/folder``.
        cache: A folder on this machine, for the one that is read.
        run: Tells apart launchers that begin with one term at once.
    """

    def __init__(self, url: str, cache: Path, run: str = RUN) -> None:
        self._run = run
        self._folder = RemoteFolder(url)
        self.place = self._folder.place
        self._cache = cache
        self._last: tuple[str, Manifest] | None = None  # that this process has written

    def publish(self, write: Write, mark: Mark, keep: int) -> tuple[str, Manifest]:
        """Adds a checkpoint; see `folder.publish`.

        Raises:
            TakenOver: If another launcher goes on with the job.
            Fenced: If a later checkpoint is there.
            OSError: If it can't be written; what was begun does not count, and goes with the next one.
        """
        listing = self._list()
        self._check_term(listing, mark)
        if there := [name for name, other in listing.whole.items() if other == mark]:  # its answer was lost
            self._last = there[0], self._read_manifest(there[0])
            return f"{self.place}/{there[0]}", self._last[1]
        self._check_fence(listing, mark)
        name = f"step-{mark.step:08d}-t{mark.term:08d}-g{mark.generation:08d}-{secrets.token_hex(4)}"
        try:
            manifest = self._write(name, write)
            self._check_fence(self._list(), mark)
            with self._folder.opened() as storage:
                storage.pipe_file(f"{self._folder.root}/{name}/{MANIFEST}", manifest.to_text().encode())
        except OSError:
            listing = self._list()
            if name not in listing.whole:
                self._check_fence(listing, mark)  # who writes later removes what is unfinished
                raise
        with contextlib.suppress(OSError):  # it is there; the next one tries again
            self._clean(name, mark, keep)
        self._last = name, manifest
        return f"{self.place}/{name}", manifest

    def find_newest(self, refuse: Callable[[Manifest], str] = lambda manifest: "") -> Found:
        """Returns the newest checkpoint of which every byte is as it was written, copied to this machine.

        Raises:
            OSError: If the store can't be read.
        """
        return search(lambda: self._list().whole, lambda whole: self._first_good(whole, refuse))

    def _first_good(self, whole: dict[str, Mark], refuse: Callable[[Manifest], str]) -> Found:
        refused: list[str] = []
        damaged: list[Path] = []
        for name in sorted(whole, key=lambda one: whole[one], reverse=True):
            place = f"{self.place}/{name}"
            try:
                manifest = self._listed_manifest(name)
                if reason := refuse(manifest):
                    raise CheckpointError(f"{place} is of another job: {reason}")
                folder = self._fetch(name, manifest, self._cache)
            except CheckpointError as error:
                refused.append(str(error).replace(str(self._cache / name), place))
                damaged += [Path(name)] if isinstance(error, CheckpointDamaged) else []
                continue
            return Found(folder, manifest, tuple(refused), tuple(damaged), place)
        return Found(None, None, tuple(refused), tuple(damaged))

    @contextlib.contextmanager
    def brought(self, path: Path) -> Iterator[Path]:
        """Gives a block a checkpoint that was found on another machine: a copy for this process, removed afterwards.

        Raises:
            CheckpointError: If it is damaged.
            OSError: If the store can't be read.
        """
        if path.exists():
            yield path
            return
        own = self._cache / str(os.getpid())
        try:
            yield self._fetch(path.name, self._read_manifest(path.name), own)
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def last_term(self) -> int:
        """Returns the last term in which something was written; 0 before the first.

        Raises:
            OSError: If the store can't be read.
        """
        listing = self._list()
        return max([listing.fence.term, *(mark.term for mark in listing.whole.values())])

    def raise_fence(self, term: int, generation: int = 0) -> None:
        """Shuts out what is written from now on by runs of earlier terms, and by generations up to this one.

        Raises:
            CheckpointError: If another launcher does the same just now.
            OSError: If it can't be written.
        """
        keeps = sorted(self._list().whole)
        name = f"{term:08d}-g{generation:08d}-{self._run}.json"
        with self._folder.opened() as storage:
            storage.makedirs(f"{self._folder.root}/{TERMS}", exist_ok=True)
            storage.pipe_file(f"{self._folder.root}/{TERMS}/{name}", json.dumps({"v": 1, "keeps": keeps}).encode())
        own = f"-{self._run}.json"
        if any(not one.endswith(own) and fence.term >= term for one, fence in self._list().terms.items()):
            raise CheckpointError(f"another launcher uses {self.place} now: end it, or choose another place")

    def set_aside(self, path: Path) -> None:
        """Has a damaged checkpoint count no more.

        Raises:
            OSError: If it can't be written.
        """
        with self._folder.opened() as storage:
            storage.rm_file(f"{self._folder.root}/{path}/{MANIFEST}")

    def kept(self) -> str:
        """Describes where the checkpoints are, without asking the store, since that may take long."""
        return f"what was saved is in {self.place}"

    def _check_fence(self, listing: Listing, mark: Mark) -> None:
        self._check_term(listing, mark)
        if mark <= listing.fence or any(mark <= other for other in listing.whole.values()):
            raise Fenced(f"{mark.step} steps are not saved: a later checkpoint is in {self.place}")

    def _check_term(self, listing: Listing, mark: Mark) -> None:
        if listing.fence.term > mark.term:
            raise TakenOver(
                f"another launcher goes on with this job, in term {listing.fence.term}: it owns {self.place}, and what "
                f"this one (term {mark.term}) trains is not saved; end it, or give it another --checkpoint-dir"
            )

    def _write(self, name: str, write: Write) -> Manifest:
        """Writes all files of a checkpoint but its manifest, and returns that."""
        copied: set[str] = set()

        def carry(entry: FileEntry) -> bool:
            if self._copy(entry, name):
                copied.add(entry.name)
            return entry.name in copied

        with tempfile.TemporaryDirectory(prefix="elastic-save-") as draft:
            manifest = write(Path(draft), carry)
            with self._folder.opened() as storage:
                storage.makedirs(f"{self._folder.root}/{name}", exist_ok=True)
                for entry in manifest.files:
                    if entry.name not in copied:
                        storage.put_file(f"{draft}/{entry.name}", f"{self._folder.root}/{name}/{entry.name}")
        return manifest

    def _copy(self, entry: FileEntry, name: str) -> bool:
        """Has the store copy a file of the last checkpoint; returns whether that could be done."""
        if self._last is None or entry not in self._last[1].files:
            return False
        root = self._folder.root
        try:
            with self._folder.opened() as storage:
                storage.makedirs(f"{root}/{name}", exist_ok=True)
                storage.cp_file(f"{root}/{self._last[0]}/{entry.name}", f"{root}/{name}/{entry.name}")
        except OSError:  # it is gone, or the store can't copy
            return False
        return True

    def _listed_manifest(self, name: str) -> Manifest:
        try:
            return self._read_manifest(name)
        except FileNotFoundError as error:
            raise CheckpointDamaged(f"{self.place}/{name}/{MANIFEST} is missing") from error

    def _read_manifest(self, name: str) -> Manifest:
        with self._folder.opened() as storage:
            content: bytes = storage.cat_file(f"{self._folder.root}/{name}/{MANIFEST}")
        try:
            return Manifest.from_text(content.decode())
        except (CheckpointError, UnicodeDecodeError) as error:
            kind = type(error) if isinstance(error, CheckpointError) else CheckpointDamaged
            raise kind(f"{self.place}/{name}/{MANIFEST}: {error}") from error

    def _fetch(self, name: str, manifest: Manifest, cache: Path) -> Path:
        """Copies a checkpoint to this machine, unless it is there; of other copies, nothing stays."""
        folder = cache / name
        with contextlib.suppress(CheckpointError, OSError):
            check(folder)
            return folder
        for path in cache.iterdir() if cache.is_dir() else ():
            if NAME.fullmatch(path.name):  # what else is there is the job's own, of before it was given a URL
                shutil.rmtree(path, ignore_errors=True)
        folder.mkdir(parents=True)
        with self._folder.opened() as storage:
            for entry in manifest.files:
                with contextlib.suppress(FileNotFoundError):  # which `check` says
                    storage.get_file(f"{self._folder.root}/{name}/{entry.name}", str(folder / entry.name))
        (folder / MANIFEST).write_text(manifest.to_text(), encoding="utf-8")
        check(folder)
        return folder

    def _list(self) -> Listing:
        with self._folder.opened() as storage:
            storage.invalidate_cache()
            found: list[str] = storage.find(self._folder.root)
        paths = [path.removeprefix(self._folder.root).lstrip("/").split("/") for path in found]
        terms = {
            path[1]: Mark(int(match[1]), int(match[2] or 0) + 1, -1)
            for path in paths
            if path[0] == TERMS and (match := TERM.fullmatch(path[-1]))
        }
        marks = {
            path[0]: Mark(int(match[2]), int(match[3]), int(match[1]))
            for path in paths
            if (match := NAME.fullmatch(path[0]))
        }
        last = max(terms, key=lambda one: terms[one], default="")
        counting = set(self._keeps(last)) if last else set()
        complete = {path[0] for path in paths if path[1:] == [MANIFEST]}
        whole = {
            name: mark
            for name, mark in marks.items()
            if name in complete and (not last or name in counting or mark > terms[last])
        }
        return Listing(whole, {name: mark for name, mark in marks.items() if name not in whole}, terms)

    def _keeps(self, term: str) -> list[str]:
        with self._folder.opened() as storage:
            content: bytes = storage.cat_file(f"{self._folder.root}/{TERMS}/{term}")
        try:
            return [str(name) for name in json.loads(content)["keeps"]]
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{self.place}/{TERMS}/{term} can't be read: {error}") from error

    def _clean(self, name: str, mark: Mark, keep: int) -> None:
        """Removes all but the last checkpoints up to ``mark``, and what other writers have left unfinished."""
        listing = self._list()
        past = sorted((m, one) for one, m in listing.whole.items() if m.step <= mark.step and m <= mark)
        spared = {one for _, one in past[-keep:]} | {name}
        old = [one for one, m in (listing.whole | listing.unfinished).items() if m < mark and one not in spared]
        for one in old:
            self._remove(one)
        with self._folder.opened() as storage:
            for one in [one for one, fence in listing.terms.items() if fence < listing.fence]:
                storage.rm_file(f"{self._folder.root}/{TERMS}/{one}")

    def _remove(self, name: str) -> None:
        """Removes a checkpoint, its manifest first: what is left by an end in between is one that is unfinished."""
        folder = f"{self._folder.root}/{name}"
        with self._folder.opened() as storage:
            for path in sorted(storage.find(folder), key=lambda path: not path.endswith(f"/{MANIFEST}")):
                storage.rm_file(path)
            with contextlib.suppress(OSError):  # where there are no folders
                storage.rmdir(folder)
