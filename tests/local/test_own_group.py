"""A script that has a process group of its own loses a peer in it: which is no mistake of the script."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.ledgers import SCRIPT, assert_same_model, train_plain
from tests.support.losses import BATCH, SAMPLES, options
from tests.support.resizes import LONG

EPOCHS = 4
FLAGS = ("--nodes", "3:3", "--checkpoint-every", "3 steps", "--heartbeat-timeout", "3", "--progress-timeout", "4")


def play(folder: Path, what: str, code: int) -> Launcher:
    script = options(folder, epochs=EPOCHS, pace=0.01, lose=what)
    with launched(*FLAGS, "--", SCRIPT.with_name("own_group.py"), script, cwd=folder) as job:
        assert job.wait(LONG) == code, job.stderr
        assert_no_process(job.work_dir)
    return job


def warned(job: Launcher) -> str:
    return "\n".join(event["message"] for event in job.events.of("warning"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("kill", "that came with the loss of member 3", marks=pytest.mark.thorough),
        pytest.param("freeze", "that came with the loss of member 3", marks=pytest.mark.thorough),
        ("hang", "member 3 (rank 2, node 3) is lost, and member 1 (rank 0, node 1) has waited"),
    ],
)
def test_the_loss_of_a_peer_in_a_group_of_the_scripts_own_restarts_the_job(
    tmp_path: Path, what: str, said: str
) -> None:
    job = play(tmp_path, what, 0)
    assert said in warned(job) and "all nodes restart from step" in warned(job), warned(job)
    assert [event["cause"] for event in job.events.of("generation_formed")] == ["start", "failure"]
    steps = torch.load(tmp_path / "model.pt")["step"]
    assert steps == EPOCHS * math.ceil(SAMPLES / BATCH)
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))


@pytest.mark.thorough
def test_a_launcher_that_came_back_ends_the_nodes_that_it_took_over_before_the_job_restarts(tmp_path: Path) -> None:
    script = options(tmp_path, epochs=EPOCHS, pace=0.01, lose="kill")
    command = (*FLAGS, "--", SCRIPT.with_name("own_group.py"), script)
    killed = {"ELASTIC_FAULT": "launcher=reduction@4:1"}
    with launched(*command, cwd=tmp_path, environment=killed) as first:
        first.process.wait(LONG)
        with launched(*command, cwd=tmp_path) as job:
            assert job.wait(LONG) == 0, job.stderr
            assert_no_process(job.work_dir)
    assert len(job.events.of("coordinator_adopted")) == 1 and "all nodes restart from step" in warned(job)
    left = {event["node"] for event in job.events.of("node_left")}
    assert left >= {1, 2}, "nodes of before were not told to go"
    steps = torch.load(tmp_path / "model.pt")["step"]
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))


@pytest.mark.thorough
def test_an_exception_that_says_nothing_of_a_peer_ends_the_job_also_beside_a_loss(tmp_path: Path) -> None:
    job = play(tmp_path, "mistake", 1)
    assert job.events.of("node_lost")[0]["node"] == 3
    assert "ValueError: a mistake in the script" in job.events.of("job_finished")[0]["message"]
