"""Claims a job's work directory for one launcher at a time; resumes an unfinished job, and refuses another job's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_launcher import __version__
from elastic_launcher.checkpoint.changes import FLAG
from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.content import Content, changed, differences
from elastic_launcher.events import Event, EventError, read_last
from elastic_launcher.field_types import JOB, wrong_field
from elastic_launcher.host.files import replacing
from elastic_launcher.host.layout import Layout as Layout
from elastic_launcher.host.lock import Lock, LockHeld, launcher_lives
from elastic_launcher.host.modes import make_folder
from elastic_launcher.host.transient import StoreAway, may_pass
from elastic_launcher.options import ConfigError

DEFAULT_PARENT = "elastic-jobs"
CLASSES = ".classes.json"
"""What a script's confusion matrix and ROC curve are beside its model: ``labels``, ``matrix``; ``roc``."""


class WorkDirError(ConfigError):
    """A work directory that this job can't have; the message says why and what to do."""


class WorkDirHeld(WorkDirError):
    """A launcher that is alive has the work directory."""


@dataclass(frozen=True, slots=True)
class Past:
    """The numbers that earlier runs of the same job have used; they are not used again.

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


class JobDone(Exception):
    """The job in a work directory is done; ``message`` says how it ended."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


@dataclass
class WorkDir:
    """A work directory that this process owns until ``close``, by its lock.

    Attributes:
        job_id: The job's id, made with the folder.
        past: What earlier runs of the job have used up.
        before: What the last run was asked for; None for a new job.
        recoded: Whether what still runs of it runs other code than was asked for now.
        remark: What became of another job that was done here; "" where there was none.
    """

    layout: Layout
    job_id: str
    lock: Lock
    past: Past
    before: JobConfig | None
    recoded: bool = False
    remark: str = ""

    @property
    def path(self) -> Path:
        """The folder."""
        return self.layout.path

    def close(self) -> None:
        """Gives the folder up; its files stay."""
        self.lock.release()

    def __enter__(self) -> WorkDir:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def claim(config: JobConfig, directory: Path, content: Content = Content()) -> WorkDir:  # noqa: B008 - frozen
    """Makes the work directory of a new job, or takes that of an unfinished one, and writes ``job.json``.

    What another job has left that is done is put aside. Without ``config.work_dir`` it is a new folder under
    ``elastic-jobs``; relative paths start in ``directory``, the user's.

    Raises:
        WorkDirHeld: If it holds a job that is alive.
        ConfigError: If the folder can't be written, or holds another job that is not done.
        StoreAway: If it can't be written, and that may pass.
        JobDone: If this job is done already.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.name)[:20].strip("-.") or "job"
    job_id = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    path = directory / (config.work_dir or f"{DEFAULT_PARENT}/{job_id}")
    layout = Layout(Path(os.path.realpath(path)))  # nodes are found by it, under any name of the folder
    try:
        _make_folders(layout)
        lock = Lock(layout.lock)
    except OSError as error:
        raise _unwritable(layout.path, error)
    try:
        _take(layout, lock)
        remark, before = "", _job_before(layout, config)
        if before is not None and (different := _take_up(layout, before, config, content)):
            remark = f"{different}; {_put_aside(layout, before, config)}"
            before = None
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
            "path": str(layout.path),
            "directory": str(directory),
            "config": config.to_dict(),
            "content": content.to_dict(),
            "follows_another": bool(remark) or bool(before and before.get("follows_another")),
        }
        write_json(layout.job, document, lasting=True)
    except OSError as error:
        lock.release()
        raise _unwritable(layout.path, error)
    except (WorkDirError, JobDone):
        lock.release()
        raise
    if before is None:
        return WorkDir(layout, job_id, lock, past, None, remark=remark)
    recoded = bool(changed(Content.from_dict(before.get("content", {})).code, content.code))
    return WorkDir(layout, job_id, lock, past, JobConfig.from_dict(before["config"]), recoded)


def read_job(path: Path) -> tuple[str, JobConfig]:
    """Returns the id and the configuration of the job in a work directory.

    Raises:
        WorkDirError: If there is none, or it can't be read.
        ConfigError: If a later version wrote its configuration.
    """
    document = read_document(Layout(path).job)
    if "id" not in document or not isinstance(document.get("config"), dict):
        raise WorkDirError(f"{path} is not the work directory of a job: it has no job.json that can be read")
    return str(document["id"]), JobConfig.from_dict(document["config"])


def read_content(path: Path) -> Content:
    """Returns what the job in a work directory runs and reads, as far as that is known."""
    document = read_document(Layout(path).job)
    return Content.from_dict(document.get("content", {}))


def follows_another(layout: Layout) -> bool:
    """Whether the job was begun after another one that was done there: what that has saved is not its own."""
    return bool(read_document(layout.job).get("follows_another"))


def job_id(layout: Layout) -> str:
    """Returns the job's id, or its folder's name where none was written."""
    with contextlib.suppress(WorkDirError):
        return read_job(layout.path)[0]
    return layout.path.name


def hint_id(layout: Layout) -> str:
    """Returns the id by which hints match the job: in a cluster the name of its Service, elsewhere the job's own."""
    return str(read_document(layout.job).get("service") or job_id(layout))


def copied_from(layout: Layout, document: Mapping[str, Any]) -> Path | None:
    """Returns the folder in which a job is, where this one is a copy of it; None for the job's own folder.

    Args:
        layout: The folder.
        document: Its ``job.json``.
    """
    own = Path(str(document.get("path", layout.path)))
    with contextlib.suppress(OSError):  # none is there: the job's folder was moved, or has that name elsewhere
        if not own.samefile(layout.path) and read_document(Layout(own).job).get("id") == document.get("id"):
            return own
    return None


def lives(layout: Layout, owner: Mapping[str, Any]) -> bool | None:
    """Returns whether the launcher of a folder's job is alive, which that of a copy is not; see `launcher_lives`."""
    alive = launcher_lives(owner)
    return False if alive and copied_from(layout, owner) else alive


def note_cluster(layout: Layout, service: str, scheduling: dict[str, Any]) -> None:
    """Records in ``job.json`` what the job is in its cluster.

    Args:
        layout: Of the work directory.
        service: The name of its Service: all attempts of a pipeline step have the same one.
        scheduling: What says which machines its nodes can be on.

    Raises:
        OSError: If it can't be written.
    """
    write_json(layout.job, read_document(layout.job) | {"service": service, "scheduling": scheduling}, lasting=True)


def note_past(layout: Layout, past: Past) -> None:
    """Records in ``job.json`` that more numbers were used before this run than the folder shows.

    Raises:
        OSError: If it can't be written.
    """
    known = {"term": past.term, "first_node": past.first_node, "first_member": past.first_member}
    write_json(layout.job, read_document(layout.job) | known, lasting=True)


def write_json(path: Path, document: dict[str, Any], mode: int = 0o644, *, lasting: bool = False) -> None:
    """Writes a small document so that a reader sees the old one or the new one, never a part.

    A file with a mode that others may read is shared as its folder is; ``lasting``: it is on disk, to outlast its
    machine.

    Raises:
        OSError: If it can't be written.
    """
    with replacing(path, mode=mode, lasting=lasting) as file:
        file.write(json.dumps(document, indent=1).encode())


def read_document(path: Path) -> dict[str, Any]:
    """Returns a small document; an empty one where it can't be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_job_document(layout: Layout) -> dict[str, Any]:
    """Returns what ``job.json`` holds; an empty document where it can't be read.

    Raises:
        WorkDirError: If a field is of another type than readers rely on; the message names it.
    """
    document = read_document(layout.job)
    wrong = wrong_field(document, JOB) or wrong_field(document.get("config") or {}, JOB)
    if wrong:
        raise WorkDirError(f"{layout.job}: {wrong}")
    return document


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
        job = read_document(layout.job).get("id")
        raise WorkDirHeld(
            f"the work directory {layout.path} belongs to a job that is alive ({f'{job}, ' if job else ''}{held}): "
            f"see `elastic-launcher status {layout.path}`, stop that job, or choose another folder with --work-dir DIR"
        ) from held


def _make_folders(layout: Layout) -> None:
    for folder in (layout.path, layout.nodes, layout.logs):
        make_folder(folder)


def _job_before(layout: Layout, config: JobConfig) -> dict[str, Any] | None:
    """Returns the ``job.json`` of the last run; None for a new job.

    Raises:
        WorkDirError: If it can't be read.
    """
    if not layout.job.exists():
        return None
    advice = "choose another folder with --work-dir DIR, or leave it out for a new one"
    document = read_job_document(layout)
    if not ("id" in document and document.get("config")):
        if config.checkpoint_dir is None and layout.checkpoints.is_dir():
            advice += f"; --checkpoint-dir {layout.checkpoints} resumes from what is saved"
        raise WorkDirError(f"the work directory {layout.path} has a job.json that can't be read: {advice}")
    return document


def _take_up(layout: Layout, before: dict[str, Any], config: JobConfig, content: Content) -> str:
    """Returns by what another job differs that is done here; "" if this one goes on with it.

    Raises:
        JobDone: If it is the same job, which is done.
        WorkDirError: If it is another one that is not done.
    """
    if before.get("put_aside"):
        return "it was being put aside"
    there = Content.from_dict(before["content"]) if "content" in before else None
    different = differences(JobConfig.from_dict(before["config"]), config, there, content)
    refused = {what: said for what, (said, accept) in different.items() if accept not in config.accepted}
    done = _done(layout)
    if done is None:
        if not refused:
            return ""
        advice = "choose another folder with --work-dir DIR, or leave it out for a new one"
        if "script" not in refused:
            names = [*config.accepted, *dict.fromkeys(different[what][1] for what in refused)]
            flag = f"{FLAG} {','.join(names)}"
            advice += f"; {FLAG} goes on all the same ({flag}; docs/checkpoints.md says what that gives up)"
        raise WorkDirError(
            f"the work directory {layout.path} belongs to another job: {'; '.join(refused.values())}; {advice}"
        )
    if not different:
        raise JobDone(layout.path, done)
    return "; ".join(refused.values())


def _done(layout: Layout) -> str | None:
    """Returns how the last run ended if it has done all there is to do; else None.

    Raises:
        WorkDirError: If its events can't be read.
    """
    last = _last_events(layout)
    if last and last[-1].kind == "job_finished" and last[-1].get("exit_code") == ExitCode.DONE:
        return str(last[-1].get("message"))
    return None


def _put_aside(layout: Layout, before: dict[str, Any], config: JobConfig) -> str:
    """Moves what another job has left to a folder of its own, its model too; returns a message."""
    aside = layout.path / "earlier" / str(before["id"])
    make_folder(aside)
    write_json(layout.job, before | {"put_aside": True}, lasting=True)  # an end in between: the next launch goes on
    output = JobConfig.from_dict(before["config"]).output
    if output and output == config.output and "://" not in output:
        for left in (Path(output), Path(output + CLASSES)):
            with contextlib.suppress(OSError):  # none was left, or it lies on another disk
                left.rename(aside / left.name)
    ours = (layout.nodes, layout.logs, layout.checkpoints, layout.control, layout.origin, layout.events)
    for path in (*ours, *layout.reports, layout.job):  # the last of them says whose all is
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside / path.name)
    _make_folders(layout)
    return f"that one is done, and what it left is in {aside}: this one trains from the beginning"


def _past(layout: Layout, before: dict[str, Any] | None) -> Past:
    """Returns what earlier runs have used up, the last of them with this ``job.json``.

    Raises:
        WorkDirError: If its events can't be read.
    """
    if before is None:
        return Past()
    last = _last_events(layout)
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


def _last_events(layout: Layout) -> Sequence[Event]:
    try:
        return read_last(layout.events)
    except EventError as error:
        raise WorkDirError(f"the work directory {layout.path} can't be used again: {error}") from error
