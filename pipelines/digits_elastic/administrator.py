"""Plays the platform's administrator: gives two more GPUs when training has begun, takes a node back when three train.

Each act waits for an event of the job, never for a time. It acts as anybody would: by the hints file, and by a signal.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from elastic_launcher.events import Event, read_events

POLL_SECONDS = 0.1
STEPS_OF_THREE = 24
"""Steps that three nodes train together before one gets a notice: enough to see them in the timeline."""

DEADLINE_SECONDS = 180.0
"""For each act: far above what a slow machine needs to import torch and to train for a moment."""


def wait_for(events: Path, what: str, wanted: Callable[[Event], bool]) -> Event:
    """Returns the first event that is ``wanted``.

    Raises:
        SystemExit: If it doesn't come, or whoever started this process has gone (our standard input has closed then).
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        seen = read_events(events) if events.exists() else []
        for event in seen:
            if wanted(event):
                return event
        if any(event.kind == "job_finished" for event in seen):
            sys.exit(f"administrator: the job ended before {what}")
        if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
            sys.exit(f"administrator: nobody needs me any more, and I was waiting for {what}")
    sys.exit(f"administrator: {what} did not come within {DEADLINE_SECONDS:.0f} s")


def allow(hints: Path, job: str, gpus: int) -> None:
    """Edits the hints file, as an administrator would."""
    command = [sys.executable, "-m", "elastic_launcher", "hints", "set", str(hints)]
    subprocess.run([*command, "--match", f"job={job}", "--allowed", str(gpus)], check=True, stdin=subprocess.DEVNULL)


def give_notice(work_dir: Path, node: int) -> None:
    """Sends a termination notice to a node's agent."""
    os.kill(json.loads((work_dir / "nodes" / f"{node}.json").read_text())["pid"], signal.SIGTERM)


def main(work_dir: Path, hints: Path, job: str) -> None:
    """Raises the hint from 1 to 3 GPUs, then gives the oldest node notice."""
    events = work_dir / "events.jsonl"
    wait_for(events, "the first progress", lambda event: event.kind == "progress" and event.generation == 1)
    print(f"administrator: two GPUs are free, {job} may have 3", flush=True)
    allow(hints, job, 3)
    formed = wait_for(
        events, "a generation of 3", lambda event: event.kind == "generation_formed" and event["world_size"] == 3
    )
    trained = formed["first_step"] + STEPS_OF_THREE
    wait_for(events, f"step {trained}", lambda event: event.kind == "progress" and event["step"] >= trained)
    node = formed["members"][0]["node"]
    print(f"administrator: node {node} is needed elsewhere, it has been given notice", flush=True)
    give_notice(work_dir, node)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
