"""What commands about a job have in common: the folder that they are given, and how they refuse it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import typer

from elastic_launcher.config import ExitCode
from elastic_launcher.workdir import Layout


def refuse(message: str) -> NoReturn:
    """Says why a command can't do what was asked, and ends it.

    Raises:
        typer.Exit: Always, with the exit code of bad usage.
    """
    typer.echo(f"elastic-launcher: {message}", err=True)
    raise typer.Exit(int(ExitCode.BAD_USAGE))


def job_folder(path: Path) -> Layout:
    """Returns where everything is in a job's work directory.

    Raises:
        typer.Exit: If it is no job's.
    """
    layout = Layout(path)
    if not path.is_dir():
        what = "is no folder" if path.exists() else "is not there"
        refuse(f"{path} {what}: give the work directory, which `elastic-launcher run` prints when it starts")
    if not layout.job.exists() and not layout.events.exists():
        refuse(f"{path} is no work directory of a job: it has neither {layout.job.name} nor {layout.events.name}")
    return layout
