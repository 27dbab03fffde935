"""Nodes that are all told to go are replaced within the launch: nothing that was saved is trained again, and the model
is the one of an undisturbed training.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.launches import Launcher, launched, until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import LONG, formed

EVERY = ("--checkpoint-every", "1h")
"""So that what is saved is saved since nodes are told to go."""


def notice(job: Launcher, *nodes: int) -> None:
    for node in nodes:
        os.kill(job.node_pid(node), signal.SIGTERM)


def gone_on(job: Launcher, size: int, generation: int) -> int:
    """Waits until others train; returns the step from which they went on."""
    event = formed(job, size, generation)
    assert event["cause"] == "notice"
    return int(event["first_step"])


def finish(folder: Path, job: Launcher) -> None:
    (folder / "stop").touch()
    assert job.wait(LONG) == 0, job.stderr
    assert_same_training(folder, job)
    assert len(job.events.of("job_started")) == 1, "another launch"
    assert job.events.of("quota_lost") == job.events.of("quota_wait") == job.events.of("quota_back") == []
    assert "quota" not in job.stderr


@pytest.mark.parametrize(
    ("nodes", "told"), [(1, (1,)), *(pytest.param(2, told, marks=pytest.mark.thorough) for told in ((1,), (1, 2)))]
)
def test_the_last_nodes_are_told_to_go_and_others_go_on_from_that_step(
    tmp_path: Path, nodes: int, told: tuple[int, ...]
) -> None:
    with launched("--nodes", f"{nodes}:{nodes}", *EVERY, "--", SCRIPT, options(tmp_path), cwd=tmp_path) as job:
        launcher = job.process.pid
        first = formed(job, nodes, 0)
        job.events.wait("progress", lambda event: event["step"] > 5, LONG)
        notice(job, *told)
        job.events.wait("nodes_wait", timeout=LONG)
        step = gone_on(job, nodes, first["generation"])
        job.events.wait("progress", lambda event: event["step"] > step + 5, LONG)
        finish(tmp_path, job)
        assert job.process.pid == launcher
    saved = [event["step"] for event in job.events.of("checkpoint_saved")]
    assert step == saved[0], "what was saved is trained again"
    assert job.events.of("nodes_wait")[0]["step"] == saved[0]
    assert job.events.of("node_lost") == job.events.of("step_redone") == []
    assert {event["node"] for event in job.events.of("notice")} == set(told)


@pytest.mark.parametrize(
    "node_lives",
    [True, pytest.param(False, marks=pytest.mark.thorough)],
    ids=["the node lives", "the node is gone, too"],
)
def test_a_launcher_that_is_started_again_while_nodes_are_waited_for_waits_on(tmp_path: Path, node_lives: bool) -> None:
    """It is killed while the node that was asked for comes up."""
    arguments = ("--nodes", "1:1", *EVERY, "--", SCRIPT, options(tmp_path, slow_start=5.0))
    with launched(*arguments, cwd=tmp_path) as first:
        formed(first, 1, 0)
        first.events.wait("progress", lambda event: event["step"] > 5, LONG)
        notice(first, 1)
        first.events.wait("nodes_wait", timeout=LONG)
        log = first.work_dir / "logs" / "2-0.log"
        until(log.exists, "the node's script has begun", LONG)
        first.process.kill()
        first.process.wait()
        if not node_lives:
            agent = psutil.Process(first.node_pid(2))
            for process in (*agent.children(recursive=True), agent):
                process.kill()
        with launched(*arguments, cwd=tmp_path) as second:
            wait = second.events.wait("nodes_wait", lambda event: event.get("waited") is not None, LONG)
            step = gone_on(second, 1, 1)
            (tmp_path / "stop").touch()
            assert second.wait(LONG) == 0, second.stderr
            assert_same_training(tmp_path, second)
    saved = second.events.of("checkpoint_saved")[0]["step"]
    assert step == wait["step"] == saved, "what was saved is trained again"
    assert len(second.events.of("coordinator_adopted")) == node_lives
