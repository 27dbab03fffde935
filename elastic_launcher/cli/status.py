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

from elastic_launcher.cli.job_argument import JOB, job_document, job_events, job_folder, named, tell, told_copy
from elastic_launcher.engines.kubernetes.objects.names import JobName
from elastic_launcher.report.describe import adaptive, position, quota, silent, slow
from elastic_launcher.report.state import JobState, fold
from elastic_launcher.report.status import document
from elastic_launcher.report.words import NONE, clock, duration, first_line, listing, number, plural, rate
from elastic_launcher.workdir import lives, read_document

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
        return _show_status(wanted, as_json)
    layout = job_folder(work_dir)
    state, job = fold(job_events(layout)), job_document(layout)
    owner = {**state.started, **job}
    if told := told_copy(layout, owner):
        tell(told)
    found = document(state, job, read_document(layout.control), alive=lives(layout, owner), now=time.time())
    if as_json:
        typer.echo(json.dumps(found))
        return
    show(("work directory", os.path.abspath(layout.path)), found)


def show(where: tuple[str, str], found: Mapping[str, Any]) -> None:
    """Prints a status that `document` has returned; ``where`` is the name and value of its last line."""
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
        table.add_row(Text(name), Text(value, style=STYLES.get(found["state"], "bold red") if name == "state" else ""))
    console.print(Panel(table, title=Text(str(found["name"])), title_align="left", expand=False))


def _rows(where: tuple[str, str], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the status line by line; unknown values are left out."""
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
        ("adaptive batch", adaptive(found.get("adaptive") or {}, found.get("learning_rate_rule"))),
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
        statistical_epoch=found.get("statistical_epoch"),
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


def placed(found: Mapping[str, Any], namespace: str) -> Mapping[str, Any]:
    """Returns a job's report with its namespace, as `quota plan` and the controller match it.

    It is among the match keys, or beside the rest where an older launcher reports none.

    Args:
        found: The report; empty if there is none yet.
        namespace: Where the job's Service is: what the report says itself does not count.
    """
    if not found:
        return found
    demand = found.get("demand")
    if demand is None:
        return {**found, "namespace": namespace}
    return {**found, "demand": {**demand, "match": {**demand["match"], "namespace": namespace}}}


def _show_status(wanted: JobName, as_json: bool) -> None:
    """Prints the status of a job."""
    from elastic_launcher.cli.in_cluster import run  # both load what speaks with a cluster
    from elastic_launcher.engines.kubernetes.remote_job import cluster_job

    async def look() -> tuple[str, Mapping[str, Any], list[str]]:
        async with cluster_job(wanted) as job:
            return job.name, job.record.status, await job.launchers()

    name, found, launchers = run(look())
    if as_json:
        typer.echo(json.dumps(placed(found, name.partition("/")[0])))
        return
    if not found:
        tell(f"the launcher of job {name} has reported nothing yet")
        return
    pods = f", by pod {', '.join(launchers)}" if launchers else "; no pod of its launcher runs now"
    show(("told", f"{duration(max(0.0, time.time() - found['told']))} ago by job {name}{pods}"), found)
