"""``elastic-launcher report``: writes a job's timeline, summary and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elastic_launcher.cli.job_argument import job_folder, refuse, tell
from elastic_launcher.events import EventError
from elastic_launcher.report import write_report, write_timeline
from elastic_launcher.report.words import plural, share


def report(
    work_dir: Annotated[Path, typer.Argument(metavar="WORK_DIR", help="The job's work directory.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.html", help="Write the timeline there, and nothing into WORK_DIR."
        ),
    ] = None,
) -> None:
    """Writes report.html, report.md and metrics.json of a job into WORK_DIR, while it runs or after."""
    events = job_folder(work_dir).events
    if not events.exists():
        refuse(f"{work_dir}: nothing has happened in this job yet: it has no {events.name}")
    if output is not None and not output.absolute().parent.is_dir():
        refuse(f"{output} can't be written: the folder {output.parent} is not there")
    try:
        metrics = write_report(work_dir, tell) if output is None else write_timeline(work_dir, output, tell)
    except EventError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{output or work_dir}: the report can't be written: {error.strerror or error}")
    typer.echo(f"timeline: {output or work_dir / 'report.html'}")
    numbers = (plural(metrics.steps, "step"), plural(metrics.resizes_total, "resize"))
    typer.echo(f"{', '.join(numbers)}, goodput {share(metrics.goodput)}")
