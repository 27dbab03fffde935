"""Ranks and agents that fall silent where nobody waits for them: each is lost after a while, and replaced."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from elastic_launcher.host import processes
from tests.support.launches import Launcher, assert_no_process, launched, until
from tests.support.ledgers import SCRIPT, assert_same_model, train_plain
from tests.support.losses import BATCH, SAMPLES, assert_same_training, options
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, formed

STOCK = SCRIPTS / "stock.py"


def stop_rank(job: Launcher, member: int) -> None:
    """Has a rank stand still for good."""
    pids = {one["member"]: one["pid"] for node in job.status()["nodes"] for one in node["members"]}
    os.kill(pids[member], signal.SIGSTOP)


def test_the_only_rank_freezes(tmp_path: Path) -> None:
    """It held the only state: the job restarts from the last checkpoint."""
    flags = ("--nodes", "1:1", "--checkpoint-every", "5 steps", "--silence-timeout", "5")
    with launched(*flags, "--", SCRIPT, options(tmp_path), cwd=tmp_path) as job:
        job.events.wait("checkpoint_saved", timeout=LONG)
        stop_rank(job, 1)
        again = formed(job, 1, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    (lost,) = job.events.of("node_lost")
    assert "gave no sign of life for 5 s (--silence-timeout)" in lost["message"]
    assert again["cause"] == "failure" and again["first_step"] > 0
    steps = torch.load(tmp_path / "model.pt")["step"]
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))


@pytest.mark.thorough
def test_a_rank_freezes_in_the_code_after_the_loop(tmp_path: Path) -> None:
    flags = ("--nodes", "2:2", "--checkpoint-every", "5 steps", "--silence-timeout", "5")
    with launched(*flags, "--", SCRIPT, options(tmp_path, epochs=4, linger=[2]), cwd=tmp_path) as job:
        until((job.work_dir / "nodes" / "1-0.exit").exists, "node 1 has ended", LONG)
        stop_rank(job, 2)
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    said = [event["message"] for event in job.events.of("warning")]
    assert any("what it had to do there may be missing; all nodes restart" in message for message in said), said


def test_a_rank_that_computes_with_the_interpreter_locked_is_not_lost(tmp_path: Path) -> None:
    """Neither by the time that this takes, nor after it."""
    flags = ("--nodes", "1:1", "--silence-timeout", "7")
    script = options(tmp_path, fault="locked", fault_rank=0, fault_step=20)
    with launched(*flags, "--", SCRIPT, script, cwd=tmp_path) as job:
        job.events.wait("progress", lambda event: event["step"] > 25, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert float((tmp_path / "locked").read_text()) > 7, "it was heard of all the time"
    assert not job.events.of("node_lost")
    assert_same_training(tmp_path, job)


@pytest.mark.parametrize("resize", ["in-process", pytest.param("respawn", marks=pytest.mark.thorough)])
def test_an_agent_freezes_before_its_ranks_have_come_or_where_they_say_nothing(tmp_path: Path, resize: str) -> None:
    stock = json.dumps({"folder": str(tmp_path), "pace": 0.01})
    flags = ("--resize", resize, "--nodes", "2:2", "--silence-timeout", "10")
    script = (STOCK, stock) if resize == "respawn" else (SCRIPT, options(tmp_path, slow_start=6.0))
    with launched(*flags, "--", *script, cwd=tmp_path) as job:
        if resize == "respawn":
            job.events.wait("generation_formed", timeout=LONG)
            os.kill(job.node_pid(2), signal.SIGSTOP)
        else:
            until((job.work_dir / "logs" / "2-0.log").exists, "its script begins", LONG)
            for process in processes.find(str(job.work_dir), 2):
                process.suspend()
        kind = "node_lost" if resize == "respawn" else "node_failed"
        job.events.wait(kind, lambda event: event["node"] == 2 and "--silence-timeout" in event["message"], LONG)
        job.events.wait("generation_formed", lambda event: 3 in event["joined"] and event["nodes"] == 2, LONG)
        assert [event["node"] for event in job.events.of(kind)] == [2]
