"""Seconds of training until a target accuracy: with a batch that adapts, against four fixed batches with tuned rates.

Real data that packages ship: scikit-learn's digits, and the source of Python's standard library as text. Each fixed
batch has the learning rate with which it needed the fewest samples, of the three of `RATES`: ``--tune`` tries them all,
in plain torch, and prints the samples that each took. The adaptive batch begins as the smallest of the four, with its
learning rate. The start of processes and the tests of the accuracy do not count.

A fixed batch that takes longer than `CUT` times the adaptive one is not trained further, and counts as that.

AdaptDL 0.2.11 trains the same on one machine if ``ADAPTDL_PYTHON`` is a Python that has it (see
``scripts/peer_adaptdl_train.py``), with the same first batch and rate.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.common import DEADLINE_SECONDS, SCRIPTS, finish, launched

sys.path.append(str(SCRIPTS))
from adaptive_tasks import TASKS  # noqa: E402 - it stands beside the script that needs it too

SCRIPT, PEER = SCRIPTS / "adaptive_train.py", SCRIPTS / "peer_adaptdl_train.py"
PEER_PYTHON = "ADAPTDL_PYTHON"
RATES = {
    "digits": {32: (0.01, 0.02, 0.03), 64: (0.02, 0.04, 0.06), 128: (0.03, 0.06, 0.1), 512: (0.1, 0.2, 0.3)},
    "text": {32: (0.01, 0.02, 0.03), 128: (0.025, 0.05, 0.1), 512: (0.1, 0.2, 0.4), 2048: (0.2, 0.4, 0.8)},
}
"""Learning rates that were tried, by data and batch."""
TUNED = {
    "digits": {32: 0.02, 64: 0.04, 128: 0.06, 512: 0.2},
    "text": {32: 0.02, 128: 0.05, 512: 0.2, 2048: 0.4},
}
"""What ``--tune`` found."""
LONGEST = 900.0  # seconds of a run
CUT = 1.6  # a fixed batch is worse than all that the bars ask for after so many times as long
MOST_SAMPLES = 7_000_000  # of a run of ``--tune`` that does not reach its target
WORST, WANTED = 1.05, 1.5  # of the best fixed batch at most; of the first one at least, where the noise scale allows


@dataclass(frozen=True)
class Case:
    """Data and ranks."""

    data: str
    ranks: int

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.data}, {self.ranks} rank{'s' * (self.ranks > 1)}"


CASES = [*(Case("text", ranks) for ranks in (1, 2, 4)), Case("digits", 2)]


def run(case: Case, batch: int, most: int, seed: int, longest: float = LONGEST) -> dict[str, Any]:
    """Trains once; returns seconds, steps and batches, and whether the target was reached. With ``most`` 0 the batch is
    fixed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        out = Path(name) / "result.json"
        arguments = (SCRIPT, case.data, batch, most, TUNED[case.data][batch], case.ranks, seed, longest, out)
        with launched("--nodes", f"{case.ranks}:{case.ranks}", "--", *map(str, arguments)) as job:
            job.wait_for("the target accuracy", out.exists, LONGEST)
            job.process.wait(DEADLINE_SECONDS)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def run_adaptdl(case: Case, python: str, seed: int, longest: float) -> dict[str, Any]:
    """Trains once with AdaptDL; returns the same as `run`."""
    batch, *_, most = TUNED[case.data]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        out = Path(name) / "result.json"
        arguments = (PEER, case.data, batch, most, TUNED[case.data][batch], seed, longest, out)
        threads = max(1, (os.cpu_count() or 1) // case.ranks)  # as the launcher sets it
        world = {"JOB_ID": "bench/adaptive", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NUM_NODES": 1}
        world |= {"NUM_REPLICAS": case.ranks, "CHECKPOINT_PATH": name}
        environment = {f"ADAPTDL_{key}": str(value) for key, value in world.items()}
        environment |= {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "OMP_NUM_THREADS": str(threads)}
        ranks = [
            subprocess.Popen(
                [python, *map(str, arguments)],
                env=os.environ | environment | {"ADAPTDL_REPLICA_RANK": str(rank)},
                stderr=subprocess.DEVNULL,
            )
            for rank in range(case.ranks)
        ]
        for rank in ranks:
            rank.wait(LONGEST)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def measure(case: Case, runs: int, python: str | None) -> dict[str, Any]:
    """Runs one row: adaptive, each fixed batch and AdaptDL in turn, with the same seeds."""
    batches = list(TUNED[case.data])
    adaptive: list[dict[str, Any]] = []
    fixed: dict[int, list[dict[str, Any]]] = {batch: [] for batch in batches}
    peer: list[dict[str, Any]] = []
    for seed in range(runs):
        adaptive.append(run(case, batches[0], batches[-1], seed))
        longest = CUT * adaptive[-1]["seconds"]
        for batch in batches:
            fixed[batch].append(run(case, batch, 0, seed, longest))
        if python:
            peer.append(run_adaptdl(case, python, seed, longest))
    middle = {batch: _median(found) for batch, found in fixed.items()}
    best, ours = min(middle, key=lambda batch: middle[batch]), _median(adaptive)
    return {
        "benchmark": "adaptive",
        "case": case.name,
        "ours": round(ours, 3),
        "peer": round(middle[best], 3),
        "ratio": round(middle[best] / ours, 3),
        "ratio_of_first_batch": round(middle[batches[0]] / ours, 3),
        "unit": "seconds of training to the target accuracy (ratio: best fixed batch to adaptive)",
        "best_batch": best,
        "fixed": {batch: round(seconds, 3) for batch, seconds in middle.items()},
        "adaptdl": round(_median(peer), 3) if peer else None,
        "batches": [one["batches"] for one in adaptive],
        "ours_all": _all(adaptive),
        "fixed_all": {batch: _all(found) for batch, found in fixed.items()},
        "adaptdl_all": _all(peer),
        "cut": [str(name) for name, found in {**fixed, "AdaptDL": peer}.items() if _is_cut(found)],
        "runs": runs,
        "bar": [round(1 / WORST, 3), WANTED],
    }


def _median(found: list[dict[str, Any]]) -> float:
    return statistics.median(one["seconds"] for one in found)


def _is_cut(found: list[dict[str, Any]]) -> bool:
    return sum(not one["reached"] for one in found) * 2 > len(found)


def _all(found: list[dict[str, Any]]) -> list[float]:
    return [round(one["seconds"], 3) for one in found]


def _told(found: list[float], cut: bool) -> str:
    """Returns the median and the spread of runs."""
    spread = f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 else ""
    return f"{'over ' * cut}{statistics.median(found):.1f} s{spread}"


def line(row: dict[str, Any]) -> str:
    """Returns a row in words."""
    others = {str(batch): found for batch, found in row["fixed_all"].items()} | {"AdaptDL": row["adaptdl_all"]}
    told = ", ".join(f"{name}: {_told(found, name in row['cut'])}" for name, found in others.items() if found)
    return (
        f"{row['case']}: adaptive {_told(row['ours_all'], False)}; {told}; "
        f"{row['ratio']:.2f} of the best, {row['ratio_of_first_batch']:.2f} of the first"
    )


def samples_to_target(data: str, batch: int, rate: float, seed: int) -> int:
    """Trains in plain torch, in one process; returns the samples that it took, `MOST_SAMPLES` at most."""
    task = TASKS[data]
    train, (test_x, test_y) = task.data()
    x, y = train.tensors
    torch.manual_seed(seed)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    done = tested = 0
    while done < MOST_SAMPLES:
        for chosen in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            done += len(chosen)
            if done - tested < task.test_every:
                continue
            tested = done
            model.eval()
            with torch.no_grad():
                right = (model(test_x).argmax(-1) == test_y).double().mean().item()
            model.train()
            if right >= task.target:
                return done
    return MOST_SAMPLES


def tune(runs: int, wanted: str) -> None:
    """Prints the samples that each fixed batch needs with each learning rate."""
    for data, batches in RATES.items():
        for batch, rates in batches.items():
            for rate in rates if wanted in data else ():
                found = [samples_to_target(data, batch, rate, seed) for seed in range(runs)]
                print(
                    f"{data}, batch {batch}, rate {rate}: {statistics.median(found):,.0f} samples {found}", flush=True
                )


def main() -> None:
    """Prints a row a data set and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--tune", action="store_true", help="looks for the learning rates of the fixed batches")
    options = parser.parse_args()
    if options.tune:
        tune(options.runs, options.case)
        return
    python = os.environ.get(PEER_PYTHON)
    if not python:
        print(f"{PEER_PYTHON} is not set: without AdaptDL")
    rows = []
    for case in CASES:
        if options.case not in case.name:
            continue
        row = measure(case, options.runs, python)
        print(line(row), flush=True)
        rows.append(row)
    finish(rows)


if __name__ == "__main__":
    main()
