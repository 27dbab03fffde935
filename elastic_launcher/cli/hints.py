"""``elastic-launcher hints``: check, show and edit quota hints."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from elastic_launcher.hints import Demand, Document, HintError, Resolution, edit, parse, parse_match, resolve
from elastic_launcher.hints.resolve import is_stale, skewed
from elastic_launcher.hints.stores import HintPlace, hint_place
from elastic_launcher.options import GIVEN_KEYS

MANY_NODES = 10**5
"""Stands for the most nodes of a job of which that is not said."""

hints_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Check, show and edit quota hints.",
)
Hints = Annotated[
    str, typer.Argument(metavar="FILE|configmap/[NAMESPACE/]NAME", help="Where the hints are: a file, or a ConfigMap.")
]
Matches = Annotated[
    list[str] | None,
    typer.Option(
        "--match",
        metavar="KEY=VALUE",
        help=f"{', '.join(GIVEN_KEYS)} or id; may be repeated, or several with commas between.",
    ),
]


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Turns what is wrong with the input into one line and exit code 2."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        typer.echo(f"elastic-launcher: hints: {where}{error.strerror or error}", err=True)
        raise typer.Exit(2) from None
    except ValueError as error:
        typer.echo(f"elastic-launcher: {error}", err=True)
        raise typer.Exit(2) from None


@contextlib.contextmanager
def _naming(place: HintPlace) -> Iterator[None]:
    """Names the place of an invalid document."""
    try:
        yield
    except HintError as error:
        raise HintError(f"hints: {place.name}: {error}", error.path) from error


def _read(place: HintPlace) -> Document:
    with _naming(place):
        return parse(place.read())


def _warnings(document: Document) -> list[str]:
    """Returns what is odd about a document now."""
    now = time.time()
    warnings = list(document.warnings)
    if is_stale(document, now):
        age = now - (document.observed_at or 0.0)
        warnings.append(
            f"it is stale: observed {age:.0f} s ago, for {document.ttl_seconds:.0f} s; jobs don't grow by it"
        )
    if skewed(document, now):
        warnings.append('"observedAt" is in the future; it is taken as now')
    return warnings


@hints_app.command()
def check(
    path: Hints,
    strict: Annotated[bool, typer.Option("--strict", help="Take unknown fields, too, as errors.")] = False,
) -> None:
    """Checks a file, and prints where it is wrong."""
    with _usage_errors():
        document = _read(hint_place(path))
        if strict and document.warnings:
            raise HintError(f"hints: {path}: {'; '.join(document.warnings)} (--strict)")
    for warning in _warnings(document):
        typer.echo(f"warning: {warning}", err=True)
    count = len(document.entries)
    parts = [f"{count} {'hint' if count == 1 else 'hints'}"]
    parts += ["defaults"] if document.defaults is not None else []
    parts += [f"generation {document.generation}"] if document.generation is not None else []
    typer.echo(f"{path}: good ({', '.join(parts)})")


@hints_app.command()
def show(
    path: Hints,
    match: Matches = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="MIN:MAX", help="What the job asks for; default: any number.")
    ] = None,
    nproc_per_node: Annotated[int, typer.Option(min=1, help="Ranks (GPUs) of each node.")] = 1,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples of a step: there are no more ranks.")
    ] = None,
    share: Annotated[str | None, typer.Option(metavar="I/N", help="Take the I-th of N equal parts.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Prints the entry that a job gets at its start, why, and how many nodes that makes."""
    with _usage_errors():
        demand = Demand(
            parse_match(match or []),
            *(_pair("--nodes", nodes, ":") if nodes is not None else (1, MANY_NODES)),
            nproc_per_node,
            global_batch_size,
            _pair("--share", share, "/") if share is not None else None,
        )
        document = _read(hint_place(path))
    warnings = _warnings(document)
    resolution = resolve(document, demand, now=time.time(), starting=True)
    if as_json:
        more = {"leave": sorted(resolution.leave), "generation": document.generation, "warnings": warnings}
        typer.echo(json.dumps(asdict(resolution) | more))
        return
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    for line in resolution.why:
        typer.echo(line)
    typer.echo(_summary(resolution))


def _summary(resolution: Resolution) -> str:
    names = ("guaranteed", "allowed", "limit")
    numbers = [f"{name} {value}" for name in names if (value := getattr(resolution, name)) is not None]
    outcome = f"nodes: {resolution.nodes}" if resolution.nodes else "nodes: 0, the job would not start"
    return f"{outcome} ({', '.join(numbers)})" if numbers else outcome


def _pair(flag: str, text: str, between: str) -> tuple[int, int]:
    match = re.fullmatch(rf"([1-9][0-9]{{0,8}}){between}([1-9][0-9]{{0,8}})", text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(
            f"{flag} is {text!r}: it must be two whole numbers, the first not larger, for example {flag} 1{between}3"
        )
    return int(match[1]), int(match[2])


@hints_app.command("set")
def set_(
    path: Hints,
    allowed: Annotated[int, typer.Option(min=0, help="GPUs that each such job may hold now.")],
    match: Matches = None,
    guaranteed: Annotated[int | None, typer.Option(min=0, help="GPUs that nobody takes back.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="GPUs never to exceed.")] = None,
) -> None:
    """Edits an entry (without --match the defaults), so that no reader sees half of it, and raises the generation.

    A file or ConfigMap that is not there is made.
    """
    numbers = {"guaranteed": guaranteed, "allowed": allowed, "limit": limit}
    given = {name: value for name, value in numbers.items() if value is not None}
    with _usage_errors():
        wanted = parse_match(match or [])
        place = hint_place(path)
        with _naming(place):
            place.edit(lambda text: edit(text, wanted, given))
        document = _read(place)
    for warning in _warnings(document):
        typer.echo(f"warning: {warning}", err=True)
    whom = ", ".join(f"{key}={value}" for key, value in wanted.items()) or "defaults"
    generation = f" (generation {document.generation})" if document.generation is not None else ""
    typer.echo(f"{path}: {whom}: {', '.join(f'{name} {value}' for name, value in given.items())}{generation}")
