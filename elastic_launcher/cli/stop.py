"""``elastic-launcher stop``: has a running job save itself and end, and waits for that."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from elastic_launcher.cli.job_argument import (
    JOB,
    ended,
    job_document,
    job_folder,
    named,
    refuse,
    refuse_copy,
    tell,
    told_elsewhere,
    told_end,
)
from elastic_launcher.config import ExitCode
from elastic_launcher.control import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.engines.kubernetes.objects.names import JobName
from elastic_launcher.events import Event, EventFollower
from elastic_launcher.host import processes
from elastic_launcher.host.lock import launcher_lives
from elastic_launcher.workdir import Layout, read_document

POLL = 0.1
"""Seconds between looks at how far it is."""
PATIENCE = 600.0
"""Seconds for the last checkpoint, the end of all processes and the report; the launcher bounds each of them."""
OVER = ("finished", "stopped", "failed")
"""What a job of a cluster is, by its status, once it has ended."""
ENDED_WELL = (ExitCode.DONE, ExitCode.STOPPED, ExitCode.INTERRUPTED, ExitCode.NO_QUOTA)


def stop(work_dir: Annotated[Path, typer.Argument(metavar="JOB", help=JOB)]) -> None:
    """Has a running job save itself and end with exit code 75; waits until nothing of it runs any more."""
    wanted = named(work_dir)
    if wanted is not None:
        return _stop_job(wanted)
    layout = job_folder(work_dir)
    refuse_copy(layout)
    news = EventFollower(layout.events, offset=layout.events.stat().st_size if layout.events.exists() else 0)
    try:
        with ControlClient(str(layout.control), "cli") as client:
            answer = client.post("/v1/stop", {})
    except (ControlRefused, ControlUnreachable, OSError):
        _explain(layout)
    joined = "is stopping already: waiting with whoever stopped it" if answer["stopping"] else "is told to stop"
    at = f", at step {answer['step']}" if answer["step"] else ""  # 0 also where the script reports none
    tell(f"the job in {layout.path} {joined}{at}")
    finished = _wait(layout, news)
    typer.echo(finished.get("message"))
    if finished.get("exit_code") == ExitCode.STOPPED:
        typer.echo(f"to go on: the same command, with --work-dir {os.path.abspath(layout.path)}")
    raise typer.Exit(0 if finished.get("exit_code") in ENDED_WELL else 1)


def _wait(layout: Layout, news: EventFollower) -> Event:
    """Waits for the job's end, prints what is saved until then, and returns its last event."""
    deadline = time.monotonic() + PATIENCE
    finished: Event | None = None
    while finished is None or launcher_lives(read_document(layout.job)):
        if time.monotonic() > deadline or (finished is None and launcher_lives(read_document(layout.job)) is False):
            finished = ended(layout)
            if finished is None or time.monotonic() > deadline:
                _explain(layout)
            return finished
        for event in news.poll():
            if event.kind == "checkpoint_saved":
                tell(f"step {event['step']} is saved; the ranks end")
            elif event.kind == "warning":
                tell(str(event.get("message")))
            finished = event if event.kind == "job_finished" else finished
        time.sleep(POLL)
    return finished


def _explain(layout: Layout) -> NoReturn:
    """Returns why the job can't be stopped, and what to do.

    Raises:
        typer.Exit: Always.
    """
    owner = job_document(layout)
    process, lives, last = f"process {owner.get('pid')}", launcher_lives(owner), ended(layout)
    if lives is None and last is None:
        refuse(told_elsewhere(layout, owner))
    if lives:
        orphans = (owner.get("config") or {}).get("orphan_timeout", 60)
        tell(
            f"the launcher of the job in {layout.path} ({process}) does not answer. `kill -CONT {owner['pid']}` wakes "
            f"one that was frozen, `kill {owner['pid']}` asks it for the same; after `kill -KILL {owner['pid']}` its "
            f"ranks save what they have and leave within {orphans:g} s"
        )
        raise typer.Exit(int(ExitCode.LAUNCHER_FAILED))
    if last is not None:
        refuse(f"the job in {layout.path} is not running: {told_end(last)}")
    left = len(processes.find(os.path.realpath(layout.path)))
    what = (
        f"{left} of its processes still run: the ranks save what they have and leave by themselves, and the same "
        "command takes them over until then"
        if left
        else "the same command resumes from what is saved"
    )
    refuse(f"the job in {layout.path} is not running: its launcher ({process}) is gone without a word; {what}")


def _stop_job(wanted: JobName) -> None:
    """Has a job save itself and end, and waits for that."""
    from elastic_launcher.cli.in_cluster import run  # both load what speaks with a cluster
    from elastic_launcher.engines.kubernetes.remote_job import ClusterJob, cluster_job

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
            tell(f"job {job.name} is told to stop{await heard(job)}")
            async with asyncio.timeout(PATIENCE):
                async for record in job.follow():
                    if record.status.get("state") in OVER:
                        return record.status
        return None

    try:
        ended = run(stop())
    except TimeoutError:
        refuse(f"the job has not ended within {PATIENCE:g} s; its launcher's log says why")
    if ended is None:
        typer.echo("the job is gone")
        return
    typer.echo(ended["message"])
    raise typer.Exit(0 if ended["exit_code"] in ENDED_WELL else 1)
