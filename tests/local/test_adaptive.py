"""Replaying a recorded batch schedule in plain torch on one process gives the model of the elastic job."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.launches import assert_no_process, launched
from tests.support.ledgers import (
    SCRIPT,
    Entries,
    assert_each_sample_once,
    assert_same_model,
    counted,
    gains_of,
    read_ledgers,
    recorded,
    statistical_steps,
    train_plain,
    without_lost,
)
from tests.support.relaunches import BATCH, SAMPLES, Stage
from tests.support.resizes import LONG, allow, formed

MICRO = 5
PERIOD = (40, 24, 31, 60, 97, 33)
SIZES = {step: PERIOD[step // 5 % len(PERIOD)] for step in range(2, 3000, 5)}
"""By the step in which it is decided: in mid-epoch and in last steps."""


def assert_replays(folder: Path, events: Sequence[dict[str, Any]], micro: int = MICRO, first: int = BATCH) -> Entries:
    """Fails unless the recorded schedule gives the job's model, samples and batches; returns it."""
    entries, ledgers = recorded(events, first), without_lost(read_ledgers(folder), list(events))
    steps = assert_each_sample_once(ledgers, SAMPLES, entries, micro)
    for step, rows in counted(ledgers).items():
        size = max(entry for entry in entries if entry[0] <= step)[1]
        assert {row["batch"] for row in rows} == {size}, f"step {step}"
    assert_same_model(folder, train_plain(SAMPLES, entries, steps, gains=gains_of(events)))
    assert [entry for entry in entries if entry[0] > steps] == []
    return entries


def assert_ends_by_itself(folder: Path, events: Sequence[dict[str, Any]], epochs: int) -> int:
    """Fails unless a job's recorded schedule gives what it trained, and the step with which it ended; returns that."""
    entries = assert_replays(folder, events)
    gains = {event["step"]: event["gain"] for event in events if event["kind"] == "batch_changed"}
    steps = len(counted(without_lost(read_ledgers(folder), list(events))))
    assert steps == statistical_steps(SAMPLES, entries, gains, epochs)
    assert torch.load(folder / "model.pt", weights_only=True)["step"] == steps
    told = [event for event in events if event["kind"] == "progress"][-1]
    assert told["step"] == steps and told["epochs"] == epochs <= told["statistical_epoch"] < epochs + 1
    return steps


def options(folder: Path, **more: Any) -> str:
    settings = {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": MICRO, "pace": 0.004}
    return json.dumps({**settings, "sizes": SIZES, **more})


@pytest.mark.quick
def test_a_batch_that_adapts_through_resizes_and_a_lost_node_replays(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    script = SCRIPT, options(tmp_path, workers=2)
    with launched("--nodes", "1:3", "--hints", hints, "--", *script, cwd=tmp_path) as job:
        formed(job, 1, 0)
        allow(hints, 3)
        last = formed(job, 3, 1)
        job.events.wait("batch_changed", lambda event: event["step"] > last["first_step"] + 10, LONG)
        allow(hints, 2)
        os.kill(job.node_pid(last["members"][1]["node"]), signal.SIGKILL)
        last = formed(job, 2, last["generation"])
        changed = job.events.wait("batch_changed", lambda event: event["step"] > last["first_step"] + 10, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert job.events.of("node_lost")
    times = [row for event in job.events.of("step_times") for row in event["times"]]
    assert 1 in {row[1] for row in times} and all(row[4] > 0 for row in times)
    assert changed["gain"] == changed["gains"][0] > 0 and changed["noise_scale"] == 2.0 * changed["old"]
    assert changed["reason"] == f"as listed for step {changed['step'] - 1}"
    assert changed["learning_rate_rule"] == "adam"
    entries = assert_replays(tmp_path, job.events.all())
    steps = [event["step"] for event in job.events.of("batch_changed")]
    assert steps == [step for step, _ in entries[1:]]  # each once
    assert_no_process(job.work_dir)


def test_a_job_ends_by_itself_after_its_statistical_epochs_through_resizes_and_a_lost_node(tmp_path: Path) -> None:
    """One rank is slow until all that was to come in between has come."""
    hints, epochs = tmp_path / "hints.json", 150
    allow(hints, 1)
    script = SCRIPT, options(tmp_path, pace=0.0, epochs=epochs, workers=1, worth=0.7, slow_members=[1], slow=0.02)
    with launched("--nodes", "1:3", "--hints", hints, "--", *script, cwd=tmp_path) as job:
        formed(job, 1, 0)
        allow(hints, 3)
        last = formed(job, 3, 1)
        os.kill(job.node_pid(last["members"][1]["node"]), signal.SIGKILL)
        last = formed(job, 2, last["generation"])
        allow(hints, 1)
        formed(job, 1, last["generation"])
        (tmp_path / "fast").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_ends_by_itself(tmp_path, job.events.all(), epochs)
    assert f"job.epochs({epochs}) counts statistical epochs" in job.stdout
    assert_no_process(job.work_dir)


def test_statistical_epochs_go_on_from_a_checkpoint_in_their_middle_and_from_one_at_their_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path, sizes=SIZES, epochs=8, worth=0.7, linger=[3, 4], pace=0.02)
    with stage.run(2, MICRO) as job:
        stage.wait_steps(job, 8)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(LONG) == 75, job.stderr
    with stage.run(2, MICRO, "--checkpoint-every", "1 steps") as job:
        done = job.events.wait("progress", lambda event: event["statistical_epoch"] >= 8, LONG)["step"]
        job.events.wait("checkpoint_saved", lambda event: event["step"] == done, LONG)
        stage.kill_everything(job)
    with stage.run(1, MICRO) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert assert_ends_by_itself(tmp_path, job.events.all(), 8) == done


@pytest.mark.thorough
def test_the_loss_of_the_rank_that_decides_loses_no_decision(tmp_path: Path) -> None:
    with launched("--nodes", "2:2", "--", SCRIPT, options(tmp_path), cwd=tmp_path) as job:
        last = formed(job, 2, 0)
        job.events.wait("batch_changed", timeout=LONG)
        os.kill(job.node_pid(last["members"][0]["node"]), signal.SIGKILL)
        last = formed(job, 2, last["generation"])
        job.events.wait("batch_changed", lambda event: event["step"] > last["first_step"] + 10, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_replays(tmp_path, job.events.all())


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param("break=reduced@22:2", id="one has lost the reduction of a decision"),
        pytest.param("reduction@22:1", marks=pytest.mark.thorough, id="the rank that decides is lost before it"),
    ],
)
def test_a_decision_whose_step_breaks_off_is_the_same_on_all_ranks(tmp_path: Path, faults: str) -> None:
    assert SIZES[22] != SIZES[17]
    environment = {"ELASTIC_FAULT": faults}
    with launched("--nodes", "3:3", "--", SCRIPT, options(tmp_path), cwd=tmp_path, environment=environment) as job:
        job.events.wait("batch_changed", lambda event: event["step"] > 32, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert (23, SIZES[22]) in assert_replays(tmp_path, job.events.all())


def test_a_job_that_is_stopped_goes_on_by_its_schedule_at_another_size(tmp_path: Path) -> None:
    stage = Stage(tmp_path, sizes=SIZES)
    for nodes in (2, 3):
        with stage.run(nodes) as job:
            stage.wait_steps(job, 12)
            job.process.send_signal(signal.SIGTERM)
            assert job.wait(LONG) == 75, job.stderr
    with stage.run(1) as job:
        stage.wait_steps(job, 12)
        stage.finish(job)
    entries = assert_replays(tmp_path, job.events.all())
    assert len(job.events.of("batch_changed")) == len(entries) - 1


@pytest.mark.thorough
@pytest.mark.parametrize("again", [True, False])
def test_what_was_decided_after_the_checkpoint_that_a_job_resumes_from_holds_no_longer(
    tmp_path: Path, again: bool
) -> None:
    """Whether the batch changes once more after that or not."""
    stage = Stage(tmp_path, sizes=SIZES)
    with stage.run(2, MICRO, "--checkpoint-every", "1000 steps") as job:
        stage.wait_steps(job, 12)
        (tmp_path / "save").touch()
        saved = job.events.wait("checkpoint_saved", timeout=LONG)["step"]
        job.events.wait("batch_changed", lambda event: event["step"] > saved, LONG)
        stage.kill_everything(job)
    other = json.dumps({3: 50, **dict.fromkeys(range(40, 3000), 33)} if again else {100_000: 33})
    with stage.run(1, MICRO, SIZES=other) as job:
        resumed = stage.wait_steps(job, 40)
        stage.finish(job)
    entries = assert_replays(tmp_path, job.events.all())
    assert resumed > saved and (entries[-1][1] == 33 if again else entries[-1][0] == saved)
    assert any(
        event.get("reason") == f"the job restarted from step {saved}" for event in job.events.of("batch_changed")
    )


@pytest.mark.thorough
def test_a_launcher_that_takes_over_records_each_change_once(tmp_path: Path) -> None:
    script = SCRIPT, options(tmp_path)
    work_dir = tmp_path / "job"
    with launched("--nodes", "2:2", "--", *script, cwd=tmp_path, work_dir=work_dir) as first:
        formed(first, 2, 0)
        first.events.wait("batch_changed", lambda event: event["step"] > 10, LONG)
        first.process.kill()
        first.process.wait()
        with launched("--nodes", "2:2", "--", *script, cwd=tmp_path, work_dir=work_dir) as job:
            adopted = job.events.wait("coordinator_adopted", timeout=LONG)
            job.events.wait("batch_changed", lambda event: event["step"] > adopted["step"] + 10, LONG)
            (tmp_path / "stop").touch()
            assert job.wait(LONG) == 0, job.stderr
    entries = assert_replays(tmp_path, job.events.all())
    assert [event["step"] for event in job.events.of("batch_changed")] == [step for step, _ in entries[1:]]


@pytest.mark.quick
def test_a_batch_adapts_under_plain_python_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, options(tmp_path, epochs=6, pace=0.0, rule="sqrt")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = counted(read_ledgers(tmp_path))
    changes, size = [(0, BATCH)], BATCH
    for step in range(len(steps) - 1):
        if SIZES.get(step, size) != size:
            size = SIZES[step]
            changes.append((step + 1, size))
    assert assert_each_sample_once(read_ledgers(tmp_path), SAMPLES, tuple(changes), MICRO) == len(steps)
    assert torch.load(tmp_path / "model.pt", weights_only=True)["step"] == len(steps)
    assert_same_model(tmp_path, train_plain(SAMPLES, tuple(changes), len(steps)))


def test_a_batch_that_adapts_by_goodput_replays_through_a_resize(tmp_path: Path) -> None:
    """Decided by what the job measures: steps cost about the same whatever their batch, and gradients are noisy."""
    hints = tmp_path / "hints.json"
    allow(hints, 2)
    settings = options(tmp_path, sizes={}, pace=0.02, batch=8)
    with launched("--nodes", "1:2", "--hints", hints, "--", SCRIPT, settings, cwd=tmp_path) as job:
        formed(job, 2, 0)
        changed = job.events.wait("batch_changed", lambda event: event["old"] != event["new"], LONG)
        allow(hints, 1)
        last = formed(job, 1, 1)
        job.events.wait("progress", lambda event: event["step"] > last["first_step"] + 5, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert changed["old"] == 8 and changed.get("noise_scale", math.inf) > 0 and "goodput" in changed["reason"]
    assert_replays(tmp_path, job.events.all(), first=8)
