"""Shares this machine among two projects, each guaranteed 2 of 4 GPUs; `make run-shared` calls it.

The job `bert` borrows all 4 GPUs. A second job of its project, `probe`, gets one of them. Then `resnet` comes, whose
project owns 2: `bert` shrinks, `probe` is paused, and goes on once `resnet` has ended. All three end with the model of
an undisturbed run. Ends with 1 if something else happened.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from elastic_launcher.events import Event, read_events
from elastic_launcher.quota.history import read
from elastic_launcher.quota.timeline import machine_timeline
from elastic_launcher.report.history import relate

HERE = Path(__file__).parent
GPUS = 4
PATIENCE = 90.0  # seconds until a size must have come
TOLERANCE = 1e-9  # between the weights of a run through all changes and those of an undisturbed one
LAUNCHER = [sys.executable, "-m", "elastic_launcher"]


@dataclass(frozen=True)
class Job:
    """One of the jobs.

    Attributes:
        name: Its name.
        project: Its project.
        nodes: The least and the most nodes that it can use.
        epochs: Passes over the data.
        step_seconds: What a step takes on one rank.
    """

    name: str
    project: str
    nodes: str
    epochs: int
    step_seconds: float


BERT = Job("bert", "nlp", "2:4", 60, 0.16)
PROBE = Job("probe", "nlp", "1:1", 16, 0.12)
RESNET = Job("resnet", "vision", "2:2", 8, 0.16)


class Failure(Exception):
    """Something else happened than should have."""


def start(job: Job, folder: Path) -> "subprocess.Popen[bytes]":
    """Starts a job, which waits for its first hint."""
    script = [str(HERE / "train.py"), str(folder / f"{job.name}.pt"), str(job.epochs), str(job.step_seconds)]
    command = [
        *LAUNCHER, "run", "--name", job.name, "--nodes", job.nodes, "--project", job.project,
        "--hints", str(folder / "jobs" / "hints.json"), "--wait-for-quota", "600",
        "--work-dir", str(folder / "jobs" / job.name), "--", *script,
    ]  # fmt: skip
    with open(folder / f"{job.name}.log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def events(job: Job, folder: Path) -> list[Event]:
    """Returns what has happened to a job so far."""
    path = folder / "jobs" / job.name / "events.jsonl"
    return read_events(path) if path.exists() else []


def wait_for(what: str, seen: Callable[[], bool], started: "Mapping[str, subprocess.Popen[bytes]]") -> None:
    """Waits until something is seen.

    Raises:
        Failure: If it takes too long, or a job has failed.
    """
    began = time.monotonic()
    while not seen():
        failed = [name for name, process in started.items() if process.poll()]
        if failed:
            raise Failure(f"{failed[0]} ended with {started[failed[0]].returncode} before {what}")
        if time.monotonic() - began > PATIENCE:
            raise Failure(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.1)
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def sizes(job: Job, folder: Path) -> list[int]:
    """Returns the world sizes of a job so far."""
    return [event["world_size"] for event in events(job, folder) if event.kind == "generation_formed"]


def trained(job: Job, folder: Path) -> set[str]:
    """Returns the kinds of what has happened to a job that had trained a step."""
    return {event.kind for event in events(job, folder) if "step" in event}


def share(folder: Path) -> None:
    """Runs the three jobs.

    Raises:
        Failure: If something else happened than should have.
    """
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        started[BERT.name] = start(BERT, folder)
        wait_for("bert borrows all 4 GPUs", lambda: sizes(BERT, folder)[-1:] == [4], started)
        started[PROBE.name] = start(PROBE, folder)
        wait_for("probe has one of them", lambda: sizes(PROBE, folder) == [1], started)
        started[RESNET.name] = start(RESNET, folder)
        wait_for("resnet has its 2 GPUs back", lambda: sizes(RESNET, folder) == [2], started)
        wait_for("probe is paused", lambda: "quota_wait" in trained(PROBE, folder), started)
        wait_for("resnet has ended", lambda: started[RESNET.name].poll() is not None, started)
        wait_for("probe goes on", lambda: "quota_back" in trained(PROBE, folder), started)
        for name, process in started.items():
            wait_for(f"{name} has ended", lambda process=process: process.poll() is not None, started)
        failed = [name for name, process in started.items() if process.returncode]
        if failed:
            raise Failure(f"{failed[0]} ended with {started[failed[0]].returncode}")
    finally:
        for process in started.values():
            process.terminate()
            process.wait()


def undisturbed(job: Job, folder: Path) -> float:
    """Trains without any launcher, and returns the largest difference of a weight."""
    path = folder / f"{job.name}-alone.pt"
    subprocess.run([sys.executable, str(HERE / "train.py"), str(path), str(job.epochs), "0"], check=True)
    ours, alone = torch.load(folder / f"{job.name}.pt"), torch.load(path)
    return max(float((ours[name] - alone[name]).abs().max()) for name in alone)


def main() -> int:
    """Runs the demonstration and judges what was seen.

    Returns:
        The exit code: 0 if all was as it should be.
    """
    parent = Path("elastic-jobs").resolve()
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("shared-%H%M%S-"), dir=parent))
    serve = [*LAUNCHER, "quota", "serve", str(HERE / "projects.yaml"), "--jobs", str(folder / "jobs")]
    began = time.monotonic()
    with subprocess.Popen(serve) as controller:
        try:
            share(folder)
        except Failure as error:
            print(f"make run-shared failed: {error}; logs: {folder}", file=sys.stderr)
            return 1
        finally:
            controller.terminate()
    took = time.monotonic() - began
    jobs = {job.name: relate(events(job, folder)) for job in (BERT, PROBE, RESNET)}
    page = folder / "machine.html"
    page.write_text(
        machine_timeline("A shared machine", GPUS, jobs, list(read(folder / "jobs" / "quota-history.jsonl"))),
        encoding="utf-8",
    )
    differences = {job.name: undisturbed(job, folder) for job in (BERT, PROBE, RESNET)}
    for name, difference in differences.items():
        print(f"{name}: weights differ from an undisturbed run by {difference:.1e} at most")
    print(f"The three jobs took {took:.0f} s.\nTimeline of the machine: {page}")
    return 0 if max(differences.values()) < TOLERANCE else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("make run-shared: interrupted", file=sys.stderr)
        sys.exit(130)
