"""A launcher that is killed and started again goes on with the ranks that still train: none restarts, no step is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.local.ledgers import SCRIPT, assert_each_sample_once, assert_same_model, read_ledgers, train_plain
from tests.local.resizes import LONG
from tests.support import Launcher, assert_no_process, launched

SAMPLES, BATCH, MICRO = 97, 24, 5


class Stage:
    """One job whose launcher is killed and started again.

    Attributes:
        job: The launcher that runs now.
    """

    def __init__(self, folder: Path, *options: str, environment: dict[str, str] | None = None, **more: Any) -> None:
        self.folder = folder
        self.work_dir = folder / "job"
        settings = {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": MICRO, "pace": 0.004, **more}
        self._arguments = (*options, "--", str(SCRIPT), json.dumps(settings))
        self._environment = environment

    @contextmanager
    def launcher(self) -> Iterator[Launcher]:
        """Runs a launcher, and leaves what it started alone if the test has killed it by then."""
        with launched(*self._arguments, cwd=self.folder, work_dir=self.work_dir, environment=self._environment) as job:
            yield job

    def finish(self, job: Launcher) -> int:
        """Has the training end; returns the number of steps, of each sample once, with the plain model."""
        (self.folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(self.work_dir)
        steps = assert_each_sample_once(read_ledgers(self.folder), SAMPLES, BATCH, MICRO)
        assert_same_model(self.folder, train_plain(SAMPLES, BATCH, steps))
        assert job.events.of("job_finished")[0]["steps"] == steps
        assert len(job.events.of("job_started")) == 1
        return steps


def kill(job: Launcher) -> None:
    """Kills the launcher alone."""
    job.process.kill()
    job.process.wait()


def pids_of(job: Launcher) -> dict[int, int]:
    """Returns the process of each member that lives."""
    return {
        member["member"]: member["pid"]
        for node in job.status()["nodes"]
        for member in node["members"]
        if member["pid"] is not None
    }


def adopted(job: Launcher, times: int) -> dict[str, Any]:
    """Waits until a launcher has come back so many times, and training goes on; returns what it said last."""
    job.events.wait("coordinator_adopted", lambda event: event["term"] > times, LONG)
    found = job.events.of("coordinator_adopted")[-1]
    job.events.wait("progress", lambda event: event["step"] > found["step"] + 1, LONG)
    return found


@pytest.mark.quick
def test_ranks_at_rest_go_on_under_a_launcher_that_comes_back(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--nodes", "2:2")
    with stage.launcher() as first:
        first.events.wait("progress", lambda event: event["step"] > 5, LONG)
        before = pids_of(first)
        kill(first)
        with stage.launcher() as second:
            found = adopted(second, 1)
            assert pids_of(second) == before
            stage.finish(second)
    assert found["generation"] == second.events.of("generation_formed")[-1]["generation"]
    assert {one["member"]: one["pid"] for one in found["members"]} == before
    assert len(second.events.of("generation_formed")) <= 2, "no generation was formed for it"
