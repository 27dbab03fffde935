"""The folder of a job's files: made, owned by one launcher at a time, taken again where the job is unfinished, and
refused when it is another job's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from elastic_launcher import __version__
from elastic_launcher.away import StoreAway, may_pass
from elastic_launcher.checkpoint.changes import FLAG
from elastic_launcher.checkpoint.files import sync_folder
from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.events import EventError, read_last
from elastic_launcher.lock import Lock, LockHeld
from elastic_launcher.modes import make_folder, share
from elastic_launcher.options import ConfigError

DEFAULT_PARENT = "elastic-jobs"
OF_OTHERS = 0o077
LONGEST_TMPDIR = 60
"""Characters of a temporary folder's path under which unix sockets (108 at most) still have names."""


class WorkDirError(ConfigError):
    """A work directory that this job can't have; the message says why and what to do."""


class WorkDirHeld(WorkDirError):
    """A launcher that is alive has the work directory."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is in a work directory; touches nothing.

    Attributes:
        path: The work directory.
    """

    path: Path

    @property
    def job(self) -> Path:
        """What was asked: id and configuration, written first."""
        return self.path / "job.json"

    @property
    def lock(self) -> Path:
        """Held by the launcher that owns the folder."""
        return self.path / "job.lock"

    @property
    def control(self) -> Path:
        """Address and key of the coordinator."""
        return self.path / "control.json"

    @property
    def origin(self) -> Path:
        """Which checkpoint the members that start now are told to begin with."""
        return self.path / "origin.json"

    @property
    def events(self) -> Path:
        """What happened, one JSON line each."""
        return self.path / "events.jsonl"

    @property
    def nodes(self) -> Path:
        """One file per node, and one per rank that ended."""
        return self.path / "nodes"

    @property
    def logs(self) -> Path:
        """What ranks, agents and torchrun wrote."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """What an unfinished job goes on from."""
        return self.path / "checkpoints"

    @property
    def cache(self) -> Path:
        """Compiled code that the job's nodes share."""
        return self.path / "cache"

    def node_file(self, node: int) -> Path:
        """What the agent of a node says about itself."""
        return self.nodes / f"{node}.json"

    def exit_file(self, node: int, local_rank: int) -> Path:
        """How a rank ended."""
        return self.nodes / f"{node}-{local_rank}.exit"

    def lives_file(self, node: int) -> Path:
        """What happened to a node's workers, where they are started again and again."""
        return self.nodes / f"{node}.lives"

    def rank_log(self, node: int, local_rank: int) -> Path:
        """What a rank's script wrote."""
        return self.logs / f"{node}-{local_rank}.log"

    def node_log(self, node: int) -> Path:
        """What a node's agent and its torchrun wrote."""
        return self.logs / f"{node}.log"

    def torchrun_logs(self, node: int) -> Path:
        """The folder that torchrun keeps its own files in."""
        return self.logs / f"torchrun-{node}"

    def tmp(self, node: int) -> Path:
        """A node's own temporary folder, removed with it; elsewhere if its path would be too long for sockets."""
        path = self.path / "tmp" / str(node)
        if len(str(path)) <= LONGEST_TMPDIR:
            return path
        digest = hashlib.sha256(str(self.path).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"elastic-{digest}-{node}"

    def make_tmp(self, node: int) -> Path:
        """Makes a node's temporary folder anew, for this user alone, and returns it."""
        self.remove_tmp(node)  # of a job that was killed in a folder of this path
        path = self.tmp(node)
        while True:
            path.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another node has removed the last folder beside it
                path.mkdir(mode=0o700)
                return path

    def remove_tmp(self, node: int) -> None:
        """Removes a node's temporary folder, if it is there."""
        path = self.tmp(node)
        shutil.rmtree(path, ignore_errors=True)
        if path.parent.parent == self.path:
            with contextlib.suppress(OSError):  # another node's folder is still in it
                path.parent.rmdir()


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier runs of the same job have used up: their numbers are not used again.

    Attributes:
        term: Of this run, from 1.
        first_node: Number of this run's first node.
        first_member: Number of its first member.
        generations: How many there were before.
    """

    term: int = 1
    first_node: int = 1
    first_member: int = 1
    generations: int = 0


class JobDone(Exception):  # noqa: N818 - not an error
    """The job in a work directory is done.

    Attributes:
        path: The folder.
        message: How it ended.
    """

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


class WorkDir:
    """A work directory that this process owns until ``close``.

    Attributes:
        layout: Where its files are.
        job_id: The job's id, made with the folder.
        past: What earlier runs of the job have used up.
        before: What the last run was asked for; None for a new job.
    """

    def __init__(self, layout: Layout, job_id: str, lock: Lock, past: Past, before: JobConfig | None) -> None:
        self.before = before
        self.layout = layout
        self.job_id = job_id
        self.past = past
        self._lock = lock

    @property
    def path(self) -> Path:
        """The folder."""
        return self.layout.path

    def close(self) -> None:
        """Gives the folder up; its files stay."""
        self._lock.release()

    def __enter__(self) -> WorkDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def claim(config: JobConfig, directory: Path) -> WorkDir:
    """Makes the work directory of a new job, or takes that of an unfinished one, and writes ``job.json``.

    Args:
        config: What was asked; ``config.work_dir`` or a new folder under ``elastic-jobs``.
        directory: Where the user stands: relative paths start there.

    Raises:
        WorkDirHeld: If it holds a job that is alive.
        ConfigError: If the folder can't be written, or holds another job.
        StoreAway: If it can't be written, and that may pass.
        JobDone: If this job is done already.
    """
    job_id = f"{_safe(config.name)}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    path = directory / (config.work_dir or f"{DEFAULT_PARENT}/{job_id}")
    layout = Layout(Path(os.path.realpath(path)))  # nodes are known by it, by whatever name they are looked for
    try:
        for folder in (layout.path, layout.nodes, layout.logs):
            make_folder(folder)
        lock = Lock(layout.lock)
    except OSError as error:
        raise _unwritable(layout.path, error)
    try:
        _take(layout, lock)
        _refuse_other_jobs(layout, config)
        before = _read_json(layout.job)
        past = _past(layout, before)
        job_id = str(before["id"]) if before else job_id
        document = {
            "v": 1,
            "id": job_id,
            "version": __version__,
            "created": before["created"] if before else time.time(),
            "term": past.term,
            "first_node": past.first_node,
            "first_member": past.first_member,
            **lock.owner,
            "directory": str(directory),
            "config": config.to_dict(),
        }
        write_json(layout.job, document, lasting=True)
    except OSError as error:
        lock.release()
        raise _unwritable(layout.path, error)
    except (WorkDirError, JobDone):
        lock.release()
        raise
    return WorkDir(layout, job_id, lock, past, JobConfig.from_dict(before["config"]) if before else None)


def read_job(path: Path) -> tuple[str, JobConfig]:
    """Returns the id and the configuration of the job in a work directory.

    Raises:
        WorkDirError: If there is none, or it can't be read.
    """
    document = _read_json(Layout(path).job)
    if document is None:
        raise WorkDirError(f"{path} is not the work directory of a job: it has no job.json that can be read")
    return str(document["id"]), JobConfig.from_dict(document["config"])


def job_id(layout: Layout) -> str:
    """Returns the job's id, or its folder's name where none was written."""
    with contextlib.suppress(WorkDirError):
        return read_job(layout.path)[0]
    return layout.path.name


def note_past(layout: Layout, past: Past) -> None:
    """Has ``job.json`` say that more was used up before this run than the folder tells.

    Raises:
        OSError: If it can't be written.
    """
    known = {"term": past.term, "first_node": past.first_node, "first_member": past.first_member}
    write_json(layout.job, (_read_json(layout.job) or {}) | known, lasting=True)


def write_json(path: Path, document: dict[str, Any], mode: int = 0o644, *, lasting: bool = False) -> None:
    """Writes a small document so that a reader sees the old one or the new one, never a part.

    Args:
        path: Where to.
        document: What is written.
        mode: Of the file; one that others may read is shared as its folder is.
        lasting: Whether it is to be on disk, so that it outlasts its machine.

    Raises:
        OSError: If it can't be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            if mode & OF_OTHERS:
                share(draft)
            json.dump(document, file, indent=1)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
        if lasting:
            sync_folder(path.parent)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:20].strip("-.") or "job"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _unwritable(path: Path, error: OSError) -> ConfigError:
    reason = error.strerror or str(error)
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        in_the_way = next((one for one in (path, *path.parents) if one.is_file()), path)
        reason = f"{in_the_way} is a file, not a folder"
    why = f"the work directory {path} can't be written: {reason}; choose another with --work-dir DIR"
    return StoreAway(why) if may_pass(error) else WorkDirError(why)


def _take(layout: Layout, lock: Lock) -> None:
    try:
        lock.take()
    except LockHeld as held:
        job = (_read_json(layout.job) or {}).get("id")
        raise WorkDirHeld(
            f"the work directory {layout.path} belongs to a job that is alive ({f'{job}, ' if job else ''}{held}): "
            f"see `elastic-launcher status {layout.path}`, stop that job, or choose another folder with --work-dir DIR"
        ) from held


def _refuse_other_jobs(layout: Layout, config: JobConfig) -> None:
    if not layout.job.exists():
        return
    advice = "choose another folder with --work-dir DIR, or leave it out for a new one"
    document = _read_json(layout.job)
    if document is None:
        if config.checkpoint_dir is None and layout.checkpoints.is_dir():
            advice += f"; --checkpoint-dir {layout.checkpoints} goes on from what is saved"
        raise WorkDirError(f"the work directory {layout.path} has a job.json that can't be read: {advice}")
    theirs, ours = _identity(JobConfig.from_dict(document["config"])), _identity(config)
    different = [
        f"{what} {theirs[what] or 'not given'} there, {ours[what] or 'not given'} here"
        for what in ours
        if theirs[what] != ours[what] and what.replace(" ", "-") not in config.accepted
    ]
    if different:
        if theirs["script"] == ours["script"]:
            advice += f"; {FLAG} goes on all the same (docs/checkpoints.md says what that gives up)"
        raise WorkDirError(f"the work directory {layout.path} belongs to another job: {'; '.join(different)}; {advice}")


def _past(layout: Layout, before: dict[str, Any] | None) -> Past:
    """Returns what earlier runs have used up.

    Args:
        layout: The work directory.
        before: The last run's ``job.json``; None for a new job.

    Raises:
        JobDone: If the last run has done all there is to do.
    """
    if before is None:
        return Past()
    try:
        last = read_last(layout.events)
    except EventError as error:
        raise WorkDirError(f"the work directory {layout.path} can't be used again: {error}") from error
    if last and last[-1].kind == "job_finished" and last[-1].get("exit_code") == ExitCode.DONE:
        raise JobDone(layout.path, str(last[-1].get("message")))
    first_node, first_member = int(before.get("first_node", 1)), int(before.get("first_member", 1))
    names = [path.stem for folder in (layout.nodes, layout.logs) for path in folder.iterdir()]
    nodes = max((int(name) for name in names if name.isdecimal()), default=0) + 1
    size = JobConfig.from_dict(before["config"]).nproc_per_node
    return Past(
        term=int(before.get("term", 1)) + 1,
        first_node=max(nodes, first_node),
        first_member=first_member + max(nodes - first_node, 0) * size,
        generations=max((event.generation for event in last), default=0),
    )


def _identity(config: JobConfig) -> dict[str, str]:
    """What makes two jobs the same: the script's name (a folder may be moved to another machine), arguments, batch."""
    script = f"module {config.module}" if config.module else os.path.basename(str(config.script).rstrip("/"))
    batch = "" if config.global_batch_size is None else str(config.global_batch_size)
    return {"script": script, "arguments": " ".join(map(repr, config.arguments)), "global batch size": batch}
