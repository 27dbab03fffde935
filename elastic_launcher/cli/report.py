"""``elastic-launcher report``: writes a job's timeline, summary and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elastic_launcher.events import EventError
from elastic_launcher.report import write_report


def report(
    work_dir: Annotated[Path, typer.Argument(metavar="WORK_DIR", help="The job's work directory.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the timeline (HTML) goes.")] = None,
) -> None:
    """Writes the timeline (HTML), the summary (Markdown) and the metrics of a job, while it runs or after."""
    try:
        metrics = write_report(work_dir, output)
    except FileNotFoundError as error:
        typer.echo(f"elastic-launcher: {work_dir} is no work directory, or a folder is missing: {error}", err=True)
        raise typer.Exit(2) from None
    except (OSError, EventError) as error:
        typer.echo(f"elastic-launcher: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"timeline: {output or work_dir / 'report.html'}")
    typer.echo(f"{metrics.steps} steps, {metrics.resizes_total} resizes, goodput {metrics.goodput:.1%}")
