"""``elastic-launcher plan``: how an optimizer step is divided among ranks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from elastic_launcher.batch import StepPlan, fewest_useful_nodes, plan_step

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)


def plan(
    global_batch_size: Annotated[str, typer.Option(metavar="B", help="Samples of each optimizer step.")],
    max_batch_per_gpu: Annotated[str, typer.Option(metavar="M", help="Most samples of a micro-batch.")],
    world_size: Annotated[
        str | None, typer.Option(metavar="W", help="Number of ranks; default: a row for each of many.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Shows the plan of one optimizer step: which rank works on which samples, in which micro-batches."""
    try:
        batch, largest = (
            _whole("--global-batch-size", global_batch_size),
            _whole("--max-batch-per-gpu", max_batch_per_gpu),
        )
        sizes = [_whole("--world-size", world_size)] if world_size is not None else [w for w in SIZES if w <= batch]
    except ValueError as error:
        typer.echo(f"elastic-launcher: {error}", err=True)
        raise typer.Exit(2) from None
    plans = [plan_step(batch, largest, size) for size in sizes]
    if as_json:
        documents = [{**asdict(one), "world_size": one.world_size, "accumulation": one.accumulation} for one in plans]
        typer.echo(json.dumps(documents[0] if world_size is not None else documents))
    else:
        Console(highlight=False).print(_ranks(plans[0]) if world_size is not None else _overview(plans, batch))


def _whole(flag: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{flag} is {text!r}; it must be a whole number, 1 or more")
    return int(text)


def _overview(plans: list[StepPlan], batch: int) -> Table:
    table = Table("ranks", "micro-batches a rank", "samples a rank", "largest micro-batch", "as fast with", box=None)
    for one in plans:
        shares = [share.samples for share in one.shares]
        samples = f"{shares[0]}" if shares[0] == shares[-1] else f"{shares[-1]} to {shares[0]}"
        fewest = fewest_useful_nodes(batch, 1, one.world_size)
        largest = one.shares[0].micro_batches[0]
        table.add_row(
            f"{one.world_size}",
            f"{one.accumulation}",
            samples,
            f"{largest}",
            "" if fewest == one.world_size else f"{fewest}",
        )
    return table


def _ranks(one: StepPlan) -> Table:
    table = Table("rank", "samples", "from", "micro-batches", box=None)
    for rank, share in enumerate(one.shares):
        table.add_row(
            f"{rank}", f"{share.samples}", f"{share.start}", " + ".join(map(str, share.micro_batches)) or "none"
        )
    return table
