"""Helpers of the benchmarks: starting jobs, waiting for events, reading stamps, and printing results."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from elastic_launcher.events import Event, read_events
from elastic_launcher.host import processes

SCRIPTS = Path(__file__).parent / "scripts"
DEADLINE_SECONDS = 180.0  # for anything that ought to take seconds
POLL_SECONDS = 0.05  # each look costs the training something


class Named(Protocol):
    """A case of a benchmark."""

    @property
    def name(self) -> str:
        """As it is printed."""


AnyCase = TypeVar("AnyCase", bound=Named)
A = TypeVar("A")
B = TypeVar("B")


def wait_for(what: str, condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """Returns what a condition returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds:g} s")
        time.sleep(POLL_SECONDS)
    return found


class Job:
    """A launcher under way."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self._command = command
        self._environment = environment
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Starts the launcher, once more if there was one before."""
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self._environment
            )

    def events(self) -> list[Event]:
        """Returns what has happened so far."""
        path = self.folder / "job" / "events.jsonl"
        return read_events(path) if path.exists() else []

    def wait_for(self, what: str, condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
        """Returns what a condition returns, once that is true.

        Raises:
            RuntimeError: If the launcher ends before.
        """

        def look() -> Any:
            if self.process.poll() is not None:
                raise RuntimeError(f"the launcher ended: {(self.folder / 'log').read_text()[-2000:]}")
            return condition()

        return wait_for(what, look, seconds)

    def event(self, kind: str, test: Callable[[Event], bool] = lambda event: True) -> Event:
        """Waits for an event."""
        found = self.wait_for(
            kind, lambda: next((event for event in self.events() if event.kind == kind and test(event)), None)
        )
        assert isinstance(found, Event)
        return found

    def node_pid(self, node: int) -> int:
        """Returns the process id of a node's agent."""
        return int(json.loads((self.folder / "job" / "nodes" / f"{node}.json").read_text())["pid"])

    def notice(self, node: int) -> None:
        """Gives a node notice."""
        os.kill(self.node_pid(node), signal.SIGTERM)


@contextlib.contextmanager
def launched(*arguments: str | Path, environment: dict[str, str] | None = None) -> Iterator[Job]:
    """Runs ``elastic-launcher run ARGUMENTS`` in a new folder, and ends it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        command = [
            sys.executable,
            "-m",
            "elastic_launcher",
            "run",
            "--work-dir",
            str(folder / "job"),
            *map(str, arguments),
        ]
        job = Job(command, folder, environment or {})
        try:
            yield job
        finally:
            job.process.send_signal(signal.SIGTERM)
            try:
                job.process.wait(20)
            except subprocess.TimeoutExpired:
                job.process.kill()
            processes.kill_until_none(str(folder / "job"))


def kill(pid: int) -> float:
    """Kills a node's process and all that it started, as a lost machine ends them; returns when."""
    parent = psutil.Process(pid)
    processes = [parent, *parent.children(recursive=True)]
    now = time.monotonic()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
    return now


def hint(gpus: int) -> str:
    """Returns a hints document that allows a number of GPUs."""
    document = {"apiVersion": "elastic-hints/v1", "defaults": {"gpus": {"allowed": gpus}, "growAfterSeconds": 0}}
    return json.dumps(document)


def write_hint(path: Path, gpus: int) -> float:
    """Allows a number of GPUs; returns when, on the monotonic clock."""
    aside = path.with_suffix(".new")
    aside.write_text(hint(gpus))
    os.replace(aside, path)
    return time.monotonic()


def stamps(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns what each process of a script wrote after its optimizer steps, by process."""
    found = {}
    for path in folder.glob("stamps-*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        if rows:
            found[path.stem.partition("-")[2]] = rows
    return found


def usual(rows: Sequence[dict[str, Any]], world_size: int) -> float:
    """Returns the median step at a world size, from stamps in order of time."""
    times = [r["t"] for r in rows if r["w"] == world_size]
    return statistics.median(b - a for a, b in zip(times, times[1:], strict=False))


def options_of(document: str | None) -> argparse.Namespace:
    """Returns what the command line of a benchmark of several cases says: ``runs`` and ``case``."""
    parser = argparse.ArgumentParser(description=document)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--case", help="only cases whose name contains this")
    return parser.parse_args()


def in_turn(
    cases: Iterable[AnyCase], options: argparse.Namespace, ours: Callable[[AnyCase], A], peer: Callable[[AnyCase], B]
) -> Iterator[tuple[AnyCase, list[A], list[B]]]:
    """Runs the wanted cases, ours and the peer in turn; yields each with what all its runs came to."""
    for case in cases:
        if options.case and options.case not in case.name:
            continue
        runs = [(ours(case), peer(case)) for _ in range(options.runs)]
        yield case, [mine for mine, _ in runs], [theirs for _, theirs in runs]


def row(benchmark: str, ours: Sequence[float], peer: Sequence[float], unit: str, **more: Any) -> dict[str, Any]:
    """Returns one row of results: medians, their ratio (peer to ours for times), and the spread."""
    middle, other = statistics.median(ours), statistics.median(peer)
    return {
        "benchmark": benchmark,
        **more,
        "ours": round(middle, 4),
        "peer": round(other, 4),
        "ratio": round(other / max(middle, 1e-3), 2),
        "unit": unit,
        "runs": len(ours),
        "ours_all": [round(v, 4) for v in ours],
        "peer_all": [round(v, 4) for v in peer],
    }


def finish(rows: list[dict[str, Any]]) -> None:
    """Prints the machine's line."""
    print(json.dumps(rows[0] if len(rows) == 1 else rows))
