"""What a script under the launcher goes through in the tests of each framework: resizes, a notice, a stop.

The script of `resize` and those after it trains until there is a file ``stop`` in its folder.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from elastic_launcher.config import ExitCode
from tests.support.launches import launched
from tests.support.resizes import LONG, allow, formed


def launch_training(
    script: Path, options: str, folder: Path, nodes: str, environment: dict[str, str] | None = None
) -> list[Any]:
    """Trains to the end; returns the sizes of the generations."""
    with launched("--nodes", nodes, "--", script, options, cwd=folder, environment=environment) as job:
        assert job.wait(LONG) == 0, job.stderr
        return [event["world_size"] for event in job.events.of("generation_formed")]


def resize(script: Path, options: str, folder: Path, environment: dict[str, str] | None = None) -> None:
    """Trains on one rank, then on three, then on two."""
    hints = folder / "hints.json"
    allow(hints, 1)
    arguments = ("--nodes", "1:3", "--hints", hints, "--", script, options)
    with launched(*arguments, cwd=folder, environment=environment) as job:
        last = formed(job, 1, 0)
        for size in (3, 2):
            allow(hints, size)
            last = formed(job, size, last["generation"])
        (folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr


def notify_rank_0(script: Path, options: str, folder: Path) -> None:
    """Trains on two nodes, of which that of rank 0 gets notice, and another one takes its place."""
    with launched("--nodes", "1:2", "--", script, options, cwd=folder) as job:
        first = formed(job, 2, 0)
        os.kill(job.node_pid(first["members"][0]["node"]), signal.SIGTERM)
        formed(job, 2, formed(job, 1, first["generation"])["generation"])
        (folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr


def stop_and_resume(script: Path, options: str, folder: Path) -> None:
    """Trains on one rank until the job is stopped, and then goes on with two."""
    with launched("--nodes", "1:1", "--", script, options, cwd=folder) as job:
        formed(job, 1, 0)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(LONG) == ExitCode.STOPPED, job.stderr
    with launched("--nodes", "2:2", "--", script, options, cwd=folder) as job:
        formed(job, 2, 0)
        (folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr


def train_twice(script: Path, options: str, folder: Path, said: str, every: int = 1) -> None:
    """Trains on two ranks to the end, and begins once more from the last checkpoint; both say how they have ended.

    A checkpoint is saved each so many steps.
    """
    saving = ("--checkpoint-dir", folder / "checkpoints", "--checkpoint-every", f"{every} steps")
    for place in (folder / "first", folder / "second"):
        place.mkdir()
        with launched("--nodes", "2:2", *saving, "--", script, options, cwd=place) as job:
            assert job.wait(LONG) == 0, job.stderr
        assert said in job.stderr
