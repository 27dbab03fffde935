"""What one round of the quota controller takes, from 10 to 10,000 jobs on 10 to 1,000 machines of 8 GPUs.

Three rounds are measured: ``allocation`` divides the GPUs among the jobs and chooses their machines; ``controller`` is
the whole decision over ten projects, which chooses no machines; ``sorts of machines`` is the same where four of five
jobs can use one or two of nine sorts of machines alone. Each is measured when all jobs are new, when nothing has
changed since the last round, and when a tenth of the jobs is gone; a row's time is the longest of these. A round with
all jobs new also fits the model of each job's speed.

The alternative is AdaptDL's allocator as shipped: 30 to 38 s with 160 jobs on 16 machines of 4 GPUs, which we measured
once on another day. Published by the authors of Sia, on 64 GPUs, in the median: 2.2 s for Pollux' policy, which
AdaptDL's is made of, and 0.1 s for Sia's. None of these is measured here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import finish
from elastic_launcher.quota.allocation.allocate import allocate
from elastic_launcher.quota.allocation.speeds import MeasuredSpeeds
from elastic_launcher.quota.allocation.worth import Candidate
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import Decision, decide
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.sources.usable import Stock, bounds_by_machines

PEER_SECONDS = 34.0  # the middle of 30 to 38
PUBLISHED = {"Pollux": 2.2, "Sia": 0.1}
BAR_SECONDS = 1.0  # at 1,000 jobs on 1,000 machines
GONE = 10  # one job of so many is gone in the third round
PROJECTS = 10
SORTS = 9  # of machines
WIDE = 5  # one job of so many can use all of them
NOW = 1e6

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cluster is.

    Attributes:
        jobs: How many jobs it has.
        machines: How many machines.
        gpus: GPUs of each.
    """

    jobs: int
    machines: int
    gpus: int = 8


SIZES = [Size(10, 10), Size(160, 16, 4), Size(100, 100), Size(1000, 100), Size(1000, 1000), Size(10000, 1000)]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn of a job.

    Attributes:
        limit: The most GPUs that it can use.
        rates: Steps per second by GPUs, as measured.
        age: Seconds since it was submitted.
        changes: Changes of its GPUs so far.
        service: GPU-seconds that it has held.
        steps_left: Steps that it has still to do.
    """

    limit: int
    rates: dict[int, float]
    age: float
    changes: int
    service: float
    steps_left: int


def draw(count: int) -> list[Drawn]:
    """Returns jobs, always the same: from 4 to 128 GPUs, nothing to 16 GPUs measured, minutes to weeks of work."""
    random = np.random.default_rng(0)
    jobs = []
    for _ in range(count):
        limit, known = int(random.choice([4, 8, 16, 32, 64, 128])), int(random.integers(0, 6))
        serial, rate = random.uniform(0.0, 0.2), random.uniform(0.1, 10.0)
        sizes = [size for size in (1, 2, 4, 8, 16) if size <= limit][:known]
        rates = {size: rate / (serial + (1 - serial) / size) for size in sizes}
        service = float(random.uniform(0, 1e6)) if rates else 0.0
        work = float(random.lognormal(9, 2))
        jobs.append(
            Drawn(
                limit, rates, float(random.uniform(0, 1e5)), int(random.integers(0, 9)), service, int(work * rate) + 1
            )
        )
    return jobs


def candidates(jobs: list[Drawn], machine_gpus: int) -> list[Candidate]:
    """Returns jobs as the allocation sees them."""
    found = []
    for number, job in enumerate(jobs):
        speeds = MeasuredSpeeds.by_size(job.rates, machine_gpus)
        found.append(
            Candidate(
                name=f"job-{number}",
                limit=job.limit,
                request=1,
                profiled=max(job.rates, default=0),
                age=job.age,
                changes=job.changes,
                service=job.service,
                delay=30.0,
                work=job.steps_left / job.rates[1] if job.rates else None,
                submitted=NOW - job.age,
                speeds=speeds,
            )
        )
    return found


def reports(jobs: list[Drawn], decision: Decision | None = None) -> tuple[Job, ...]:
    """Returns jobs as they report to the controller, once they have followed a decision."""
    found = []
    allowed = {} if decision is None else {grant.job: grant.allowed for grant in decision.grants}
    for number, job in enumerate(jobs):
        name = f"job-{number}"
        held = allowed.get(name, 0)
        match = MappingProxyType({"id": name, "project": f"project-{number % PROJECTS}"})
        found.append(
            Job(
                id=name,
                match=match,
                minimum=1,
                maximum=job.limit,
                sizes=tuple(range(1, job.limit + 1)),
                priority=0,
                submitted_at=NOW - job.age,
                held=held,
                following=None if decision is None else held,
                following_generation=None if decision is None else decision.ledger.generation,
                waits=86400.0,
                speeds=MappingProxyType(job.rates),
                steps_left=job.steps_left,
                start_seconds=30.0,
                changes=job.changes,
                service=job.service,
                training_since=NOW - job.age if held else None,
                finished=False,
                reported_at=NOW,
            )
        )
    return tuple(found)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Returns how many seconds a work takes, and what it returns."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def allocation(size: Size) -> list[float]:
    """Returns the seconds of three rounds that divide GPUs and choose machines."""
    jobs = candidates(draw(size.jobs), size.gpus)
    machines = {f"machine-{number:04}": size.gpus for number in range(size.machines)}
    new, found = timed(lambda: allocate(jobs, machines, {}))
    same, again = timed(lambda: allocate(jobs, machines, found))
    fewer = [job for number, job in enumerate(jobs) if number % GONE]
    held = {job.name: again[job.name] for job in fewer if job.name in again}
    gone, _ = timed(lambda: allocate(fewer, machines, held))
    return [new, same, gone]


def controller(size: Size) -> list[float]:
    """Returns the seconds of three decisions of the whole controller."""
    total = size.machines * size.gpus
    return decisions(size, lambda jobs: World(total, jobs))


def sorts_of_machines(size: Size) -> list[float]:
    """Returns the same where many jobs can use some of the machines alone."""
    total = size.machines * size.gpus
    names = [f"machine-{number:04}" for number in range(size.machines)]
    sorts = [frozenset(names[number::SORTS]) for number in range(SORTS)]
    random = np.random.default_rng(1)
    pairs = random.integers(0, SORTS, (size.jobs, 2))
    usable = {
        f"job-{number}": frozenset(names) if number % WIDE == 0 else sorts[one] | sorts[other]
        for number, (one, other) in enumerate(pairs)
    }

    def world(jobs: tuple[Job, ...]) -> World:
        free, held = dict.fromkeys(names, size.gpus), {job.id: dict[str, int]() for job in jobs}
        for job in sorted(jobs, key=lambda one: len(usable[one.id])):
            missing = job.held
            for name in sorted(usable[job.id], key=lambda name: (-free[name], name)):
                taken = min(missing, free[name])
                if not taken:
                    break
                held[job.id][name] = taken
                free[name] -= taken
                missing -= taken
        stock = Stock(dict.fromkeys(names, size.gpus), {}, held)
        return World(total, jobs, bounds=tuple(bounds_by_machines(stock, jobs, usable, frozenset(names))))

    return decisions(size, world)


def decisions(size: Size, world: Callable[[tuple[Job, ...]], World]) -> list[float]:
    """Returns the seconds of three decisions in the world of the jobs."""
    jobs = draw(size.jobs)
    guaranteed = size.machines * size.gpus // PROJECTS
    projects = Projects(tuple(Project(f"project-{number}", guaranteed) for number in range(PROJECTS)))
    first = world(reports(jobs))
    new, found = timed(lambda: decide(first, projects, Ledger(), NOW))
    seen = reports(jobs, found)
    second = world(seen)
    same, again = timed(lambda: decide(second, projects, found.ledger, NOW + 30))
    third = world(tuple(job for number, job in enumerate(seen) if number % GONE))
    gone, _ = timed(lambda: decide(third, projects, again.ledger, NOW + 60))
    return [new, same, gone]


ROUNDS: dict[str, Callable[[Size], list[float]]] = {
    "allocation": allocation,
    "controller": controller,
    "sorts of machines": sorts_of_machines,
}


def row(kind: str, size: Size, runs: list[list[float]]) -> dict[str, Any]:
    """Returns the row of a round, from the three times of each run."""
    new, same, gone = (statistics.median(times) for times in zip(*runs, strict=True))
    ours = max(new, same, gone)
    return {
        "benchmark": "quota_round",
        "case": f"{kind}, {size.jobs} jobs on {size.machines} machines of {size.gpus}",
        "ours": round(ours, 4),
        "peer": PEER_SECONDS,
        "ratio": round(PEER_SECONDS / max(ours, 1e-4), 1),
        "unit": "s",
        "runs": len(runs),
        "new": round(new, 4),
        "same": round(same, 4),
        "tenth_gone": round(gone, 4),
        "peer_is": "AdaptDL, 160 jobs on 16 machines of 4, measured once on another day",
        "published": PUBLISHED,
        "bar": BAR_SECONDS if (size.jobs, size.machines) == (1000, 1000) else None,
    }


def main() -> None:
    """Prints the table, and the machine's line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--case", help="only cases whose name contains this")
    arguments = parser.parse_args()
    rows = []
    for kind, measure in ROUNDS.items():
        for size in SIZES:
            name = f"{kind}, {size.jobs} jobs on {size.machines} machines of {size.gpus}"
            if not arguments.case or arguments.case in name:
                rows.append(row(kind, size, [measure(size) for _ in range(arguments.runs)]))
    table = Table("one round, s", "all jobs new", "nothing changed", "a tenth gone", box=None)
    for one in rows:
        table.add_row(one["case"], *(f"{one[column]:.3f}" for column in ("new", "same", "tenth_gone")))
    Console(highlight=False, width=110).print(table)
    print(f"medians of {arguments.runs} runs; the bar is {BAR_SECONDS:g} s at 1,000 jobs on 1,000 machines")
    print("not measured here: AdaptDL 30 to 38 s with 160 jobs; published for 64 GPUs: Pollux 2.2 s, Sia 0.1 s")
    finish(rows)


if __name__ == "__main__":
    main()
