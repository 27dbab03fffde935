"""One job that is launched several times in one folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from elastic_launcher.host import processes
from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.ledgers import (
    SCRIPT,
    assert_each_sample_once,
    assert_same_model,
    read_ledgers,
    train_plain,
    without_lost,
)

SAMPLES, BATCH = 97, 24
LONG = 150.0


class Stage:
    """One job that is launched several times in one folder."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.work_dir = folder / "job"
        self.runs = 0
        options = {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": None, "pace": 0.004, **more}
        self.script = json.dumps(options)

    @contextmanager
    def run(self, nodes: int, micro: int = 5, *options: str, **environment: str) -> Iterator[Launcher]:
        self.runs += 1
        arguments = [
            "--nodes",
            f"{nodes}:{nodes}",
            "--max-batch-per-gpu",
            str(micro),
            *options,
            "--",
            SCRIPT,
            self.script,
        ]
        with launched(*arguments, cwd=self.folder, work_dir=self.work_dir, environment=environment) as job:
            yield job

    def events(self, job: Launcher) -> list[dict[str, Any]]:
        """Returns the events of the run that was started last."""
        events = job.events.all()
        begun = [number for number, event in enumerate(events) if event["kind"] == "job_started"]
        return events[begun[-1] :] if len(begun) == self.runs else []

    def wait_steps(self, job: Launcher, steps: int) -> int:
        """Waits until this run has done so many steps; returns where the job stands."""
        first: list[int] = []

        def far(event: dict[str, Any]) -> bool:
            if event not in self.events(job):
                return False
            first.append(event["step"])
            return event["step"] >= min(first) + steps

        return int(job.events.wait("progress", far, LONG)["step"])

    def finish(self, job: Launcher) -> None:
        (self.folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(self.work_dir)

    def kill_everything(self, job: Launcher) -> None:
        job.process.kill()
        job.process.wait()
        assert processes.kill_until_none(str(self.work_dir))

    def assert_like_plain(self, happened: list[dict[str, Any]], micro: int, *, stopped_only: bool = False) -> int:
        """Fails unless the final model is the plain one, of each sample once; returns the number of steps."""
        ledgers = read_ledgers(self.folder)
        if not stopped_only:
            ledgers = without_lost(ledgers, happened)
        steps = assert_each_sample_once(ledgers, SAMPLES, BATCH, micro)
        assert_same_model(self.folder, train_plain(SAMPLES, BATCH, steps))
        assert torch.load(self.folder / "model.pt", weights_only=True)["state"] == {"steps": steps}
        return steps
