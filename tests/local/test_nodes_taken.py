"""Nodes that are all told to go are replaced within the launch: nothing that was saved is trained again, and the model
is the one of an undisturbed training.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.local.ledgers import SCRIPT
from tests.local.resizes import LONG, formed
from tests.local.sudden import assert_same_training, options
from tests.support import Launcher, launched

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


@pytest.mark.parametrize(("nodes", "told"), [(1, (1,)), (2, (1,)), pytest.param(2, (1, 2), marks=pytest.mark.thorough)])
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
