"""Steps by call, as an adapter for a framework makes them, train as one plain process does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, allow, formed
from tests.support.scripts.push_train import BATCH, SAMPLES, SEED, Metrics, X, Y, build, fade
from tests.support.step_indices import step_indices

SCRIPT = SCRIPTS / "push_train.py"
STEPS = -(-SAMPLES // BATCH)


def train_plain(steps: int, foreign: bool, decay: bool) -> tuple[nn.Module, torch.optim.Optimizer, Metrics]:
    """Returns model, optimizer and metrics after so many steps of plain torch."""
    model, optimizer = build(foreign)
    metrics = Metrics()
    for step in range(steps):
        taken = step_indices(SAMPLES, BATCH, SEED, step // STEPS, step % STEPS, True, False)
        if step % STEPS == 0:
            metrics.reset()
        metrics.update(X[taken])
        optimizer.zero_grad()
        functional.mse_loss(model(X[taken]), Y[taken]).backward()
        optimizer.step()
        if decay:
            fade(model, metrics)
    return model, optimizer, metrics


def kill_rank_0(job: Launcher, generation: dict[str, Any]) -> None:
    pids = {member["member"]: member["pid"] for node in job.status()["nodes"] for member in node["members"]}
    os.kill(pids[generation["members"][0]["member"]], signal.SIGKILL)
    job.events.wait("node_lost", timeout=LONG)


def assert_same(folder: Path, job: Launcher, foreign: bool = False, decay: bool = False) -> None:
    (folder / "stop").touch()
    assert job.wait(LONG) == 0, job.stderr
    end = torch.load(folder / "end.pt", weights_only=True)
    assert end["steps"] == job.events.of("job_finished")[-1]["steps"]
    model, _, metrics = train_plain(end["steps"], foreign, decay)
    for mine, plain in ((end["model"], model.state_dict()), (end["metrics"], metrics.values())):
        for name, values in plain.items():
            assert mine[name].numpy() == pytest.approx(values.numpy(), rel=1e-9), name
    assert_no_process(job.work_dir)


def script(folder: Path, **options: Any) -> tuple[str, ...]:
    return "--", str(SCRIPT), json.dumps({"folder": str(folder), **options})


@pytest.mark.parametrize("foreign", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_plain_model_through_a_resize_and_a_killed_rank_0(tmp_path: Path, foreign: bool) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    with launched("--nodes", "1:3", "--hints", hints, *script(tmp_path, foreign=foreign), cwd=tmp_path) as job:
        formed(job, 1, 0)
        allow(hints, 3)
        last = formed(job, 3, 1)
        kill_rank_0(job, last)
        formed(job, 2, last["generation"])
        assert_same(tmp_path, job, foreign)


@pytest.mark.parametrize("foreign", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_rank_that_lost_a_reduction_takes_all_that_came_of_it(tmp_path: Path, foreign: bool) -> None:
    faults = {"ELASTIC_FAULT": "break=reduced@20:2"}
    with launched("--nodes", "3:3", *script(tmp_path, foreign=foreign), cwd=tmp_path, environment=faults) as job:
        formed(job, 3, 1)
        assert_same(tmp_path, job, foreign)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("break=reduced@24:2", id="in an epoch's last step"),
        pytest.param("break=reduced@22:1", marks=pytest.mark.thorough, id="the oldest in mid-epoch"),
    ],
)
def test_what_the_script_does_after_a_step_is_done_once_where_a_rank_lost_its_reduction(
    tmp_path: Path, fault: str
) -> None:
    """The others have done it already: they go on to the next epoch with their sums reset, or have halved them."""
    options = {"cwd": tmp_path, "environment": {"ELASTIC_FAULT": fault}}
    with launched("--nodes", "3:3", *script(tmp_path, decay=True), **options) as job:
        formed(job, 3, 1)
        assert_same(tmp_path, job, decay=True)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("break=begin@22:1", id="in mid-epoch"),
        pytest.param("break=begin@25:3", marks=pytest.mark.thorough, id="after the reset at an epoch's beginning"),
    ],
)
def test_a_rank_that_learns_of_a_loss_between_two_steps_keeps_what_it_has_done(tmp_path: Path, fault: str) -> None:
    with launched("--nodes", "3:3", *script(tmp_path), cwd=tmp_path, environment={"ELASTIC_FAULT": fault}) as job:
        formed(job, 3, 1)
        assert_same(tmp_path, job)


@pytest.mark.parametrize(
    "fault",
    ["summed@20:1", *(pytest.param(f, marks=pytest.mark.thorough) for f in ("sums@20:3", "break=summed@20:2"))],
)
def test_rows_are_gathered_in_order_through_losses(tmp_path: Path, fault: str) -> None:
    command = ("--nodes", "3:3", *script(tmp_path, gather=True))
    with launched(*command, cwd=tmp_path, environment={"ELASTIC_FAULT": fault}) as job:
        job.events.wait("progress", lambda event: event["generation"] > 1 and event["step"] > 25, LONG)
        assert_same(tmp_path, job)


@pytest.mark.thorough
def test_a_start_that_the_script_names_holds_for_joiners_after_a_loss_and_in_the_checkpoint(tmp_path: Path) -> None:
    start = (2, 3)
    model, optimizer, _ = train_plain(start[0] * STEPS + start[1], False, False)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "start.pt")
    hints, command = tmp_path / "hints.json", script(tmp_path, start=start)
    allow(hints, 2)
    with launched("--nodes", "2:3", "--hints", hints, *command, cwd=tmp_path) as job:
        first = formed(job, 2, 0)
        assert first["first_step"] == start[0] * STEPS + start[1]
        allow(hints, 3)
        kill_rank_0(job, formed(job, 3, 1))
        job.events.wait("progress", lambda event: event["generation"] > 2, LONG)
        subprocess.run([sys.executable, "-m", "elastic_launcher", "stop", str(job.work_dir)], check=True, timeout=LONG)
        assert job.wait() == 75
        saved = job.events.of("checkpoint_saved")[-1]["step"]
    with launched("--nodes", "1:1", *command, cwd=tmp_path) as job:
        job.events.wait("progress", lambda event: event["step"] > saved, LONG)
        assert_same(tmp_path, job)
        said = "job.start_at(2, 3) is ignored: this job resumes from its own checkpoint"
        assert any(said in log.read_text() for log in job.work_dir.rglob("*.log"))
