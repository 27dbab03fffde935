"""``elastic-launcher status``: how a job is doing, or how it ended, from another shell."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from elastic_launcher.cli.display import progress_line
from elastic_launcher.events import EventError, read_events
from elastic_launcher.report.state import JobState, fold


def status(
    work_dir: Annotated[Path, typer.Argument(metavar="WORK_DIR", help="The job's work directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Shows how a job is doing while it runs, or how it ended."""
    path = work_dir / "events.jsonl"
    try:
        state = fold(read_events(path))
    except FileNotFoundError:
        typer.echo(f"elastic-launcher: {work_dir} is no work directory: there is no {path.name} in it", err=True)
        raise typer.Exit(2) from None
    except (OSError, EventError) as error:
        typer.echo(f"elastic-launcher: {path}: {error}", err=True)
        raise typer.Exit(2) from None
    document = describe_status(state)
    if as_json:
        typer.echo(json.dumps(document))
        return
    console = Console(highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in document.items():
        if value not in (None, "", [], {}):
            table.add_row(key.replace("_", " "), _text(value))
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return str(value)


def describe_status(state: JobState) -> dict[str, Any]:
    """Returns the status as a JSON object."""
    nodes: dict[str, list[int]] = {}
    for member in state.members:
        nodes.setdefault(f"node {member['node']}", []).append(member["member"])
    finished = state.finished or {}
    return {
        "job": state.started.get("job_id"),
        "name": state.started.get("name"),
        "state": _state(state),
        "exit_code": finished.get("exit_code"),
        "message": finished.get("message") or state.message,
        "progress": progress_line(state) if state.step else None,
        "step": state.step,
        "total_steps": state.total_steps,
        "epoch": state.epoch,
        "epochs": state.epochs,
        "loss": state.loss,
        "world_size": state.world_size,
        "generation": state.generation,
        "resizes": state.resizes,
        "hint": {k: state.hint.get(k) for k in ("guaranteed", "allowed", "limit")} if state.hint else None,
        "samples_per_second": state.samples_per_second,
        "nodes": nodes,
    }


def _state(state: JobState) -> str:
    if state.finished is not None:
        return "finished" if state.finished.get("exit_code") == 0 else "failed"
    pid = state.started.get("pid")
    if pid is not None and state.started.get("host") == os.uname().nodename:
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return "the launcher is gone"
        except PermissionError:
            pass  # it lives, as another user
    return "running" if state.generation else "starting"
