"""Measures how long a save holds the training, against a synchronous `torch.save`, its writer's cost, and a load.

One process trains a model whose parameters and Adam state are 300 MB. Ours and the peer save in turn, both synced to
the same disk. Held: from the call to the return in the training loop. Slow-down: the median step while the writer runs
against the median step while it does not. The share of the run time at the default period follows from both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.common import finish, row
from elastic_launcher.checkpoint import JobIdentity, Mark, find_newest
from elastic_launcher.checkpoint.store import LocalStore
from elastic_launcher.period import COSTS, LEAST_SECONDS
from elastic_launcher.torch.state.checkpoint_writer import Saver, load
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.training_state import TrainingState

MEGABYTES, LAYERS, BATCH = 300, 8, 16
WIDTH = int((MEGABYTES * 2**20 / 12 / LAYERS) ** 0.5)  # parameters and Adam's two moments, float32
QUIET_STEPS = 8
JOB = JobIdentity("benchmark", (), BATCH, 0, "random", False, 0, False)
HELD_BAR, RUN_BAR = 0.15, 0.05


class Training:
    """A model, its optimizer, and steps that are timed."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(BATCH, WIDTH)
        self.state = TrainingState([self.model], [self.optimizer], [], [], {}, {})
        self.step()

    def step(self) -> float:
        """Trains one step; returns its seconds."""
        began = time.perf_counter()
        functional.mse_loss(self.model(self.x), self.x).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began


def timed(call: Any, *arguments: Any) -> float:
    """Returns how long a call takes."""
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


def synchronous(training: Training, path: Path) -> None:
    """Saves as a script without us would, with the care that ours takes."""
    draft = path.with_suffix(".new")
    with open(draft, "wb") as file:
        torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def measure(folder: Path, runs: int) -> dict[str, list[float]]:
    """Returns all times, in seconds."""
    training = Training()
    found: dict[str, list[float]] = {key: [] for key in ("held", "peer", "quiet", "busy", "written", "loaded", "torch")}
    failures: list[str] = []
    saver = Saver(
        LocalStore(folder / "checkpoints"),
        2,
        lambda saved: found["written"].append(saved.seconds),
        lambda step, why: failures.append(why),
    )
    for run in range(runs + 1):  # the first one makes the host memory that the others use again
        found["quiet"] += [training.step() for _ in range(QUIET_STEPS)]
        position, mark = Position(0, run, run, run * BATCH), Mark(1, 1, run)
        found["held"].append(timed(saver.save, training.state, position, JOB, mark, 1))
        while saver.busy:
            found["busy"].append(training.step())
        found["quiet"] += [training.step() for _ in range(QUIET_STEPS)]
        found["peer"].append(timed(synchronous, training, folder / "peer.pt"))
    if failures:
        raise RuntimeError(failures[0])
    for _ in range(runs):
        found["loaded"].append(timed(resume, folder / "checkpoints", training.state))
        found["torch"].append(timed(resume_plainly, folder / "peer.pt", training))
    return {key: values[1:] if key in ("held", "peer", "written") else values for key, values in found.items()}


def resume(folder: Path, state: TrainingState) -> None:
    """Looks for the newest checkpoint, checks every byte, and takes its state."""
    newest = find_newest(folder)
    assert newest.folder is not None and newest.manifest is not None
    load(newest.folder, newest.manifest, state)


def resume_plainly(path: Path, training: Training) -> None:
    """Does what a script without us would."""
    saved = torch.load(path, weights_only=True)
    training.model.load_state_dict(saved["model"])
    training.optimizer.load_state_dict(saved["optimizer"])


def main() -> None:
    """Prints a row a claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk that is to be measured")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.folder))
    try:
        times = measure(folder, arguments.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    held, written, quiet, busy = (statistics.median(times[key]) for key in ("held", "written", "quiet", "busy"))
    lost = held + max(0.0, 1 - quiet / busy) * (written - held)
    period = max(LEAST_SECONDS, COSTS * written)
    saved = row(
        "a save holds the training", times["held"], times["peer"], "seconds", megabytes=MEGABYTES, written=written
    )
    saved |= {"share": round(saved["ours"] / saved["peer"], 4), "bar": HELD_BAR}
    slowed = row("a step while the writer runs", times["busy"], times["quiet"], "seconds (peer: while it does not)")
    run = {
        "benchmark": "share of the run time at the default period, from the above",
        "ours": round(lost / period, 4),
        "lost_seconds": round(lost, 4),
        "period_seconds": round(period, 1),
        "unit": "share",
        "bar": RUN_BAR,
    }
    resumed = row("resume: find, check, load", times["loaded"], times["torch"], "seconds (peer: torch.load)")
    print(
        f"{MEGABYTES} MB of model and Adam state, {torch.get_num_threads()} threads, medians of {arguments.runs} runs"
    )
    print(f"held {held:.3f} s, torch.save and fsync {saved['peer']:.3f} s: {saved['share']:.1%} (bar {HELD_BAR:.0%})")
    print(f"written after {written:.2f} s; a step {quiet:.4f} s, while it is written {busy:.4f} s")
    print(f"each {period:.0f} s: {run['ours']:.2%} of the run time (bar {RUN_BAR:.0%})")
    print(f"resume {resumed['ours']:.3f} s with every byte checked, torch.load {resumed['peer']:.3f} s")
    for one in (slowed, resumed):
        del one["ours_all"], one["peer_all"]
    finish([saved, slowed, run, resumed])


if __name__ == "__main__":
    main()
