"""``elastic-launcher status``: how a job is doing, or how it ended, from another shell."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from elastic_launcher.cli.job_argument import JOB, job_folder, launcher_lives, named, read_document, refuse
from elastic_launcher.events import EventError, read_events
from elastic_launcher.report.describe import position, quota, silent, slow
from elastic_launcher.report.state import JobState, NodeState, fold
from elastic_launcher.report.words import NONE, clock, duration, first_line, listing, number, plural, rate

GONE = "launcher gone"
STYLES = {
    "running": "bold blue",
    "starting": "bold blue",
    "waiting": "bold yellow",
    "finished": "bold green",
    "stopped": "bold yellow",
}


def status(
    work_dir: Annotated[Path, typer.Argument(metavar="JOB", help=JOB)],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Shows how a job is doing while it runs, or how it ended."""
    wanted = named(work_dir)
    if wanted is not None:
        from elastic_launcher.cli.cluster_commands import show_status  # loads what speaks with a cluster

        return show_status(wanted, as_json)
    layout = job_folder(work_dir)
    try:
        state = fold(read_events(layout.events) if layout.events.exists() else ())
    except (OSError, EventError) as error:
        refuse(f"{layout.events}: {error}")
    job = read_document(layout.job)
    found = document(
        state, job, read_document(layout.control), alive=launcher_lives({**state.started, **job}), now=time.time()
    )
    if as_json:
        typer.echo(json.dumps(found))
        return
    show(("work directory", os.path.abspath(layout.path)), found)


def document(
    state: JobState, job: Mapping[str, Any], control: Mapping[str, Any], *, alive: bool | None, now: float
) -> dict[str, Any]:
    """Returns the status as a JSON object.

    Args:
        state: What the events tell.
        job: What ``job.json`` holds.
        control: What ``control.json`` holds.
        alive: Whether the launcher is; None where that is not known.
        now: Seconds since the epoch.
    """
    finished = state.finished or {}
    gone = state.finished is None and alive is False
    config = job.get("config") or {}
    now = max(now, state.last_at)  # the wall clock may have been set back since
    started_at = state.started_at or job.get("created") or now
    return {
        "v": 1,
        "job": state.started.get("job_id") or job.get("id"),
        "name": state.started.get("name") or config.get("name"),
        "state": GONE if gone else state.outcome,
        "exit_code": finished.get("exit_code"),
        "message": str(finished.get("message") or (_orphaned(config) if gone else state.message)),
        "started": started_at,
        "seconds": round(max(0.0, (now if state.finished is None and not gone else state.last_at) - started_at), 3),
        "step": state.step,
        "total_steps": state.total_steps,
        "epoch": state.epoch,
        "epochs": state.epochs,
        "samples": state.samples,
        "loss": state.loss,
        "samples_per_second": state.samples_per_second,
        "seconds_left": None if gone or state.seconds_left is None else round(state.seconds_left, 1),
        "generation": state.generation,
        "world_size": state.world_size,
        "resizes": state.resizes,
        "hint": state.quota or None,
        "admitted": state.admitted,
        "nodes": _nodes(state, over=gone or state.finished is not None),
        "waits_for": state.waits_for or None,
        "stragglers": [dict(told) for _, told in sorted(state.stragglers.items())],
        "silent": [dict(told) for _, told in sorted(state.silent.items())],
        "logged": state.logged,
        "launcher": {"host": job.get("host"), "pid": job.get("pid"), "alive": alive, "control": control.get("url")},
    }


def _orphaned(config: Mapping[str, Any]) -> str:
    patience = config.get("orphan_timeout")
    when = "" if patience is None else f" within {duration(float(patience))}"
    return f"the launcher ended without a word (killed?); its nodes leave by themselves{when}"


def _nodes(state: JobState, *, over: bool) -> list[dict[str, Any]]:
    """Returns the nodes that are there; of a job that is over, those of its last generation."""
    ranks = {member["member"]: rank for rank, member in enumerate(state.members)}
    last = {member["node"] for member in state.members}
    after = "unknown" if state.finished is None else "trained" if state.outcome == "finished" else "stopped"
    return [
        {
            "node": node.node,
            "phase": after if over and node.phase == "training" else _phase(state, node),
            "members": list(node.members),
            "ranks": [ranks[member] for member in node.members if member in ranks],
        }
        for node in state.nodes.values()
        if (node.node in last if over else node.is_there)
    ]


def _phase(state: JobState, node: NodeState) -> str:
    return "pending" if node.node in state.pending and node.phase == "starting" else node.phase


def show(where: tuple[str, str], found: Mapping[str, Any]) -> None:
    """Prints a status.

    Args:
        where: Its last line, name and value.
        found: What `document` returned.
    """
    console = Console(highlight=False, soft_wrap=True)
    rows = _rows(where, found)
    if not console.is_terminal:
        for name, value in rows:
            typer.echo(f"{name + ':':<20} {value}")
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value, style=STYLES.get(found["state"], "bold red") if name == "state" else ""))
    console.print(Panel(table, title=Text(str(found["name"])), title_align="left", expand=False))


def _rows(where: tuple[str, str], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what is told, line by line; what is not known yet is left out."""
    code, since = found["exit_code"], f"{duration(found['seconds'])} after its start, {clock(found['started'])}"
    left, state = found["seconds_left"], _state(found)
    rows = [
        ("job", str(found["job"] or NONE)),
        ("state", found["state"] + (f", exit code {code}" if code else "") + f", {since}"),
        ("waits for", (found["waits_for"] or "") if found["state"] == "waiting" else ""),
        ("progress", position(state) if found["step"] else ""),
        ("time left", "" if left is None else duration(left)),
        ("loss", "" if found["loss"] is None else number(found["loss"])),
        ("world size", plural(found["world_size"], "rank") if found["world_size"] else ""),
        ("slow", slow(state)),
        ("silent", silent(state)),
        ("hint (GPUs)", quota(found["hint"] or {})),
        ("queue (GPUs)", "" if found.get("admitted") is None else quota({"admitted": found["admitted"]})),
        ("samples per second", "" if not found["samples_per_second"] else rate(found["samples_per_second"])),
        ("resizes", str(found["resizes"]) if found["generation"] else ""),
        *((f"node {node['node']}", _node(node)) for node in found["nodes"]),
        *((name, number(value)) for name, value in found["logged"].items()),
        ("last message", first_line(found["message"])),
        ("launcher", _launcher(found)),
        where,
    ]
    return [(name, value) for name, value in rows if value]


def _state(found: Mapping[str, Any]) -> JobState:
    """Returns what lines for people are made of."""
    training = [zip(node["ranks"], node["members"], strict=False) for node in found["nodes"]]
    ranks = sorted((rank, member) for one in training for rank, member in one)
    return JobState(
        step=found["step"],
        epoch=found["epoch"],
        epochs=found["epochs"],
        total_steps=found["total_steps"],
        members=tuple({"member": member} for _, member in ranks),
        stragglers={told["member"]: told for told in found["stragglers"]},
        silent={told["member"]: told for told in found.get("silent", ())},
    )


def _node(node: Mapping[str, Any]) -> str:
    """Returns what a node does, and with which members."""
    count = len(node["members"])
    members = f"{'member' if count == 1 else 'members'} {listing(node['members'])}" if count else ""
    ranks = f"{'rank' if len(node['ranks']) == 1 else 'ranks'} {listing(node['ranks'])}" if node["ranks"] else ""
    return ", ".join(part for part in (node["phase"], members, ranks) if part)


def _launcher(found: Mapping[str, Any]) -> str:
    launcher = found["launcher"]
    if launcher["pid"] is None:
        return ""
    who = f"process {launcher['pid']} on {launcher['host']}"
    if found["exit_code"] is not None:
        return f"{who}, has ended"
    if launcher["alive"] is None:
        return f"{who}, which can't be seen from this machine"
    address = f", {launcher['control']}" if launcher["control"] else ""
    return f"{who}, alive{address}" if launcher["alive"] else f"{who}, gone"
