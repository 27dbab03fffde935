"""``elastic-launcher checkpoint``: has a running job save itself, or writes what is saved for other tools."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from elastic_launcher.checkpoint import CheckpointError, Manifest
from elastic_launcher.checkpoint.folder import LOOKS
from elastic_launcher.checkpoint.storage import StorageError, is_url
from elastic_launcher.checkpoint.store import CheckpointStore, open_store
from elastic_launcher.cli.job_argument import ended, job_folder, refuse, refuse_copy, tell, told_elsewhere, told_end
from elastic_launcher.config import ExitCode
from elastic_launcher.control import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.events import EventFollower
from elastic_launcher.host.lock import launcher_lives
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Layout, WorkDirError, read_document, read_job

EXPORT = "export"
TORCH = "torch"
FORMATS = (TORCH, "dcp")
WORDS = f"[{EXPORT}] WORK_DIR"
POLL = 0.1
"""Seconds between looks at whether the checkpoint is there."""
PATIENCE = 600.0
"""Seconds for the step under way, an evaluation, and the writing."""


def checkpoint(
    words: Annotated[list[str], typer.Argument(metavar=WORDS, help="The job's work directory.")],
    to: Annotated[Path | None, typer.Option("--to", metavar="PATH", help="Where an export goes.")] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="torch|dcp", help="A file for torch.load, or a folder for DCP.")
    ] = TORCH,
) -> None:
    """Saves a running job after its next step. With export: writes the newest checkpoint as torch.save or
    torch.distributed.checkpoint would.
    """
    exports = len(words) == 2 and words[0] == EXPORT
    if len(words) != 1 and not exports:
        refuse(f"give {WORDS}, not {' '.join(words)}")
    if exports != (to is not None):
        refuse("--to PATH says where an export goes: `elastic-launcher checkpoint export WORK_DIR --to PATH`")
    if form not in FORMATS:
        refuse(f"--format is {form!r}: it must be {' or '.join(FORMATS)}")
    layout = job_folder(Path(words[-1]))
    if to is not None:
        _export(layout, to, form)
    else:
        refuse_copy(layout)
        _save(layout)


def _export(layout: Layout, to: Path, form: str) -> None:
    place = _place(layout)
    if place is None or not is_url(place):
        _export_from(open_store(place, layout.checkpoints), layout, to, form)
        return
    own = layout.checkpoints / str(os.getpid())  # ranks of the job may be reading what the launcher has copied there
    try:
        _export_from(open_store(place, own), layout, to, form)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _export_from(store: CheckpointStore, layout: Layout, to: Path, form: str) -> None:
    from elastic_launcher.torch.state.export import export, export_dcp

    before: Manifest | None = None
    for left in reversed(range(LOOKS)):
        try:
            found = store.find_newest()
        except (OSError, StorageError) as error:
            refuse(f"the checkpoints of {layout.path} can't be read: {error}")
        for reason in found.refused:
            tell(reason)
        if found.folder is None or found.manifest is None:
            refuse(f"{layout.path} has no checkpoint that can be used")
        try:
            (export if form == TORCH else export_dcp)(found.folder, found.manifest, to)
            typer.echo(f"step {found.manifest.step}, saved in {found.place or found.folder}, is in {to}")
            return
        except CheckpointError as error:
            if not left or found.manifest == before:
                refuse(str(error))
            before = found.manifest  # a job that trains may have removed it meanwhile, for a later one
        except OSError as error:
            refuse(f"{to} can't be written: {error.strerror or error}")


def _place(layout: Layout) -> str | None:
    """Returns what the job was given as ``--checkpoint-dir``; None where it is not known.

    Raises:
        typer.Exit: If a later version wrote it.
    """
    try:
        return read_job(layout.path)[1].checkpoint_dir
    except WorkDirError:
        return None
    except ConfigError as error:
        refuse(f"{layout.job}: {error}")


def _save(layout: Layout) -> None:
    news = EventFollower(layout.events, offset=layout.events.stat().st_size if layout.events.exists() else 0)
    asked: int | None = None
    try:
        with ControlClient(str(layout.control), "cli") as client:
            asked = client.post("/v1/save", {})["step"]
            saved = _wait(layout, client, news, asked)
    except ControlRefused as error:
        refuse(str(error))
    except (ControlUnreachable, OSError):
        if asked is None:
            _explain(layout)
        saved = _saved_at_its_end(layout, news, asked)
    typer.echo(f"step {saved['step']} is saved in {saved['path']}")


def _explain(layout: Layout) -> NoReturn:
    """Says why a job can't be asked for a checkpoint.

    Raises:
        typer.Exit: Always.
    """
    owner = read_document(layout.job)
    lives = launcher_lives(owner)
    if lives:
        _not_answering(layout, owner)
    if lives is None and "host" in owner and ended(layout) is None:
        refuse(told_elsewhere(layout, owner))
    refuse(f"the job in {layout.path} is not running: there is nothing to save")


def _not_answering(layout: Layout, owner: Mapping[str, Any]) -> NoReturn:
    tell(
        f"the launcher of the job in {layout.path} (process {owner['pid']}) does not answer: run this command again "
        "once it does; `kill -CONT` wakes one that was frozen"
    )
    raise typer.Exit(int(ExitCode.LAUNCHER_FAILED))


def _wait(layout: Layout, client: ControlClient, news: EventFollower, asked: int) -> dict[str, Any]:
    """Waits for a checkpoint of a later step than the job stood at when it was asked for one; prints its warnings."""
    deadline = time.monotonic() + PATIENCE
    while (saved := client.get("/v1/status")["saved"]) is None or saved["step"] <= asked:
        for event in news.poll():
            if event.kind == "warning":
                tell(str(event.get("message")))
        if time.monotonic() > deadline:
            refuse(f"no checkpoint within {PATIENCE:g} s: see `elastic-launcher status {layout.path}`")
        time.sleep(POLL)
    return dict(saved)


def _saved_at_its_end(layout: Layout, news: EventFollower, asked: int) -> dict[str, Any]:
    """Returns what a job that was asked for a checkpoint has saved before it ended.

    Raises:
        typer.Exit: If it has not, with the reason.
    """
    for event in news.poll():
        if event.kind == "checkpoint_saved" and event["step"] > asked:
            return {"step": event["step"], "path": event["path"]}
    last, owner = ended(layout), read_document(layout.job)
    if last is None and launcher_lives(owner):
        _not_answering(layout, owner)
    how = "its launcher is gone" if last is None else told_end(last)
    tell(f"the job in {layout.path} has saved nothing since: {how}")
    raise typer.Exit(1)
