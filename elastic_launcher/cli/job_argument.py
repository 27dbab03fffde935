"""The job argument of commands: a folder or a name, and the errors for what is neither."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer

from elastic_launcher.config import ExitCode
from elastic_launcher.engines.kubernetes.objects.names import SCHEME, JobName
from elastic_launcher.events import Event, EventError, read_events, read_last
from elastic_launcher.host.lock import launcher_lives
from elastic_launcher.report.words import first_line
from elastic_launcher.workdir import Layout, WorkDirError, copied_from, read_job_document

JOB = "The job's work directory; or job/[NAMESPACE/]NAME, of a cluster."
"""Of a command's argument."""


def named(given: Path) -> JobName | None:
    """Returns which job of a cluster a command's argument names; None where it is a path.

    Raises:
        typer.Exit: If it is neither.
    """
    with _looked_at(given):
        if not str(given).startswith(SCHEME) or given.exists():
            return None
    parts = given.parts[1:]
    if len(parts) > 2:
        refuse(f"{given} is no job: give a work directory, {SCHEME}NAME or {SCHEME}NAMESPACE/NAME")
    return JobName(parts[0] if len(parts) == 2 else "", parts[-1])


def refuse(message: str) -> NoReturn:
    """Prints why a command fails, and ends it.

    Raises:
        typer.Exit: Always, with the exit code of bad usage.
    """
    tell(message)
    raise typer.Exit(int(ExitCode.BAD_USAGE))


def tell(message: str) -> None:
    """Prints a message of a command beside its output."""
    typer.echo(f"elastic-launcher: {message}", err=True)


def job_folder(path: Path) -> Layout:
    """Returns where everything is in a job's work directory.

    Raises:
        typer.Exit: If it is no job's.
    """
    layout = Layout(path)
    with _looked_at(path):
        if not path.is_dir():
            what = "is no folder" if path.exists() else "is not there"
            refuse(f"{path} {what}: give the work directory, which `elastic-launcher run` prints when it starts")
        if not layout.job.exists() and not layout.events.exists():
            refuse(f"{path} is no work directory of a job: it has neither {layout.job.name} nor {layout.events.name}")
    return layout


def job_events(layout: Layout) -> list[Event]:
    """Returns what happened in a job, and tells of lines that can't be read; nothing where there is no file.

    Raises:
        typer.Exit: If the file can't be read.
    """
    try:
        return read_events(layout.events, tell) if layout.events.exists() else []
    except EventError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{layout.events} can't be read: {error.strerror or error}")


def job_document(layout: Layout) -> dict[str, Any]:
    """Returns what ``job.json`` holds.

    Raises:
        typer.Exit: If a field of it is of a type that it can't have.
    """
    try:
        return read_job_document(layout)
    except WorkDirError as error:
        refuse(str(error))


def told_copy(layout: Layout, owner: Mapping[str, Any]) -> str:
    """Returns that a folder is a copy of that of a running job; "" if it is not, or the job does not run."""
    own = copied_from(layout, owner) if launcher_lives(owner) else None
    return "" if own is None else f"{layout.path} is a copy of the work directory {own}, where its job runs"


def refuse_copy(layout: Layout) -> None:
    """Refuses a copy of a running job's folder: what it says of a coordinator is said of that job's.

    Raises:
        typer.Exit: If it is one.
    """
    if told := told_copy(layout, job_document(layout)):
        refuse(f"{told}: to ask that job for anything, give its own folder")


@contextlib.contextmanager
def _looked_at(path: Path) -> Iterator[None]:
    """Refuses a path whose name is too long, or whose folder may not be read."""
    try:
        yield
    except OSError as error:
        refuse(f"{path} can't be looked at: {error.strerror}")


def ended(layout: Layout) -> Event | None:
    """Returns how the job ended, if that was the last that happened."""
    with contextlib.suppress(OSError, EventError):
        last = read_last(layout.events)[-1:]
        return last[0] if last and last[0].kind == "job_finished" else None
    return None


def told_elsewhere(layout: Layout, owner: Mapping[str, Any]) -> str:
    """Returns why a running job can't be asked for anything from here."""
    return (
        f"the job in {layout.path} runs on {owner.get('host', 'another machine')}, and can't be reached from "
        f"{socket.gethostname()}: run this command there"
    )


def told_end(last: Event) -> str:
    """Returns how a job ended, in one line, by its last event."""
    return f"it ended with exit code {last.get('exit_code')} ({first_line(last.get('message'))})"
