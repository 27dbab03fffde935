"""What elastic jobs gain on the workloads of the Pollux artifact, in the simulator of the quota controller.

160 jobs come in eight hours to 16 machines of 4 GPUs. Ours gives GPUs where they are worth most, once a minute. Step
times and gradients' noise are measured ones. A restart stops a job for 30 s; in-process, new ranks join after 30 s.

Where each job keeps its batch size, the alternative is the published mean of Tiresias, which gives each job as many
GPUs as it asked for; the same policy is replayed in our simulator beside it, to show that the two simulators agree. In
the adaptive rows each job chooses its batch by itself, and the alternative is the published mean of Pollux.

As in the artifact, no policy that chooses numbers gives the application ncf more than one GPU; the rows "ncf free" show
the same without that rule. The traces are in the folder ``POLLUX_TRACES``, by default ``../shared/data/pollux``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import finish
from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.allocation.worth import Settings
from elastic_launcher.quota.simulation.physics import InProcess, Restart
from elastic_launcher.quota.simulation.policies import Elastic, Rigid
from elastic_launcher.quota.simulation.results import Results
from elastic_launcher.quota.simulation.simulate import Job, Policy, State, simulate
from elastic_launcher.quota.simulation.trace import read_trace

LONG = 1800.0  # seconds from which a job is long
MACHINES = {f"machine-{number:02}": 4 for number in range(16)}
ONE_GPU = "ncf"


@dataclass(frozen=True, slots=True)
class Workloads:
    """Some workloads of the artifact.

    Attributes:
        folder: Their folder.
        numbers: Their numbers.
        published: Mean completion time under the alternative, of all of them, in seconds.
        each: The same of each, where it was published.
        bar: The largest share of the published mean that ours is to take; None where nothing is asked for.
        most_changes: The most changes of a job that ours is to make, in the mean; None where nothing is asked for.
        adaptive: Whether jobs choose their batch by themselves. The alternative is Pollux then, and else Tiresias.
    """

    folder: str
    numbers: tuple[int, ...]
    published: float
    each: Mapping[int, float]
    bar: float | None = None
    most_changes: float | None = None
    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One row.

    Attributes:
        name: As it is printed.
        workloads: What is simulated.
        in_process: Whether ranks that stay go on through a change.
        free: Whether ncf may have several GPUs.
        studied: The mean that a study with another simulator came to, in seconds; None without one.
        fairness: How fairly jobs share the GPUs.
    """

    name: str
    workloads: Workloads
    in_process: bool
    free: bool = False
    studied: float | None = None
    fairness: float = 0.0


REALISTIC = Workloads("workloads-realistic", (1, 2, 3, 4), 7320.5, {1: 6565.0, 2: 8055.0, 3: 7297.0, 4: 7365.0}, 0.80)
TUNED = Workloads("workloads", (1, 2, 3, 4, 5, 6, 7, 8), 4038.0, {1: 2474.0, 5: 3501.0, 6: 3470.0}, 0.77)
POLLUX = Workloads("workloads", TUNED.numbers, 2751.0, {6: 2446.0}, adaptive=True)
RESTARTS = 4.2  # of a job under Pollux, in the mean
CASES = [
    Case("realistic, restart", REALISTIC, in_process=False, studied=5754.0),
    Case("realistic, in-process", REALISTIC, in_process=True, studied=5604.0),
    Case("realistic, restart, ncf free", REALISTIC, in_process=False, free=True),
    Case("realistic, in-process, ncf free", REALISTIC, in_process=True, free=True),
    Case("tuned, restart", TUNED, in_process=False, studied=3015.0),
    Case("tuned, in-process", TUNED, in_process=True, studied=2915.0),
    Case("tuned, restart, fairness 0.3", TUNED, in_process=False, fairness=0.3),
    Case("tuned, restart, fairness 1", TUNED, in_process=False, fairness=1.0),
    Case("adaptive, restart", replace(POLLUX, bar=0.86, most_changes=RESTARTS / 2), in_process=False, studied=2310.0),
    Case("adaptive, in-process", replace(POLLUX, bar=0.83), in_process=True, studied=2245.0),
    Case(
        "adaptive, restart, load 0.5",
        replace(POLLUX, folder="workloads-0.5", published=1534.0, each={}),
        in_process=False,
        studied=1407.0,
    ),
    Case(
        "adaptive, restart, load 1.5",
        replace(POLLUX, folder="workloads-1.5", published=3685.0, each={}),
        in_process=False,
        studied=2914.0,
    ),
]


class Timed:
    """A policy whose longest round is measured."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.longest = 0.0

    def __call__(self, state: State) -> Mapping[str, Placement]:
        """Returns the placements of a round."""
        began = time.perf_counter()
        found = self._policy(state)
        self.longest = max(self.longest, time.perf_counter() - began)
        return found


def limited(jobs: list[Job]) -> list[Job]:
    """Returns jobs of which those of one application have one GPU at most."""
    return [replace(job, request=1, limit=1) if job.name.startswith(ONE_GPU) else job for job in jobs]


def evenness(results: Results) -> float:
    """Returns Jain's index of the jobs' unfairness: 1 if that is the same for all, 1/n if one of n bears it all."""
    rhos = [one.rho for one in results.outcomes]
    return sum(rhos) ** 2 / (len(rhos) * sum(rho**2 for rho in rhos))


def measured(case: Case, traces: Path, numbers: Sequence[int]) -> dict[str, Any]:
    """Returns the row of a case.

    Args:
        case: The case.
        traces: The artifact's folder.
        numbers: Which of its workloads are simulated.
    """
    longest, ours, replayed = 0.0, [], []
    for number in numbers:
        path = traces / case.workloads.folder / f"workload-{number}.csv"
        jobs = read_trace(path, adaptive=case.workloads.adaptive)
        policy = Timed(Elastic(Settings(in_process=case.in_process, fairness=case.fairness)))
        physics = InProcess() if case.in_process else Restart()
        ours.append(simulate(jobs if case.free else limited(jobs), MACHINES, policy, physics))
        longest = max(longest, policy.longest)
        if not (case.workloads.adaptive or case.fairness):
            replayed.append(simulate(jobs, MACHINES, Rigid(), Restart()))
    times, replays = ([one.mean_completion_time for one in results] for results in (ours, replayed))
    each = [case.workloads.each.get(number) for number in numbers]
    rhos = [job.rho for one in ours for job in one.outcomes if job.completion_time >= LONG]
    mean, replay = statistics.mean(times), statistics.mean(replays) if replays else None
    peer: float | None
    peer, studied = case.workloads.published, case.studied
    if len(numbers) < len(case.workloads.numbers):
        known = [one for one in each if one is not None]
        peer, studied = statistics.mean(known) if len(known) == len(each) else replay, None
    return {
        "benchmark": "allocation",
        "case": case.name,
        "ours": round(mean, 1),
        "peer": None if peer is None else round(peer, 1),
        "ratio": None if peer is None else round(peer / mean, 3),
        "unit": "s",
        "runs": len(numbers),
        "workloads": list(numbers),
        "share": None if peer is None else round(mean / peer, 3),
        "bar": None if case.free or case.fairness else case.workloads.bar,
        "studied": studied,
        "replay": None if replay is None else round(replay, 1),
        "ours_each": [round(one, 1) for one in times],
        "replay_each": [round(one, 1) for one in replays],
        "published_each": each,
        "changes": round(statistics.mean(one.mean_changes for one in ours), 2),
        "most_changes": case.workloads.most_changes,
        "stopped": round(statistics.mean(one.mean_stopped for one in ours), 2),
        "p99": round(statistics.mean(one.p99_completion_time for one in ours)),
        "makespan": round(statistics.mean(one.makespan for one in ours)),
        "worst_rho": round(max(one.worst_rho for one in ours), 2),
        "worst_rho_long": round(max(rhos, default=0.0), 2),
        "evenness": round(statistics.mean(map(evenness, ours)), 3),
        "replay_worst_rho": round(max(one.worst_rho for one in replayed), 2) if replayed else None,
        "gpus_in_use": round(statistics.mean(one.gpus_in_use for one in ours), 1),
        "longest_round_s": round(longest, 3),
    }


def main() -> None:
    """Prints the table, and the machine's line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="only cases whose name contains this")
    parser.add_argument("--workload", type=int, help="only this one of each case's workloads")
    arguments = parser.parse_args()
    traces = Path(os.environ.get("POLLUX_TRACES", "../shared/data/pollux"))
    if not (traces / "traces").is_dir():
        print(f"no traces in {traces}: set POLLUX_TRACES to the folder `simulator` of the Pollux artifact")
        finish([])
        return
    rows = []
    for case in CASES:
        if arguments.case and arguments.case not in case.name:
            continue
        numbers = [one for one in case.workloads.numbers if arguments.workload in (None, one)]
        rows.append(measured(case, traces, numbers))
    columns = {
        "ours": "ours", "peer": "peer", "replay": "our replay", "share": "share", "bar": "bar",
        "studied": "studied", "changes": "changes", "most_changes": "most", "p99": "p99", "worst_rho": "worst rho",
        "worst_rho_long": "of long jobs",
        "evenness": "evenness",
        "longest_round_s": "longest round",
    }  # fmt: skip
    table = Table("mean completion time, s", *columns.values(), box=None)
    for row in rows:
        table.add_row(row["case"], *("" if row[column] is None else str(row[column]) for column in columns))
    Console(highlight=False, width=140).print(table)
    print("peer: the published mean of Tiresias, in the adaptive rows of Pollux; share: of that, to be at most the bar")
    print("studied: by another simulator")
    finish(rows)


if __name__ == "__main__":
    main()
