"""``elastic-launcher quota``: projects with guaranteed quotas, and the controller that writes the hints."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_launcher.cli.job_argument import refuse
from elastic_launcher.cli.quota.shared import AsJson, read_projects, show_table, usage_errors
from elastic_launcher.cli.quota.simulate import simulate_trace
from elastic_launcher.hints import HintError
from elastic_launcher.hints.stores import HintPlace, hint_place
from elastic_launcher.host.lock import Lock, LockHeld
from elastic_launcher.quota import history as changes
from elastic_launcher.quota.controller import Controller, ProjectsFile
from elastic_launcher.quota.hint_document import read_written
from elastic_launcher.quota.jobs import Job, ReportError, job_of
from elastic_launcher.quota.projects import Projects, QuotaError
from elastic_launcher.quota.rounds.ledger import Account, Ledger
from elastic_launcher.quota.rounds.round import Decision, decide
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.serve import Machine, gpus_of, marks, serve, without_cluster
from elastic_launcher.quota.sources.folder import JobFolder
from elastic_launcher.report.words import clock, plural

quota_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Divide GPUs among projects with guaranteed quotas.",
)
ProjectsPath = Annotated[Path, typer.Argument(metavar="FILE", help="The projects document, YAML or JSON.")]
SomeJobsPath = Annotated[
    Path | None, typer.Option("--jobs", metavar="DIR", help="The folder with the jobs' work directories.")
]
HintsConfigMap = Annotated[
    str | None,
    typer.Option("--hints", metavar="configmap/[NAMESPACE/]NAME", help="The ConfigMap with the hints of a cluster."),
]
Gpus = Annotated[
    int | None, typer.Option("--gpus", min=0, help="GPUs that there are; default: what the document says.")
]
SHOWN_OF_JOB = 10
"""Changes of a job that `explain` shows."""
HINTS, HISTORY, LOCK = "hints.json", "quota-history.jsonl", "quota.lock"


@quota_app.command()
def check(path: ProjectsPath) -> None:
    """Checks a projects document, and prints where it is wrong."""
    with usage_errors():
        projects = read_projects(path)
    for warning in projects.warnings:
        typer.echo(f"warning: {warning}", err=True)
    count = len(projects.projects)
    guaranteed = sum(project.guaranteed for project in projects.projects if project.parent is None)
    others = () if projects.capacity is None else projects.capacity.others
    of_others = f"; on top, what the cluster's {', '.join(others)} say" if others else ""
    typer.echo(f"{path}: good ({plural(count, 'project')}, {plural(guaranteed, 'GPU')} guaranteed{of_others})")


@quota_app.command()
def plan(
    path: ProjectsPath,
    jobs: Annotated[
        Path,
        typer.Option("--jobs", metavar="FILE|DIR", help="A JSON list of jobs' status documents, or a folder of jobs."),
    ],
    gpus: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Shows what each project and each job would get, and why; changes nothing."""
    with usage_errors():
        projects = without_cluster(read_projects(path))
        world = _world(projects, jobs, gpus)
        decision = decide(world, projects, Ledger(), time.time())
    if as_json:
        typer.echo(json.dumps(_as_json(projects, world, decision)))
    else:
        _show(projects, world, decision)


def _world(projects: Projects, jobs: Path, gpus: int | None) -> World:
    if jobs.is_dir():
        return Machine(JobFolder(jobs), gpus, lambda line: typer.echo(f"warning: {line}", err=True)).world(projects)
    capacity = gpus_of(projects, gpus)
    try:
        rows = json.loads(jobs.read_bytes())
    except ValueError as error:
        raise QuotaError(f"{jobs}: it is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise QuotaError(f"{jobs}: it must be a JSON list of status documents (`elastic-launcher status JOB --json`)")
    for number in (number for number, row in enumerate(rows) if row == {}):
        typer.echo(f"warning: {jobs}: [{number}]: its launcher has reported nothing yet; left out", err=True)
    return World(capacity, tuple(_job(jobs, number, row) for number, row in enumerate(rows) if row != {}))


def _job(path: Path, number: int, row: Any) -> Job:
    try:
        return job_of(row)
    except ReportError as error:
        raise QuotaError(f"{path}: [{number}]: {error}") from error


def _as_json(projects: Projects, world: World, decision: Decision) -> dict[str, Any]:
    jobs = {job.id: job for job in world.jobs}
    return {
        "v": 1,
        "capacity": world.capacity,
        "planned": decision.capacity,
        "projects": [
            {
                "project": project.name,
                "guaranteed": project.guaranteed,
                "limit": project.limit,
                "demand": decision.targets.demands.get(project.name, 0),
                "fair_share": decision.targets.shares.get(project.name, 0),
                "holds": _held(decision, project.name),
            }
            for project in projects.projects
        ],
        "jobs": [
            {
                "job": grant.job,
                "project": grant.project,
                "minimum": jobs[grant.job].minimum,
                "maximum": jobs[grant.job].maximum,
                "holds": jobs[grant.job].held,
                "guaranteed": grant.guaranteed,
                "allowed": grant.allowed,
                "target": decision.targets.gpus[grant.job],
                "reason": grant.reason,
            }
            for grant in decision.grants
        ],
        "refused": dict(decision.refused),
    }


def _held(decision: Decision, project: str) -> int:
    return sum(account.held for account in decision.ledger.accounts.values() if account.project == project)


def _show(projects: Projects, world: World, decision: Decision) -> None:
    found = _as_json(projects, world, decision)
    plan = decision.ledger.plan
    planned = f"; {plan.gpus} are planned with" if plan is not None and plan.gpus != plan.there else ""
    typer.echo(f"{plural(world.capacity, 'GPU')}{planned}")
    show_table(
        ("PROJECT", "GUARANTEED", "LIMIT", "ASKS FOR", "FAIR SHARE", "HOLDS"),
        [
            [row["project"], row["guaranteed"], row["limit"], row["demand"], row["fair_share"], row["holds"]]
            for row in found["projects"]
        ],
    )
    show_table(
        ("JOB", "PROJECT", "MIN", "MAX", "HOLDS", "GETS", "TARGET", "WHY"),
        [
            [*(row[key] for key in ("job", "project", "minimum", "maximum", "holds", "allowed", "target", "reason"))]
            for row in found["jobs"]
        ],
    )
    for job, why in found["refused"].items():
        typer.echo(f"{job} gets no hint: {why}")


@quota_app.command()
def explain(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `status` shows it, or its name.")],
    jobs: SomeJobsPath = None,
    hints: HintsConfigMap = None,
    as_json: AsJson = False,
) -> None:
    """Says why a job has what it has, by the hints that the controller wrote last."""
    with usage_errors():
        where = _one_of(jobs, hints)
        ledger = read_written(hint_place(str(where / HINTS) if isinstance(where, Path) else where).read()).ledger
        job = _id_of(job, sorted(ledger.accounts), where)
        account = ledger.accounts[job]
        of_job = (row for row in _history(where) if row["job"] == job)
        rows = list(of_job if as_json else deque(of_job, SHOWN_OF_JOB))
    reason = account.reason + account.note
    if as_json:
        document = {"job": job, "project": account.project, "allowed": account.allowed, "held": account.held}
        typer.echo(json.dumps(document | {"reason": reason, "changes": rows}))
        return
    typer.echo(f"{job} (project {account.project}): allowed {account.allowed}, holds {account.held}: {reason}")
    _show_changes(rows)


def _id_of(job: str, ids: Sequence[str], where: Path | str) -> str:
    """Returns the id of a job that is given by it or by its name, with which the id begins.

    Raises:
        QuotaError: If there is none, or several have the name.
    """
    if job in ids:
        return job
    named = [one for one in ids if one.startswith(f"{job}-")]
    if len(named) > 1:
        raise QuotaError(f"{job} may be any of {', '.join(named)}: give the id")
    if not named:
        raise QuotaError(f"{job} is no job of {where}; known are: {', '.join(ids) or 'none'}")
    return named[0]


def _one_of(jobs: Path | None, hints: str | None) -> Path | str:
    """Returns the folder with jobs, or the ConfigMap with hints, whichever is given.

    Raises:
        QuotaError: If both are, or neither.
    """
    given = [one for one in (jobs, hints) if one is not None]
    if len(given) != 1:
        raise QuotaError("give either --jobs DIR, for jobs of this machine, or --hints configmap/NAMESPACE/NAME")
    return given[0]


def _history(where: Path | str) -> Iterable[Mapping[str, Any]]:
    if isinstance(where, str):
        from elastic_launcher.quota.cluster.commands import read_history  # loads what speaks with a cluster

        return read_history(where)
    if not where.is_dir():
        raise QuotaError(f"--jobs {where}: it is no folder; give the one that `quota serve` serves")
    path = where / HISTORY
    return changes.read(path) if path.exists() else []


def _show_changes(rows: Iterable[Mapping[str, Any]]) -> None:
    show_table(
        ("TIME", "JOB", "PROJECT", "CAUSE", "WHY"),
        [[clock(row["time"]), row["job"], row["project"], row["cause"], row["reason"]] for row in rows],
    )


@quota_app.command()
def history(
    jobs: SomeJobsPath = None,
    hints: HintsConfigMap = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many changes to show.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Shows what the controller changed, and why."""
    with usage_errors():
        rows = deque(_history(_one_of(jobs, hints)), last)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    _show_changes(rows)


quota_app.command("simulate")(simulate_trace)


@quota_app.command("serve")
def serve_jobs(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|configmap/[NAMESPACE/]NAME",
            help="The projects document: a file, or the key projects.yaml of a ConfigMap.",
        ),
    ],
    jobs: SomeJobsPath = None,
    gpus: Gpus = None,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="Serve the jobs of a cluster.")] = False,
    hints: HintsConfigMap = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", metavar="NAMESPACE", help="Serve the jobs of this one alone; may be repeated."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", metavar="PORT", min=1, max=65535, help="Where it answers Prometheus, at /metrics."
        ),
    ] = None,
) -> None:
    """Writes the hints of jobs until it is stopped: of those in a folder to DIR/hints.json, or of a cluster's jobs."""
    with usage_errors():
        if kubernetes == (jobs is not None):
            raise QuotaError("give either --jobs DIR, for jobs of this machine, or --kubernetes")
        if jobs is not None and (hints is not None or namespaces):
            raise QuotaError("--hints and --namespace are for --kubernetes; jobs of a folder are given DIR/hints.json")
        if jobs is not None:
            _serve_machine(path, jobs, gpus, metrics_port)
        elif hints is None:
            raise QuotaError("--kubernetes needs --hints configmap/NAMESPACE/NAME, which each job follows")
        elif gpus is not None:
            raise QuotaError('--gpus is for --jobs; of a cluster, add "capacity: {gpus: N}" to the document')
        else:
            from elastic_launcher.quota.cluster.commands import serve_in_cluster  # loads what speaks with a cluster

            serve_in_cluster(str(path), hints, namespaces or [], metrics_port, _say)


def _serve_machine(path: Path, jobs: Path, gpus: int | None, metrics_port: int | None) -> None:
    jobs.mkdir(parents=True, exist_ok=True)
    place = hint_place(str(jobs / HINTS))
    machine = Machine(JobFolder(jobs, _promised(place)), gpus, _say)
    projects = ProjectsFile(path, _say, accept=machine.accept)
    lock = Lock(jobs / LOCK)
    try:
        lock.take()
    except LockHeld as error:
        refuse(f"quota: {jobs} is served by {error} already")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    controller = Controller(projects, machine, place, partial(changes.append, jobs / HISTORY), _say, time.time)
    try:
        with _metrics(metrics_port, controller):
            _say(f"serving the jobs in {jobs}; run them with --hints {jobs / HINTS}")
            serve(controller, marks(jobs, path, jobs / HINTS), stop)
    finally:
        lock.release()


def _promised(place: HintPlace) -> Mapping[str, Account]:
    """Returns what jobs were promised by the hints that are there; nothing where they can't be read, as rounds say."""
    try:
        return read_written(place.read()).ledger.accounts
    except (OSError, HintError):
        return {}


def _metrics(port: int | None, controller: Controller) -> contextlib.AbstractContextManager[None]:
    """Answers Prometheus while a block runs, if that is asked for."""
    if port is None:
        return contextlib.nullcontext()
    from elastic_launcher.host.prometheus import serving  # which most commands do without
    from elastic_launcher.quota.metrics.exposition import QuotaMetrics

    metrics = QuotaMetrics()
    controller.measure = metrics.take
    return serving(port, metrics)


def _say(line: str) -> None:
    typer.echo(f"{clock(time.time())} {line}")
