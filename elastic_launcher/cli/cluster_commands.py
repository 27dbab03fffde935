"""What ``status``, ``logs`` and ``stop`` do for a job of a cluster."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import typer

from elastic_launcher.cli.job_argument import JobName, refuse
from elastic_launcher.cli.logs import print_lines, said
from elastic_launcher.cli.status import show
from elastic_launcher.cli.stop import ENDED_WELL, PATIENCE
from elastic_launcher.config import ExitCode
from elastic_launcher.engines.kubernetes.remote_job import ClusterJob, cluster_job
from elastic_launcher.kube.api import ApiError
from elastic_launcher.launcher.rank_logs import JobLines
from elastic_launcher.options import ConfigError
from elastic_launcher.report.words import duration

POLL = 0.2
"""Seconds between looks at what has come of the logs."""
OVER = ("finished", "stopped", "failed")
T = TypeVar("T")


def show_status(wanted: JobName, as_json: bool) -> None:
    """Prints how a job stands."""

    async def look() -> tuple[str, Mapping[str, Any], list[str]]:
        async with cluster_job(wanted) as job:
            return job.name, job.record.status, await job.launchers()

    name, found, launchers = _run(look())
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found:
        typer.echo(f"elastic-launcher: the launcher of job {name} has told nothing yet", err=True)
        return
    pods = f", by pod {', '.join(launchers)}" if launchers else "; no pod of its launcher runs now"
    show(("told", f"{duration(max(0.0, time.time() - found['told']))} ago by job {name}{pods}"), found)


def stop_job(wanted: JobName) -> None:
    """Has a job save itself and end, and waits for that."""

    async def heard(job: ClusterJob) -> str:
        if await job.launchers():
            return ""
        return (
            "; no pod of its launcher runs now: the next one stops it as it starts, and where none comes the nodes "
            "save what they have and leave by themselves"
        )

    async def stop() -> Mapping[str, Any] | None:
        async with cluster_job(wanted) as job:
            if job.record.status.get("state") in OVER:
                refuse(f"job {job.name} is not running: {job.record.status['message']}")
            await job.ask_to_stop()
            typer.echo(f"elastic-launcher: job {job.name} is told to stop{await heard(job)}", err=True)
            async with asyncio.timeout(PATIENCE):
                async for record in job.follow():
                    if record.status.get("state") in OVER:
                        return record.status
        return None

    try:
        ended = _run(stop())
    except TimeoutError:
        refuse(f"the job has not ended within {PATIENCE:g} s; its launcher's log says why")
    if ended is None:
        typer.echo("the job is gone")
        return
    typer.echo(ended["message"])
    raise typer.Exit(0 if ended["exit_code"] in ENDED_WELL else 1)


def print_logs(wanted: JobName, rank: int | None, follow: bool) -> None:
    """Prints what the ranks of a job's pods wrote, as far as those are there."""

    async def save(folder: Path, lines: JobLines) -> str:
        async with cluster_job(wanted) as job:
            saving = asyncio.create_task(job.save_logs(folder, follow))
            while follow and not saving.done():
                await asyncio.wait([saving], timeout=POLL)
                print_lines(lines.new(), rank)
            for line in await saving:
                typer.echo(f"elastic-launcher: {line}", err=True)
            return job.name

    with tempfile.TemporaryDirectory(prefix="elastic-logs-") as folder:
        lines = JobLines(Path(folder))
        name = _run(save(Path(folder), lines))
        print_lines(lines.written(), rank)
        print_lines(lines.rest(), rank)
        if rank is not None and lines.ranks and rank not in lines.ranks:
            refuse(f"no pod that job {name} has now was rank {rank}: they had {said(lines.ranks)}")
        if not lines.ranks:
            typer.echo(
                f"elastic-launcher: job {name} has no pods that rank logs could be read of: the log of its launcher's "
                "pod has rank 0's lines, and its work directory all",
                err=True,
            )


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except (ConfigError, ApiError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
