"""A job without quota holds no process, and goes on where it was once there is some: the model is the plain one."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.host import processes
from tests.support.launches import PATIENCE, Launcher, assert_no_process, launched, until
from tests.support.ledgers import SCRIPT, assert_each_sample_once, assert_same_model, read_ledgers, train_plain

SAMPLES, BATCH, MICRO = 97, 24, 5


class Stage:
    """A job that follows hints, and what it is trained with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hints = folder / "hints.json"
        options = {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": None, "pace": 0.004}
        self.script = json.dumps(options)

    def allow(self, gpus: int, **more: Any) -> None:
        entry = {"match": {}, "gpus": {"allowed": gpus}, "growAfterSeconds": 0.1, **more}
        draft = self.folder / "draft.json"
        draft.write_text(json.dumps({"apiVersion": "elastic-hints/v1", "hints": [entry]}))
        draft.replace(self.hints)

    @contextmanager
    def run(self, *options: str) -> Iterator[Launcher]:
        hints = ["--nodes", "1:2", "--hints", str(self.hints), "--max-batch-per-gpu", str(MICRO)]
        with launched(*hints, *options, "--", SCRIPT, self.script, cwd=self.folder) as job:
            yield job


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def wait_steps(job: Launcher, steps: int, generation: int) -> int:
    """Waits until a generation has done so many steps; returns where the job stands."""
    first: list[int] = []

    def far(event: dict[str, int]) -> bool:
        if event["generation"] >= generation:
            first.append(event["step"])
        return bool(first) and event["step"] >= first[0] + steps

    return int(job.events.wait("progress", far, 2 * PATIENCE)["step"])


def assert_waits(job: Launcher, times: int) -> str:
    """Fails unless the job waits for the so-manieth time, without a process; returns what it says it waits for."""
    until(lambda: len(job.events.of("quota_wait")) == times, "the job waits", 2 * PATIENCE)
    assert processes.find(str(job.work_dir)) == []
    assert job.status()["phase"] == "waiting for quota"
    return str(job.events.of("quota_wait")[-1]["message"])


def test_no_step_is_lost_over_two_times_without_quota(stage: Stage) -> None:
    stage.allow(2)
    with stage.run("--wait-for-quota", "600") as job:
        wait_steps(job, 8, 1)
        for times, gpus in ((1, 1), (2, 2)):
            stage.allow(0)
            said = assert_waits(job, times)
            assert re.match(r"waiting for quota, without any process, up to 600 s: hints: \S+ allows 0 GPUs", said)
            assert f"elastic-launcher: {said}" in job.stderr
            generation = len(job.events.of("generation_formed"))
            stage.allow(gpus)
            wait_steps(job, 8, generation + 1)
        (stage.folder / "stop").touch()
        assert job.wait(2 * PATIENCE) == 0, job.stderr
    ledgers = read_ledgers(stage.folder)
    steps = assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO)
    assert_same_model(stage.folder, train_plain(SAMPLES, BATCH, steps))
    saved = [event["step"] for event in job.events.of("checkpoint_saved")]
    assert [event["step"] for event in job.events.of("quota_back")] == saved[-2:]
    assert job.events.of("step_redone") == [] and len(job.events.of("job_started")) == 1
    nodes = [event["node"] for event in job.events.of("node_started")]
    assert nodes == list(range(1, len(nodes) + 1))
    metrics = json.loads((job.work_dir / "metrics.json").read_text())
    spent = [metrics["counted_seconds"], metrics["idle_seconds"], *metrics["lost_seconds"].values()]
    assert sum(spent) == pytest.approx(metrics["duration_seconds"], abs=0.01)  # each is rounded to a millisecond
    waited = sum(event["seconds"] for event in job.events.of("quota_back"))
    assert metrics["lost_seconds"]["quota"] >= waited - 0.1  # one clock is the wall's, the other is not
    assert metrics["checkpoints"] == len(saved)


@pytest.mark.parametrize(
    "stop", ["SIGTERM", *(pytest.param(s, marks=pytest.mark.thorough) for s in ("SIGINT", "stop"))]
)
def test_a_job_that_waits_is_stopped_at_once(stage: Stage, stop: str) -> None:
    stage.allow(1)
    with stage.run("--wait-for-quota", "600") as job:
        wait_steps(job, 2, 1)
        stage.allow(0)
        assert_waits(job, 1)
        if stop == "stop":
            subprocess.run([sys.executable, "-m", "elastic_launcher", "stop", str(job.work_dir)], check=True)
        else:
            job.process.send_signal(signal.Signals[stop])
        assert job.wait() == (130 if stop == "SIGINT" else 75)
        step = job.events.of("checkpoint_saved")[-1]["step"]
        assert f"while it waited for quota; step {step} is saved in " in job.last_message
        assert_no_process(job.work_dir)


@pytest.mark.thorough
def test_a_job_that_waited_long_enough_ends_saved(stage: Stage) -> None:
    stage.allow(1)
    with stage.run("--wait-for-quota", "1") as job:
        wait_steps(job, 2, 1)
        stage.allow(0)
        assert job.wait(2 * PATIENCE) == 75
        assert "no quota within the 1 s of --wait-for-quota: " in job.last_message
        assert " is saved in " in job.last_message


def test_a_job_waits_as_long_as_its_hint_says(stage: Stage) -> None:
    stage.allow(0, waitSeconds=600)
    with stage.run() as job:
        message = job.events.wait("quota_wait", timeout=2 * PATIENCE)["message"]
        assert message.startswith("waiting for quota, without any process, up to 600 s: hints: ")
        stage.allow(1, waitSeconds=600)
        wait_steps(job, 2, 1)
        stage.allow(0, waitSeconds=600)
        assert_waits(job, 2)
        stage.allow(0, waitSeconds=1)
        assert job.wait(2 * PATIENCE) == 75
        assert "no quota within the 1 s of the hint's waitSeconds: " in job.last_message
        assert " is saved in " in job.last_message


@pytest.mark.thorough
def test_a_launcher_killed_while_the_job_waits_leaves_nothing_and_the_next_waits_on(stage: Stage) -> None:
    stage.allow(1)
    with stage.run("--wait-for-quota", "600") as job:
        wait_steps(job, 2, 1)
        stage.allow(0)
        assert_waits(job, 1)
        job.process.kill()
        job.process.wait()
        assert_no_process(job.work_dir)
    step = job.events.of("checkpoint_saved")[-1]["step"]
    with stage.run("--wait-for-quota", "600") as job:
        until(lambda: len(job.events.of("quota_wait")) == 2, "the next launcher waits", 2 * PATIENCE)
        stage.allow(1)
        wait_steps(job, 2, 2)
        (stage.folder / "stop").touch()
        assert job.wait(2 * PATIENCE) == 0, job.stderr
    assert job.events.of("job_started")[-1]["resumed_step"] == step
    steps = assert_each_sample_once(read_ledgers(stage.folder), SAMPLES, BATCH, MICRO)
    assert_same_model(stage.folder, train_plain(SAMPLES, BATCH, steps))
