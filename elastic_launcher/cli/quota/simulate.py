"""``elastic-launcher quota simulate``: plays a trace of jobs, and shows how long they take."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elastic_launcher.cli.quota.shared import AsJson, read_projects, show_table, usage_errors
from elastic_launcher.config import ExitCode
from elastic_launcher.quota.projects import Project, Projects, QuotaError
from elastic_launcher.quota.serve import gpus_of, without_cluster
from elastic_launcher.quota.simulation.run import read_machines, simulated
from elastic_launcher.quota.simulation.trace import read_trace
from elastic_launcher.report.words import plural

PROGRESS_SECONDS = 0.5  # between two lines about a simulation


class Resize(StrEnum):
    """What a change does to a job in a simulation; the names are those of `run --resize`."""

    IN_PROCESS = "in-process"
    RESPAWN = "respawn"


def simulate_trace(
    path: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="The jobs, as CSV: name,submitted,gpus,min,max,seconds[,project,...]."),
    ],
    document: Annotated[
        Path | None,
        typer.Option("--projects", metavar="FILE", help="The projects document; default: no project has a guarantee."),
    ] = None,
    machines: Annotated[
        str | None,
        typer.Option(
            metavar="[COUNTx]GPUS", help="The machines, such as 16x8; default: one, with the document's GPUs."
        ),
    ] = None,
    resize: Annotated[
        Resize, typer.Option(help="What a change does to a job: ranks that stay go on, or all start again.")
    ] = Resize.IN_PROCESS,
    change_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds until new ranks train; default: the trace's delay, or 30."),
    ] = None,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive", help="Jobs choose their batch by themselves, by goodput; for traces of profiled applications."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plays the jobs of a trace on simulated machines, and shows how long they take and what each project has."""
    with usage_errors():
        if change_seconds is not None and not math.isfinite(change_seconds):
            raise QuotaError(f"--change-seconds is {change_seconds}; it must be a number of seconds, 0 or more")
        jobs = read_trace(path, adaptive=adaptive)
        if change_seconds is not None:
            jobs = [replace(job, delay=change_seconds) for job in jobs]
        names = sorted({job.project for job in jobs})
        projects = (
            Projects(tuple(map(Project, names))) if document is None else without_cluster(read_projects(document))
        )
        if projects.capacity is not None and projects.capacity.autoscale is not None:
            raise QuotaError("capacity.autoscale: the machines of a simulation do not come and go; leave it out here")
        if machines is None and (projects.capacity is None or projects.capacity.gpus is None):
            raise QuotaError(
                'how many GPUs are there? Give --machines, such as 16x8, or add "capacity: {gpus: N}" to the document'
            )
        there = read_machines(str(gpus_of(projects, None)) if machines is None else machines)
        try:
            found = simulated(jobs, projects, there, in_process=resize is Resize.IN_PROCESS, seen=_progress())
        except KeyboardInterrupt:
            typer.echo("interrupted: a simulation that is not complete has no figures", err=True)
            raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
        except ImportError as error:  # of scipy, without which no throughput model is fitted
            raise QuotaError(str(error)) from error
    if as_json:
        typer.echo(json.dumps(found))
        return
    _show(found)


def _progress() -> Callable[[float, int, int], None]:
    """Returns what shows on a terminal how far a simulation is."""
    console = Console(stderr=True, highlight=False)
    shown = 0.0

    def show(now: float, complete: int, jobs: int) -> None:
        nonlocal shown
        if console.is_terminal and (complete == jobs or time.monotonic() - shown >= PROGRESS_SECONDS):
            shown = time.monotonic()
            end = "\r\x1b[K" if complete == jobs else ""
            console.file.write(end or f"\r{complete} of {jobs} jobs complete, {now / 3600:.1f} h simulated\x1b[K")
            console.file.flush()

    return show


def _show(found: Mapping[str, Any]) -> None:
    typer.echo(
        f"{plural(found['jobs'], 'job')} on {plural(found['gpus'], 'GPU')} for {found['seconds']:.0f} s: "
        f"{found['gpu_use']:.0%} of the GPUs held\n"
        f"completion time: mean {found['mean_completion_s']:.0f} s, p99 {found['p99_completion_s']:.0f} s; "
        f"wait for the first GPU: mean {found['mean_wait_s']:.0f} s\nchanges of a job: mean "
        f"{found['mean_changes']:.2f}, of which {found['mean_stopped']:.2f} stopped its training"
    )
    keys = ("guaranteed", "mean_held", "below_guarantee_s", "jobs", "mean_wait_s", "mean_completion_s")
    show_table(
        ("PROJECT", "GUARANTEED", "MEAN HELD", "BELOW ITS GUARANTEE, S", "JOBS", "MEAN WAIT, S", "MEAN COMPLETION, S"),
        [[row["project"], *(row[key] for key in keys)] for row in found["projects"]],
    )
