"""A job's folder of checkpoints: adds one atomically, finds the newest valid one, and removes old ones.

``latest.json`` points at the last one and is the fence: it only moves forward, so that a writer of an earlier term or
generation, a process that was frozen and thaws, say, changes nothing. It says whose the folder is, too: a job that
another one has overtaken, or was quicker than, is told so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from elastic_launcher.checkpoint.files import MANIFEST, MISSING, check, read_manifest, write_text
from elastic_launcher.checkpoint.manifest import CheckpointDamaged, CheckpointError, Manifest, Mark
from elastic_launcher.host.modes import make_folder, open_shared, share, sync_folder

POINTER = "latest.json"
POINTER_BYTES = 256  # all of this size, so that one can be written in the place of another
LOCK = ".lock"
LOCK_SECONDS = 10.0  # what is done under it takes milliseconds
LOCK_POLL_SECONDS = 0.02
DRAFT = ".tmp-"
REPLACED = "-old"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
WRITER = re.compile(r"\d+-t(\d+)-g(\d+)-s(\d+)-")
NAME = re.compile(r"step-\d{8,}")
KEEP = 2
Names = TypeVar("Names", bound=Collection[Any])
LOOKS = 5  # at the checkpoints of a job that saves and removes some meanwhile


class Fenced(CheckpointError):
    """A later writer has written here: this writer must not write any more."""


class TakenOver(Fenced):
    """Another launcher has this job's checkpoint folder, which its ranks have to know."""


class Pointer(NamedTuple):
    """The content of ``latest.json``.

    Attributes:
        checkpoint: The name of the last checkpoint; "" if there is none.
        mark: The fence that only later checkpoints pass.
        job: The id of the job whose folder it is; "" where that is not known.
    """

    checkpoint: str
    mark: Mark
    job: str


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that a job can resume from.

    Attributes:
        folder: The newest good checkpoint; None if there is none.
        manifest: Its manifest.
        refused: Later ones that can't be used, newest first: why, in one line each.
        damaged: Those of them that nobody will ever be able to use.
        place: Where it is, as the user knows it; "" where that is ``folder``.
    """

    folder: Path | None
    manifest: Manifest | None
    refused: tuple[str, ...] = ()
    damaged: tuple[Path, ...] = ()
    place: str = ""


def name_of(step: int) -> str:
    """Returns the name of a checkpoint's folder."""
    return f"step-{step:08d}"


def publish(folder: Path, write: Callable[[Path], Manifest], mark: Mark, keep: int = KEEP, job: str = "") -> Path:
    """Adds a checkpoint: all of it or nothing, whenever this process ends; one that is there already stays as it is.

    Args:
        folder: The job's folder of checkpoints; made if it is not there.
        write: Writes all files but the manifest into the folder that it is given, syncs them, and returns it.
        mark: The checkpoint's.
        keep: How many are kept, this one included.
        job: The job's id; "" where nobody else can write here.

    Raises:
        TakenOver: If another launcher has the folder.
        Fenced: If a later one was written by somebody else.
        OSError: If there is no room, or nothing can be written; what was begun is removed.
    """
    if _is_there(folder, mark, job):
        return folder / name_of(mark.step)
    make_folder(folder)
    whose = f"t{mark.term}-g{mark.generation}-s{mark.step}"
    draft = folder / f"{DRAFT}{os.getpid()}-{whose}-{secrets.token_hex(4)}"
    _check_fence(folder, mark, job)
    try:
        draft.mkdir()
        share(draft)
        manifest = write(draft)
        write_text(draft / MANIFEST, manifest.to_text())
        sync_folder(draft)
        with _locked(folder):
            _check_fence(folder, mark, job)
            path = folder / name_of(mark.step)
            if path.exists():  # of a training that was lost, or gone on from: its step is saved again
                path.rename(folder / f"{draft.name}{REPLACED}")
            try:
                draft.rename(path)
            except OSError:
                with contextlib.suppress(OSError):  # who comes next tries again
                    _put_back(folder)
                raise
            sync_folder(folder)
            _point(folder, Pointer(path.name, mark, job))
            with contextlib.suppress(OSError):  # it is there; the next one tries again
                _clean(folder, mark, keep)
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # where it was not renamed
    return path


def raise_fence(folder: Path, term: int, job: str = "", generation: int = 0) -> None:
    """Shuts out who was there before, and has the folder be the job's; what the pointer names stays.

    Args:
        folder: The job's folder of checkpoints.
        term: Of who goes on: all writers of earlier terms are shut out.
        job: Its id.
        generation: The last one before: its writers, and earlier ones, are shut out in this term too. One that is cut
            off, say, trains on.

    Raises:
        TakenOver: If another launcher has the folder.
        OSError: If it can't be written.
    """
    if not folder.is_dir():
        return
    with _locked(folder):
        last = read_pointer(folder)
        _check_owner(folder, last, term, job)
        fence = Mark(term, generation + 1, -1)  # before the first of the next generation
        if last.mark < fence:
            _point(folder, Pointer(last.checkpoint, fence, job))
        _remove_drafts(folder, lambda mark: mark.term <= term)


def find_newest(folder: Path, refuse: Callable[[Manifest], str] = lambda manifest: "") -> Found:
    """Returns the newest checkpoint of which every byte is as it was written; ``refuse`` says why one can't be used.

    The folder need not be there.

    Raises:
        OSError: If the newest can't be read for now: none before it is used, and nothing is done to it. Also if
            something else has the folder's name, such as a link to a disk that is not mounted.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder, or a link to none", str(folder))
    if _replaced(folder):
        with _locked(folder):
            _put_back(folder)
    return search(lambda: _newest_first(folder), lambda paths: _first_good(paths, refuse))


def search(listed: Callable[[], Names], first_good: Callable[[Names], Found]) -> Found:
    """Returns the first good checkpoint of those that are listed; looks again where one that was removed meanwhile
    passes for damaged: a job may save there.
    """
    for _ in range(LOOKS):
        names = listed()
        found = first_good(names)
        if not found.damaged or set(names) == set(listed()):
            break
    return found


def _first_good(paths: Sequence[Path], refuse: Callable[[Manifest], str]) -> Found:
    refused: list[str] = []
    damaged: list[Path] = []
    for path in paths:
        try:
            manifest = check(path)
            if reason := refuse(manifest):
                raise CheckpointError(f"{path} is of another job: {reason}")
        except CheckpointError as error:
            refused.append(str(error))
            damaged += [path] if isinstance(error, CheckpointDamaged) else []
            continue
        return Found(path, manifest, tuple(refused), tuple(damaged))
    return Found(None, None, tuple(refused), tuple(damaged))


def set_aside(path: Path) -> None:
    """Gives a damaged checkpoint another name, so that it is neither read again nor counted among those that are kept.

    Raises:
        OSError: If it can't be renamed.
    """
    aside = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def kept(folder: Path) -> str:
    """Returns a description of the last save, by the pointer.

    Raises:
        OSError: If it can't be read for now.
    """
    name = read_pointer(folder).checkpoint
    if not name or not (folder / name / MANIFEST).exists():
        return "nothing was saved"
    return f"step {int(name.removeprefix('step-'))} is saved in {folder / name}"


def read_pointer(folder: Path) -> Pointer:
    """Returns what the pointer says; where there is none, or it is damaged, that there is nothing.

    Raises:
        OSError: If the disk does not give it: it is the fence, and may be as good as ever.
    """
    try:
        document = json.loads((folder / POINTER).read_text(encoding="utf-8"))
        name = str(document["checkpoint"])
        mark = Mark(**{key: int(document[key]) for key in Mark.__slots__})
        return Pointer(name if NAME.fullmatch(name) else "", mark, str(document.get("job", "")))
    except (*MISSING, ValueError, KeyError, TypeError):
        return Pointer("", Mark(0, 0, -1), "")


def _check_fence(folder: Path, mark: Mark, job: str) -> None:
    pointer = read_pointer(folder)
    _check_owner(folder, pointer, mark.term, job)
    last = pointer.mark
    if mark <= last:
        raise Fenced(
            f"{mark.step} steps of generation {mark.generation} in term {mark.term} are not saved: {folder / POINTER} "
            f"is at {last.step} steps of generation {last.generation} in term {last.term}"
        )


def _is_there(folder: Path, mark: Mark, job: str) -> bool:
    """Whether its writer died before its report, or could not be sure."""
    if read_pointer(folder) != Pointer(name_of(mark.step), mark, job):
        return False
    with contextlib.suppress(CheckpointError):
        return read_manifest(folder / name_of(mark.step)).mark == mark
    return False


def _check_owner(folder: Path, last: Pointer, term: int, job: str) -> None:
    another = bool(last.job and job) and last.job != job  # a folder of before ids were written says none
    if last.mark.term > term or (last.mark.term == term and another):
        who = f"job {last.job}" if another else "another launcher of this job"
        raise TakenOver(
            f"{who} owns {folder}, in term {last.mark.term}, and what this one (term {term}) trains is not saved; end "
            "it, or give it another --checkpoint-dir"
        )


def _point(folder: Path, pointer: Pointer) -> None:
    draft = folder / f".{POINTER}"
    draft.unlink(missing_ok=True)  # another user's, who did not live to rename it
    said = {"v": 1, "job": pointer.job, "checkpoint": pointer.checkpoint, **asdict(pointer.mark)}
    text = json.dumps(said).ljust(POINTER_BYTES - 1) + "\n"
    try:
        write_text(draft, text)
        draft.replace(folder / POINTER)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if error.errno not in NO_ROOM or not _overwrite(folder / POINTER, text):
            raise
    sync_folder(folder)


def _overwrite(path: Path, text: str) -> bool:
    """Writes the pointer in place, on a full disk; returns whether that succeeded.

    It is shorter than a sector, which a disk writes as a whole, and keeps its size. Who judges by it holds the lock.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with open(descriptor, "wb", buffering=0) as file:
        size = os.fstat(descriptor).st_size  # of a pointer from before all had POINTER_BYTES
        content = (text.rstrip().ljust(size - 1) + "\n").encode()
        written = file.write(content)
        os.fsync(descriptor)
    return written == len(content)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lets one process at a time look at the pointer and move it.

    Raises:
        OSError: If another one has held it for too long: it may be frozen, and must not block this one.
    """
    with open(open_shared(folder / LOCK, os.O_RDWR)) as lock:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    held = f"another process has held {folder / LOCK} for {LOCK_SECONDS:g} s"
                    raise OSError(errno.EBUSY, held) from error
                time.sleep(LOCK_POLL_SECONDS)  # flock knows no time-out
            except OSError:
                break  # a file system without locks: the pointer is looked at twice all the same
        yield


def _newest_first(folder: Path) -> list[Path]:
    """Returns the checkpoints, by their marks; those whose manifest can't be read by their steps, before the others
    of that step or less.
    """
    known: dict[Path, Mark | None] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if NAME.fullmatch(path.name):
            try:
                known[path] = read_manifest(path).mark
            except (CheckpointError, OSError):
                known[path] = None
    good = sorted((path for path, mark in known.items() if mark), key=lambda path: known[path] or Mark(0, 0, 0))
    good.reverse()
    for path in sorted(path for path, mark in known.items() if mark is None):
        later = sum(_step(one) > _step(path) for one in good)
        good.insert(later, path)
    return good


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _clean(folder: Path, mark: Mark, keep: int) -> None:
    """Removes all but the last checkpoints up to ``mark``, and what earlier writers have left unfinished.

    A checkpoint of an earlier mark and a later step belongs to a training that was lost: it goes too.
    """
    _remove_drafts(folder, lambda other: other <= mark)
    marks: dict[Path, Mark] = {}
    for path in folder.iterdir():
        if NAME.fullmatch(path.name):
            with contextlib.suppress(CheckpointError, OSError):
                marks[path] = read_manifest(path).mark
    marks = {path: other for path, other in marks.items() if other <= mark}  # a later one is never an old writer's
    past = sorted((path for path in marks if marks[path].step <= mark.step), key=lambda path: marks[path])
    for path in marks.keys() - set(past[-keep:]):
        shutil.rmtree(path, ignore_errors=True)


def _replaced(folder: Path) -> dict[Path, Mark]:
    """Returns the checkpoints that were moved away for others that never came: nothing has their names.

    Raises:
        OSError: If the disk does not give one: it may be the newest.
    """
    marks: dict[Path, Mark] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        whose = WRITER.match(path.name.removeprefix(DRAFT)) if path.name.endswith(REPLACED) else None
        if whose and not (folder / name_of(int(whose[3]))).exists():
            with contextlib.suppress(CheckpointError):
                marks[path] = read_manifest(path).mark
    return marks


def _put_back(folder: Path) -> None:
    """Gives them their names again, the latest first."""
    marks = _replaced(folder)
    for path in sorted(marks, key=lambda one: marks[one], reverse=True):
        if not (named := folder / name_of(marks[path].step)).exists():
            path.rename(named)


def _remove_drafts(folder: Path, old: Callable[[Mark], bool]) -> None:
    """Removes unfinished checkpoints; a writer that thaws leaves later ones alone."""
    _put_back(folder)
    for path in folder.iterdir():
        if not path.name.startswith(DRAFT):
            continue
        whose = WRITER.match(path.name.removeprefix(DRAFT))
        if whose is None or old(Mark(int(whose[1]), int(whose[2]), int(whose[3]))):
            shutil.rmtree(path, ignore_errors=True)
