"""``elastic-launcher plan``: how an optimizer step is divided among ranks, and what a job would do on each number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from elastic_launcher.adaptive.goodput import Basis
from elastic_launcher.adaptive.step_times import Table as Goodputs
from elastic_launcher.batch import StepPlan, fewest_useful_nodes, plan_step
from elastic_launcher.cli.job_argument import job_document, job_events, job_folder, refuse
from elastic_launcher.cli.table import print_table
from elastic_launcher.report.state import fold
from elastic_launcher.report.status import goodput_table
from elastic_launcher.report.words import plural, rate
from elastic_launcher.report.words import share as percent
from elastic_launcher.virtual_ranks import plan_virtual

MOST = 10**6
"""Micro-batches of a step, and ranks: more would fill the memory."""
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)


def plan(
    work_dir: Annotated[
        Path | None,
        typer.Argument(metavar="[WORK_DIR]", help="A job's work directory: what it would do on each number of GPUs."),
    ] = None,
    global_batch_size: Annotated[
        str | None, typer.Option(metavar="B", help="Without WORK_DIR: samples of each optimizer step.")
    ] = None,
    max_batch_per_gpu: Annotated[
        str | None, typer.Option(metavar="M", help="Without WORK_DIR: most samples of a micro-batch.")
    ] = None,
    world_size: Annotated[
        str | None, typer.Option(metavar="W", help="Number of ranks; default: a row for each of many.")
    ] = None,
    batch_norm: Annotated[
        bool, typer.Option("--batch-norm", help="As for models with batch norm: no micro-batch of one sample.")
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(metavar="N", help="As for a model that is sharded over the N ranks of each node."),
    ] = None,
    deterministic: Annotated[
        str | None, typer.Option(metavar="W0", help="As with init(deterministic=W0): divided among W0 virtual ranks.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Shows how an optimizer step is divided among ranks; of a job, how fast it would be on each number of GPUs."""
    given = {
        "--global-batch-size": global_batch_size,
        "--max-batch-per-gpu": max_batch_per_gpu,
        "--world-size": world_size,
        "--batch-norm": batch_norm or None,
        "--shard": shard,
        "--deterministic": deterministic,
    }
    if work_dir is not None:
        others = [flag for flag, value in given.items() if value is not None]
        if others:
            refuse(
                f"{others[0]} doesn't go with a work directory: the job's own batch is planned; leave one of both out"
            )
        _job(work_dir, as_json)
        return
    missing = [flag for flag in list(given)[:2] if given[flag] is None]
    if missing:
        refuse(f"{' and '.join(missing)} missing: give both batch sizes, or a job's work directory")
    try:
        batch, largest = (_whole(flag, str(given[flag])) for flag in list(given)[:2])
        over = None if shard is None else _whole("--shard", shard)
        if over is not None and batch_norm:
            raise ValueError("--batch-norm doesn't go with --shard: a sharded model with batch norm is not supported")
        if over is not None and deterministic is not None:
            raise ValueError("--deterministic doesn't go with --shard: a sharded model has no virtual ranks")
        fitting = [size for size in SIZES if size <= batch and size % (over or 1) == 0] or [over or 1]
        sizes = [_whole("--world-size", world_size)] if world_size is not None else fitting
        if max(batch // largest, *sizes) > MOST:
            raise ValueError(
                f"the step has more than {MOST:,} micro-batches or ranks: give fewer samples or ranks, or a larger "
                "--max-batch-per-gpu"
            )
        units = _whole("--deterministic", deterministic) if deterministic is not None else 0
        plans = iter([_plan(batch, largest, size, units, over, batch_norm=batch_norm) for size in sizes])
    except ValueError as error:
        refuse(str(error))
    if as_json:
        documents = [_document(one, units) for one in plans]
        typer.echo(json.dumps(documents[0] if world_size is not None else documents))
    else:
        print_table(_ranks(next(plans)) if world_size is not None else _overview(plans, units))


def _plan(
    batch: int, largest: int, ranks: int, virtual_ranks: int, sharded_over: int | None, *, batch_norm: bool
) -> StepPlan:
    """Returns how a step is divided among ranks, by virtual ranks where there are some."""
    if virtual_ranks:
        return plan_virtual(batch, largest, virtual_ranks, ranks, batch_statistics=batch_norm)
    return plan_step(batch, largest, ranks, batch_statistics=batch_norm, sharded_over=sharded_over)


def _job(work_dir: Path, as_json: bool) -> None:
    """Prints what a job would do on each number of GPUs that it may have."""
    layout = job_folder(work_dir)
    found = goodput_table(fold(job_events(layout)), job_document(layout))
    if found is None or not found.rows:
        refuse(
            f"{work_dir}: no steps of this job were timed yet. Its script must use elastic_launcher.torch, and train "
            "for some seconds; then run this again, while it trains or after"
        )
    if as_json:
        rows = [one.document() for one in found.rows]
        last = {"last_worthwhile": found.last_worthwhile, "assumptions": list(found.assumptions)}
        typer.echo(json.dumps({"sizes": rows, **last}))
        return
    print_table(_goodput(found))
    for remark in _remarks(found):
        typer.echo(remark)


def _goodput(found: Goodputs) -> Table:
    heads = ("GPUs", "batch", "micro-batch", "accumulation", "samples/s", "efficiency", "goodput", "")
    table = Table(*heads, box=None, collapse_padding=True, pad_edge=False)
    for one in found.rows:
        choice = one.choice
        table.add_row(
            f"{one.ranks:,}",
            f"{choice.batch_size:,}",
            f"{choice.micro_batch:,}",
            f"{choice.accumulation:,}",
            rate(one.samples_per_second),
            percent(choice.efficiency),
            rate(one.goodput),
            str(one.basis),
        )
    return table


def _remarks(found: Goodputs) -> Iterator[str]:
    """Yields what the table's numbers rest on, one sentence each."""
    if found.last_worthwhile is not None:
        yield f"Beyond {plural(found.last_worthwhile, 'GPU')}, another adds less than a third of itself."
    modelled = [one.ranks for one in found.rows if one.basis is not Basis.BOUNDED]
    if 0 < len(modelled) < len(found.rows):
        yield f"Beyond {plural(modelled[-1], 'GPU')} nothing is promised: at most half as many were tried."
    for assumption in found.assumptions:
        yield f"Assumed: {assumption}."


def _whole(flag: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{flag} is {text!r}; it must be a whole number, 1 or more")
    return int(text)


def _document(one: StepPlan, virtual_ranks: int) -> dict[str, Any]:
    """Returns a plan as JSON has it."""
    return {
        "samples": one.samples,
        "max_batch_per_gpu": one.max_batch_per_gpu,
        "world_size": one.world_size,
        "accumulation": one.accumulation,
        "largest_micro_batch": max(one.shares[0].micro_batches),
        "fewest_useful_ranks": fewest_useful_nodes(virtual_ranks or one.samples, 1, one.world_size),
        "shares": [
            {"rank": rank, "start": share.start, "samples": share.samples, "micro_batches": share.micro_batches}
            for rank, share in enumerate(one.shares)
        ],
    }


def _overview(plans: Iterable[StepPlan], virtual_ranks: int) -> Table:
    """Returns a row for each world size; the micro-batches are rank 0's, whose share is the largest."""
    table = Table("ranks", "samples", "accumulation", "largest", "micro-batches", "as fast with", box=None)
    for one in plans:
        first, last = one.shares[0], one.shares[-1]
        fewest = fewest_useful_nodes(virtual_ranks or one.samples, 1, one.world_size)
        table.add_row(
            f"{one.world_size}",
            f"{first.samples}" if first.samples == last.samples else f"{last.samples}-{first.samples}",
            f"{one.accumulation}",
            f"{max(first.micro_batches)}",
            _sizes(first.micro_batches),
            "" if fewest == one.world_size else f"{fewest} ranks",
        )
    return table


def _ranks(one: StepPlan) -> Table:
    table = Table("rank", "samples", "from", "micro-batches", box=None)
    for rank, share in enumerate(one.shares):
        table.add_row(f"{rank}", f"{share.samples}", f"{share.start}", _sizes(share.micro_batches) or "none")
    return table


def _sizes(micro_batches: tuple[int, ...]) -> str:
    """Returns sizes for people: ``2 x 43 + 42``."""
    runs = [(size, len(tuple(same))) for size, same in groupby(micro_batches)]
    return " + ".join(f"{size}" if count == 1 else f"{count} x {size}" for size, count in runs)
