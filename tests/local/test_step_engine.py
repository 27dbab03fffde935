"""The step engine, driven by explicit calls and without a loader, trains as one plain process does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from elastic_launcher.batch_schedule import DataPass
from tests.support.launches import assert_no_process, launched
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, allow, formed
from tests.support.scripts.engine_train import SAMPLES, SCHEDULE, X, Y, model_and_optimizer

SCRIPT = SCRIPTS / "engine_train.py"


def train_plain(steps: int) -> dict[str, torch.Tensor]:
    """Returns the weights after so many steps of plain torch."""
    model, optimizer = model_and_optimizer()
    whole = DataPass(SCHEDULE, SAMPLES)
    for step in range(steps):
        if step == whole.first_step + whole.steps:
            whole = whole.following()
        samples = whole.samples(step - whole.first_step)
        taken = slice(samples.start, samples.start + samples.count)
        optimizer.zero_grad()
        functional.mse_loss(model(X[taken]), Y[taken]).backward()
        optimizer.step()
    return model.state_dict()


def test_explicit_calls_train_the_plain_model_through_resizes_a_lost_node_and_a_larger_batch(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    with launched("--nodes", "1:3", "--hints", hints, "--", SCRIPT, tmp_path, cwd=tmp_path) as job:
        formed(job, 1, 0)
        allow(hints, 3)
        last = formed(job, 3, 1)
        job.events.wait("progress", lambda event: event["step"] > SCHEDULE.entries[-1][0], LONG)
        allow(hints, 2)
        os.kill(job.node_pid(last["members"][1]["node"]), signal.SIGKILL)
        last = formed(job, 2, last["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert job.events.of("node_lost")
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    assert end["steps"] == job.events.of("job_finished")[-1]["steps"] > last["first_step"] > SCHEDULE.entries[-1][0]
    for name, plain in train_plain(end["steps"]).items():
        assert end["model"][name].numpy() == pytest.approx(plain.numpy(), rel=1e-10), name
    assert_no_process(job.work_dir)
