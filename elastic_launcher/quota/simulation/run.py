"""Runs a trace of jobs under the quota controller, and sums up what it came to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.projects import Project, Projects, QuotaError
from elastic_launcher.quota.simulation.physics import InProcess, Restart
from elastic_launcher.quota.simulation.results import Outcome, Results
from elastic_launcher.quota.simulation.rounds import Rounds
from elastic_launcher.quota.simulation.simulate import Job, State, simulate
from elastic_launcher.report.words import plural

INTERVAL = 30.0  # seconds between rounds while nothing happens, as the controller has it
SETTLE = 1.0  # seconds from a change to the round that follows it
MOST_MACHINES = 100_000

Seen = Callable[[float, int, int], None]
"""Takes how far a simulation is: its time in seconds, jobs that are complete, and all jobs."""


def read_machines(text: str) -> dict[str, int]:
    """Returns the GPUs of machines that a text such as ``16x8`` names: 16 of 8 GPUs each.

    Raises:
        QuotaError: If it is something else.
    """
    found = re.fullmatch(r"(?:([1-9][0-9]{0,5})x)?([1-9][0-9]{0,5})", text, re.ASCII)
    if not found or int(found[1] or 1) > MOST_MACHINES:
        raise QuotaError(f'machines are "{text}"; they must be a number of GPUs, or COUNTxGPUS, such as 16x8')
    count = int(found[1] or 1)
    return {f"machine-{number:0{len(str(count))}}": int(found[2]) for number in range(1, count + 1)}


def simulated(
    jobs: Sequence[Job],
    projects: Projects,
    machines: Mapping[str, int],
    *,
    in_process: bool = True,
    seen: Seen = lambda now, complete, jobs: None,
) -> dict[str, Any]:
    """Returns the figures of a trace, over all jobs and by project. Times are seconds.

    Args:
        jobs: The jobs; at least one.
        projects: The projects document.
        machines: GPUs of each machine.
        in_process: Whether ranks that stay go on through a change; otherwise each change restarts the job.
        seen: Takes how far it is.

    Raises:
        QuotaError: If a job belongs to no project, or can never run.
    """
    owners = {job.name: _owner(job, projects, sum(machines.values())) for job in jobs}
    policy = Rounds(projects)

    def watched(state: State) -> Mapping[str, Placement]:
        coming = sum(job.submitted > state.now for job in jobs)
        seen(state.now, len(jobs) - coming - len(state.jobs), len(jobs))
        return policy(state)

    physics = InProcess() if in_process else Restart()
    try:
        results = simulate(jobs, machines, watched, physics, interval=INTERVAL, settle=SETTLE)
    except RuntimeError as error:
        raise QuotaError(str(error)) from error
    seen(results.makespan, len(jobs), len(jobs))
    return _figures(results, projects, owners, sum(machines.values()), policy.short)


def _owner(job: Job, projects: Projects, gpus: int) -> Project:
    """Returns the project of a job that can run.

    Raises:
        QuotaError: If it can't.
    """
    owner = projects.project_of({"id": job.name, "name": job.name, "project": job.project})
    if owner is None:
        raise QuotaError(
            f"job {job.name}: no project matches project {job.project}; add one, or remove unmatched: refuse"
        )
    limit = projects.limit_of(owner.name)
    if job.minimum > min(gpus, gpus if limit is None else limit):
        bound = f"there are {gpus}" if job.minimum > gpus else f"the limit of project {owner.name} is {limit}"
        raise QuotaError(f"job {job.name} can never run: it needs {plural(job.minimum, 'GPU')}, and {bound}")
    return owner


def _figures(
    results: Results, projects: Projects, owners: Mapping[str, Project], gpus: int, short: Mapping[str, float]
) -> dict[str, Any]:
    seconds = results.makespan - min(one.submitted for one in results.outcomes)
    rows = []
    for project in projects.projects:
        own = [one for one in results.outcomes if owners[one.name] == project]
        rows.append(
            {
                "project": project.name,
                "guaranteed": project.guaranteed,
                "jobs": len(own),
                "mean_held": round(sum(one.service for one in own) / seconds, 2),
                "mean_completion_s": round(float(np.mean([one.completion_time for one in own])), 1) if own else None,
                "mean_wait_s": round(_mean_wait(own), 1) if own else None,
                "below_guarantee_s": round(short.get(project.name, 0.0), 1),
            }
        )
    return {
        "v": 1,
        "gpus": gpus,
        "jobs": len(results.outcomes),
        "seconds": round(seconds, 1),
        "mean_completion_s": round(results.mean_completion_time, 1),
        "p99_completion_s": round(results.p99_completion_time, 1),
        "mean_wait_s": round(_mean_wait(results.outcomes), 1),
        "mean_changes": round(results.mean_changes, 2),
        "mean_stopped": round(results.mean_stopped, 2),
        "gpu_use": round(sum(one.service for one in results.outcomes) / (gpus * seconds), 3),
        "rounds": results.rounds,
        "projects": rows,
    }


def _mean_wait(outcomes: Sequence[Outcome]) -> float:
    """Returns the mean seconds from submission to the first GPU."""
    return float(np.mean([one.started - one.submitted for one in outcomes]))
