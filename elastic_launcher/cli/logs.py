"""``elastic-launcher logs``: what a job's ranks wrote, while it runs and after."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated

import typer

from elastic_launcher.cli.job_argument import JOB, ended, job_folder, named, refuse, tell
from elastic_launcher.config import ExitCode
from elastic_launcher.engines.kubernetes.objects.names import JobName
from elastic_launcher.launcher.rank_logs import JobLines, Line
from elastic_launcher.options import ConfigError
from elastic_launcher.report.words import listing
from elastic_launcher.workdir import Layout, lives, read_document, read_job

POLL = 0.1
"""Seconds between looks at the files of a job that is followed."""


def logs(
    work_dir: Annotated[Path, typer.Argument(metavar="JOB", help=JOB)],
    rank: Annotated[int | None, typer.Option("--rank", metavar="N", min=0, help="Only what this rank wrote.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it is written, until the job ends.")] = False,
) -> None:
    """Prints what a job's ranks wrote, each line with its rank, over all generations and runs of the job."""
    wanted = named(work_dir)
    if wanted is not None:
        return _print_logs(wanted, rank, follow)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends this quietly, as it does `cat`
    layout = job_folder(work_dir)
    lines = JobLines(layout.logs)
    try:
        print_lines(lines.written(), rank)
        while follow and (rank is None or rank < _most_ranks(layout)) and _lives(layout):
            time.sleep(POLL)
            print_lines(lines.new(), rank)
        print_lines(lines.new(), rank)  # what was written between the last look and the job's end
        ranks = lines.ranks or {0}
        print_lines(lines.rest(), rank)
    except KeyboardInterrupt:
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
    if rank is not None and rank not in ranks:
        refuse(f"the job in {layout.path} never had a rank {rank}: it had {said(ranks)}")


def said(ranks: Collection[int]) -> str:
    """Returns ranks in words."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listing(sorted(ranks))}"


def print_lines(lines: Iterable[Line], rank: int | None) -> None:
    """Prints lines, all or those of one rank."""
    for line in lines:
        if rank is None or line.rank == rank:
            sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()


def _lives(layout: Layout) -> bool:
    alive = lives(layout, read_document(layout.job))
    return ended(layout) is None if alive is None else alive


def _most_ranks(layout: Layout) -> int:
    try:
        return read_job(layout.path)[1].max_ranks
    except ConfigError:
        return 0


def _print_logs(wanted: JobName, rank: int | None, follow: bool) -> None:
    """Prints what the ranks of a job's pods wrote, as far as those are there."""
    from elastic_launcher.cli.in_cluster import run  # both load what speaks with a cluster
    from elastic_launcher.engines.kubernetes.remote_job import cluster_job

    async def save(folder: Path, lines: JobLines) -> str:
        async with cluster_job(wanted) as job:
            saving = asyncio.create_task(job.save_logs(folder, follow))
            while follow and not saving.done():
                await asyncio.wait([saving], timeout=POLL)
                print_lines(lines.new(), rank)
            for line in await saving:
                tell(line)
            return job.name

    with tempfile.TemporaryDirectory(prefix="elastic-logs-") as folder:

        def leave(number: int, frame: object) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(128 + number)

        for each in (signal.SIGTERM, signal.SIGHUP):  # a terminal that is closed must not leave the folder behind
            signal.signal(each, leave)
        lines = JobLines(Path(folder))
        name = run(save(Path(folder), lines))
        print_lines(lines.written(), rank)
        print_lines(lines.rest(), rank)
        if rank is not None and lines.ranks and rank not in lines.ranks:
            refuse(f"no pod that job {name} has now was rank {rank}: they had {said(lines.ranks)}")
        if not lines.ranks:
            tell(
                f"job {name} has no pods that rank logs could be read of: the log of its launcher's pod has rank 0's "
                "lines, and its work directory all"
            )
