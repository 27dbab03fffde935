"""``elastic-launcher hints``: check, show and edit quota hints."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_launcher.hints import Demand, Document, HintError, parse, parse_match, resolve
from elastic_launcher.hints.document import API_VERSION

hints_app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
Hints = Annotated[Path, typer.Argument(metavar="FILE", help="The hints file.")]
Matches = Annotated[list[str] | None, typer.Option("--match", metavar="KEY=VALUE", help="What the job is; repeat.")]


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Turns what is wrong with the input into one line and exit code 2."""
    try:
        yield
    except (HintError, OSError, ValueError) as error:
        typer.echo(f"elastic-launcher: {error}", err=True)
        raise typer.Exit(2) from None


def _read(path: Path) -> Document:
    try:
        return parse(path.read_bytes())
    except HintError as error:
        raise HintError(f"hints: {path}: {error}", error.path) from error


@hints_app.command()
def check(path: Hints) -> None:
    """Says whether a file can be used, and where and what is wrong."""
    with _usage_errors():
        document = _read(path)
    for warning in document.warnings:
        typer.echo(f"warning: {warning}", err=True)
    generation = f", generation {document.generation}" if document.generation is not None else ""
    defaults = " and defaults" if document.defaults is not None else ""
    typer.echo(f"{path} is good: {len(document.entries)} hints{defaults}{generation}")


@hints_app.command()
def show(
    path: Hints,
    match: Matches = None,
    nodes: Annotated[str, typer.Option(metavar="MIN:MAX", help="What the job asks for.")] = "1:1000",
    nproc_per_node: Annotated[int, typer.Option(min=1, help="Ranks of each node.")] = 1,
    global_batch_size: Annotated[int | None, typer.Option(min=1, help="Samples of a step.")] = None,
    share: Annotated[str | None, typer.Option(metavar="I/N", help="Take the I-th of N parts.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Says which entry a job gets, why, and how many nodes that makes."""
    with _usage_errors():
        demand = Demand(
            parse_match(match or []), *_pair("--nodes", nodes, ":"), nproc_per_node, global_batch_size,
            _pair("--share", share, "/") if share is not None else None,
        )  # fmt: skip
        resolution = resolve(_read(path), demand, now=time.time(), starting=True)
    if as_json:
        names = ("nodes", "guaranteed", "allowed", "limit", "matched", "stale", "why")
        typer.echo(json.dumps({name: getattr(resolution, name) for name in names}))
        return
    for line in resolution.why:
        typer.echo(line)
    numbers = ", ".join(f"{name} {getattr(resolution, name)}" for name in ("guaranteed", "allowed", "limit"))
    typer.echo(f"{resolution.nodes} nodes ({numbers})" if resolution.nodes else f"below the minimum ({numbers})")


def _pair(flag: str, text: str, between: str) -> tuple[int, int]:
    match = re.fullmatch(rf"([1-9]\d*){between}([1-9]\d*)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f"{flag} is {text!r}; it must be two whole numbers such as 1{between}4, the first not larger")
    return int(match[1]), int(match[2])


@hints_app.command("set")
def set_(
    path: Hints,
    allowed: Annotated[int, typer.Option(min=0, help="GPUs that each job may hold now.")],
    match: Matches = None,
    guaranteed: Annotated[int | None, typer.Option(min=0, help="GPUs that nobody takes back.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="GPUs never to exceed.")] = None,
) -> None:
    """Edits an entry (the defaults, without --match) so that no reader sees half of it, and raises the generation."""
    with _usage_errors():
        wanted = parse_match(match or [])
        numbers = {"guaranteed": guaranteed, "allowed": allowed, "limit": limit}
        given = {name: value for name, value in numbers.items() if value is not None}
        with _locked(path):
            text = path.read_bytes() if path.exists() else b""
            if text.strip():
                parse(text)  # what is broken is not edited
            changed = _edit(json.loads(text.decode("utf-8-sig")) if text.strip() else None, wanted, given)
            new = json.dumps(changed, indent=1) + "\n"
            parse(new)
            _replace(path, new)
    generation = changed.get("generation")
    typer.echo(
        f"{path}: {', '.join(f'{k} {v}' for k, v in given.items())}"
        + (f" (generation {generation})" if generation else "")
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps two edits apart; the lock is on the folder, since the file itself is replaced."""
    handle = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _edit(found: dict[str, Any] | None, match: dict[str, str], numbers: dict[str, int]) -> dict[str, Any]:
    if found is None:
        found = {"apiVersion": API_VERSION, "generation": 0, "hints": []}
    if "apiVersion" not in found:
        return _edit_flat(found, match, numbers)
    if match:
        rows = found.setdefault("hints", [])
        entry = next((row for row in rows if row.get("match", {}) == match), None)
        if entry is None:
            entry = {"match": match, "gpus": {}}
            rows.append(entry)
    else:
        entry = found.setdefault("defaults", {"gpus": {}})
    entry["gpus"].update(numbers)
    if "generation" in found:
        found["generation"] += 1
    return found


def _edit_flat(found: dict[str, Any], match: dict[str, str], numbers: dict[str, int]) -> dict[str, Any]:
    if len(match) > 1 or "limit" in numbers:
        raise ValueError("the flat form has one match key and no limit; write the document with apiVersion instead")
    key = next((f"{kind}.{value}" for kind, value in match.items()), "default")
    sure = numbers.get("guaranteed")
    found[key] = f"{sure}:{numbers['allowed']}" if sure is not None else str(numbers["allowed"])
    return found


def _replace(path: Path, text: str) -> None:
    target = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, target.stat().st_mode & 0o777 if target.exists() else 0o644)
        os.replace(temporary, target)
    except OSError:
        os.unlink(temporary)
        raise
