"""Measures what it takes to give a project its guaranteed GPUs back from a job that borrowed them.

Two projects share 4 GPUs, each guaranteed 2; one job has borrowed all 4 when one of the other project comes. Ours: the
quota controller takes 2 GPUs back through the hints, on real processes. The peer stops the borrower as a whole, which
saves, and starts it again with what is left, as schedulers do that can't change a job's size: stock torchrun, a script
that saves when it is told to stop, and a scheduler that decides at once. The borrower is started again at once, beside
the owner; where a job can't start smaller, it waits until the owner has ended.

Rows: seconds from the owner's start to its first step, and the same less what its start takes on free GPUs; seconds in
which the borrower makes no step; steps of the borrower that are made again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import SCRIPTS, finish, in_turn, options_of, row, stamps, usual, wait_for
from benchmarks.peer_torchrun import PATIENCE
from elastic_launcher.host import processes

PROJECTS = """
apiVersion: elastic-quota/v1
capacity: {gpus: 4}
projects:
- {name: nlp, guaranteed: 2}
- {name: vision, guaranteed: 2}
"""
SETTLED = 12  # steps before the owner comes, and after
ALL, HALF = 4, 2
Stamps = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        name: As it is printed.
        megabytes: Of the model and its Adam state.
        batch: Samples of a step.
        item: Seconds that loading a sample takes; a step waits for these, so that the cores are free for starts.
    """

    name: str
    megabytes: int
    batch: int = 12
    item: float = 0.03

    @property
    def arguments(self) -> list[str]:
        """The script's arguments behind side and folder."""
        return [str(value) for value in (self.megabytes, self.batch, 1, self.item, 0)]


CASES = [Case("25 MB", 25), Case("300 MB", 300)]


@dataclass(frozen=True)
class Outcome:
    """What one run came to, in seconds.

    Attributes:
        alone: From the owner's start on free GPUs to its first step.
        owner: From the owner's start on GPUs that are lent out to its first step.
        pause: The borrower's longest time between two steps, less a step with the GPUs that it keeps.
        again: Steps of the borrower that were made again.
    """

    alone: float
    owner: float
    pause: float
    again: int


def of_process(folder: Path) -> Stamps:
    """Returns the stamps of all processes of a job, in order of time."""
    return sorted((one for rows in stamps(folder).values() for one in rows), key=lambda one: one["t"])


def judge(borrower: Stamps, owner: float, alone: float) -> Outcome:
    """Returns what a run came to, from the borrower's stamps."""
    firsts: dict[int, float] = {}
    for one in borrower:
        firsts.setdefault(one["step"], one["t"])
    times = sorted(firsts.values())
    made = {(one["step"], one["w"]) for one in borrower}
    pause = max(b - a for a, b in zip(times, times[1:], strict=False)) - usual(only(borrower, HALF), HALF)
    return Outcome(alone, owner, pause, len(made) - len(firsts))


def only(rows: Stamps, size: int) -> Stamps:
    """Returns one stamp a step, of those of one size."""
    found: dict[int, dict[str, Any]] = {}
    for one in rows:
        if one["w"] == size:
            found.setdefault(one["step"], one)
    return list(found.values())


def first_step(folder: Path) -> float:
    """Waits for a job's first step, and returns when it was."""
    wait_for("the owner's first step", lambda: of_process(folder))
    return float(of_process(folder)[0]["t"])


def steps_of(folder: Path, size: int, after: float = 0.0) -> int:
    """Returns how many steps a job has made with a number of ranks."""
    return len(only([one for one in of_process(folder) if one["t"] > after], size))


@contextlib.contextmanager
def running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command that can be ended, and ends it with all that it started."""
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        processes.kill_until_none(str(folder))


@contextlib.contextmanager
def places(*names: str) -> Iterator[Mapping[str, Path]]:
    """Yields a folder for each job."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        found = {one: Path(name) / one for one in (*names, "jobs")}
        for folder in found.values():
            folder.mkdir()
        yield found


BORROWER = ("--project", "nlp", "--nodes", "2:4")
OWNER = ("--project", "vision", "--nodes", "1:1", "--nproc-per-node", "2")  # one torchrun, as the peer's


def launcher(name: str, job: Sequence[str], case: Case, there: Mapping[str, Path]) -> list[str]:
    """Returns the command of one of our jobs."""
    jobs = there["jobs"]
    return [
        *(sys.executable, "-m", "elastic_launcher", "run", "--name", name, *job),
        *("--hints", str(jobs / "hints.json"), "--wait-for-quota", "600", "--work-dir", str(jobs / name)),
        *("--checkpoint-every", "1h"),  # only when it is told to stop, as the peer's
        *("--", str(SCRIPTS / "resize_train.py"), "ours", str(there[name]), *case.arguments),
    ]


def ours(case: Case) -> Outcome:
    """Takes GPUs back through the quota controller."""
    with places("borrower", "owner", "first") as there, contextlib.ExitStack() as stack:
        jobs = there["jobs"]
        (jobs / "projects.yaml").write_text(PROJECTS)
        serve = [sys.executable, "-m", "elastic_launcher", "quota", "serve", str(jobs / "projects.yaml")]
        stack.enter_context(running([*serve, "--jobs", str(jobs)], jobs))
        began = time.monotonic()
        with running(launcher("first", OWNER, case, there), there["first"]):
            alone = first_step(there["first"]) - began
        borrower = there["borrower"]
        stack.enter_context(running(launcher("borrower", BORROWER, case, there), borrower))
        wait_for("steps of all", lambda: steps_of(borrower, ALL) > SETTLED)
        told = time.monotonic()
        stack.enter_context(running(launcher("owner", OWNER, case, there), there["owner"]))
        owner = first_step(there["owner"]) - told
        wait_for("steps of half", lambda: steps_of(borrower, HALF, told) > SETTLED)
        return judge([one for one in of_process(borrower) if one["t"] > told - 1], owner, alone)


def torchrun(folder: Path, ranks: int, case: Case) -> list[str]:
    """Returns the command of one of the peer's jobs."""
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return [*run, str(SCRIPTS / "reclaim_train.py"), "peer", str(folder), *case.arguments]


def peer(case: Case) -> Outcome:
    """Stops the borrower as a whole, and starts it again."""
    with places("borrower", "owner", "first") as there, contextlib.ExitStack() as stack:
        began = time.monotonic()
        with running(torchrun(there["first"], HALF, case), there["first"]):
            alone = first_step(there["first"]) - began
        borrower = there["borrower"]
        first = stack.enter_context(running(torchrun(borrower, ALL, case), borrower))
        wait_for("steps of all", lambda: steps_of(borrower, ALL) > SETTLED)
        told = time.monotonic()
        first.send_signal(signal.SIGTERM)
        first.wait(PATIENCE)
        stack.enter_context(running(torchrun(there["owner"], HALF, case), there["owner"]))
        stack.enter_context(running(torchrun(borrower, HALF, case), borrower))
        owner = first_step(there["owner"]) - told
        wait_for("steps of half", lambda: steps_of(borrower, HALF, told) > SETTLED)
        return judge([one for one in of_process(borrower) if one["t"] > told - 1], owner, alone)


def main() -> None:
    """Runs all cases, ours and the peer in turn."""
    rows = []
    for case, found, theirs in in_turn(CASES, options_of(__doc__), ours, peer):
        for what, bar in (("owner", None), ("reclaim", None), ("pause", 1 / 3), ("again", None)):
            mine, others = ([measured(one, what) for one in side] for side in (found, theirs))
            unit = "steps" if what == "again" else "seconds"
            one = row("reclaim", mine, others, unit, case=f"{NAMES[what]}, {case.name}", bar=bar)
            print(
                f"{one['case']}: ours {one['ours']:.2f}, peer {one['peer']:.2f} {unit}; all: {mine}, {others}",
                flush=True,
            )
            rows.append(one)
    finish(rows)


NAMES = {
    "owner": "the owner's start to its first step",
    "reclaim": "the same less its start on free GPUs",
    "pause": "the borrower's pause",
    "again": "the borrower's steps made again",
}


def measured(outcome: Outcome, what: str) -> float:
    """Returns one of an outcome's figures."""
    return outcome.owner - outcome.alone if what == "reclaim" else float(getattr(outcome, what))


if __name__ == "__main__":
    main()
