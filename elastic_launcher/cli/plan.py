"""``elastic-launcher plan``: how an optimizer step is divided among ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from elastic_launcher.batch import StepPlan, fewest_useful_nodes, plan_step
from elastic_launcher.cli.job_argument import refuse

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)


def plan(
    global_batch_size: Annotated[str, typer.Option(metavar="B", help="Samples of each optimizer step.")],
    max_batch_per_gpu: Annotated[str, typer.Option(metavar="M", help="Most samples of a micro-batch.")],
    world_size: Annotated[
        str | None, typer.Option(metavar="W", help="Number of ranks; default: a row for each of many.")
    ] = None,
    batch_norm: Annotated[
        bool, typer.Option("--batch-norm", help="As for models with batch norm: no micro-batch of one sample.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Shows the plan of one optimizer step: which rank works on which samples, in which micro-batches."""
    try:
        batch = _whole("--global-batch-size", global_batch_size)
        largest = _whole("--max-batch-per-gpu", max_batch_per_gpu)
        sizes = [_whole("--world-size", world_size)] if world_size is not None else [w for w in SIZES if w <= batch]
        plans = iter([plan_step(batch, largest, size, batch_statistics=batch_norm) for size in sizes])
    except ValueError as error:
        refuse(str(error))
    if as_json:
        documents = [_document(one) for one in plans]
        typer.echo(json.dumps(documents[0] if world_size is not None else documents))
    else:
        Console(highlight=False).print(_ranks(next(plans)) if world_size is not None else _overview(plans))


def _whole(flag: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{flag} is {text!r}; it must be a whole number, 1 or more")
    return int(text)


def _document(one: StepPlan) -> dict[str, Any]:
    """Returns a plan as JSON has it."""
    return {
        "samples": one.samples,
        "max_batch_per_gpu": one.max_batch_per_gpu,
        "world_size": one.world_size,
        "accumulation": one.accumulation,
        "largest_micro_batch": one.shares[0].micro_batches[0],
        "fewest_useful_ranks": fewest_useful_nodes(one.samples, 1, one.world_size),
        "shares": [
            {"rank": rank, "start": share.start, "samples": share.samples, "micro_batches": share.micro_batches}
            for rank, share in enumerate(one.shares)
        ],
    }


def _overview(plans: Iterable[StepPlan]) -> Table:
    """Returns a row for each world size; the micro-batches are rank 0's, whose share is the largest."""
    table = Table("ranks", "samples", "accumulation", "largest", "micro-batches", "as fast with", box=None)
    for one in plans:
        first, last = one.shares[0], one.shares[-1]
        fewest = fewest_useful_nodes(one.samples, 1, one.world_size)
        table.add_row(
            f"{one.world_size}",
            f"{first.samples}" if first.samples == last.samples else f"{last.samples}-{first.samples}",
            f"{one.accumulation}",
            f"{first.micro_batches[0]}",
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
