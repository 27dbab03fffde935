"""``elastic-launcher logs``: what a job's ranks wrote, while it runs and after."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated

import typer

from elastic_launcher.cli.job_argument import JOB, ended, job_folder, launcher_lives, named, read_document, refuse
from elastic_launcher.config import ExitCode
from elastic_launcher.launcher.rank_logs import JobLines, Line
from elastic_launcher.options import ConfigError
from elastic_launcher.report.words import listing
from elastic_launcher.workdir import Layout, read_job

POLL = 0.1
"""Seconds between looks at the files of a job that is followed."""


def logs(
    work_dir: Annotated[Path, typer.Argument(metavar="JOB", help=JOB)],
    rank: Annotated[int | None, typer.Option("--rank", metavar="N", min=0, help="Only what this rank wrote.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it is written, until the job ends.")] = False,
) -> None:
    """Prints what a job's ranks wrote, each line with its rank, over all generations and runs of the job."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends this quietly, as it does `cat`
    wanted = named(work_dir)
    if wanted is not None:
        from elastic_launcher.cli.cluster_commands import print_logs  # loads what speaks with a cluster

        return print_logs(wanted, rank, follow)
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
    alive = launcher_lives(read_document(layout.job))
    return ended(layout) is None if alive is None else alive


def _most_ranks(layout: Layout) -> int:
    try:
        return read_job(layout.path)[1].max_ranks
    except ConfigError:
        return 0
