"""Nodes that are told to go leave at the next boundary, or within the step where that is too far: nothing is lost, and
nobody is blamed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.launches import Launcher, assert_no_process, launched, until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_sums, assert_same_training, options
from tests.support.resizes import LONG, formed

SLOW: dict[str, Any] = {"micro": 2, "slow_members": [1, 2, 3, 4], "slow": 0.6}
"""Steps of more than a second, in several micro-batches: too long for the grace period of `SHORT`."""
SHORT = ("--grace-period", "3")
BUSY = 4
"""Steps after which the usual step time is known."""


def notice(job: Launcher, *nodes: int) -> None:
    for node in nodes:
        os.kill(job.node_pid(node), signal.SIGTERM)


def last_begun(folder: Path) -> int:
    """Returns the last step that a rank works on, or has done."""
    lines = [line for path in folder.glob("ledger-*.jsonl") for line in path.read_text().split("\n")[:-1]]
    return max((row["step"] for row in map(json.loads, lines) if row["rank"] is not None), default=-1)


def begun(folder: Path, step: int) -> None:
    """Waits until a rank works on a step, of which it knows by then how long it takes."""
    until(lambda: last_begun(folder) >= step, f"step {step} is begun", LONG)


def finish(folder: Path, job: Launcher) -> None:
    (folder / "fast").touch()
    (folder / "stop").touch()
    assert job.wait(LONG) == 0, job.stderr
    assert_same_training(folder, job)


def assert_left_by_notice(job: Launcher, *nodes: int) -> None:
    """Fails unless these nodes left, and none was lost or replaced."""
    assert {event["node"]: event["cause"] for event in job.events.of("node_left")} == dict.fromkeys(nodes, "notice")
    assert {event["node"] for event in job.events.of("notice")} == set(nodes)
    assert job.events.of("node_lost") == []
    assert {event["cause"] for event in job.events.of("generation_formed")} == {"start", "notice"}, "a failure"


@pytest.mark.parametrize("node", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_a_node_whose_boundary_is_too_far_leaves_within_the_step(tmp_path: Path, node: int) -> None:
    with launched("--nodes", "1:3", *SHORT, "--", SCRIPT, options(tmp_path, **SLOW), cwd=tmp_path) as job:
        first = formed(job, 3, 0)
        begun(tmp_path, BUSY)
        notice(job, node)
        event = formed(job, 2, first["generation"])
        finish(tmp_path, job)
    assert_left_by_notice(job, node)
    assert event["left"] == [node]
    assert [redone["step"] for redone in job.events.of("step_redone")] == [event["first_step"]]


@pytest.mark.thorough
@pytest.mark.parametrize("slow", [False, True], ids=["at the boundary", "within the step"])
def test_nodes_that_are_told_together_leave_in_one_generation(tmp_path: Path, slow: bool) -> None:
    script = options(tmp_path, **SLOW if slow else {})
    with launched("--nodes", "1:4", *SHORT[: 2 * slow], "--", SCRIPT, script, cwd=tmp_path) as job:
        first = formed(job, 4, 0)
        begun(tmp_path, BUSY)
        notice(job, 1, 3)
        event = formed(job, 2, first["generation"])
        finish(tmp_path, job)
    assert_left_by_notice(job, 1, 3)
    assert sorted(event["left"]) == [1, 3]
    assert event["generation"] == first["generation"] + 1
    assert bool(job.events.of("step_redone")) == slow


@pytest.mark.thorough
@pytest.mark.parametrize("slow", [False, True], ids=["at the boundary", "within the step"])
def test_a_second_notice_while_the_first_is_handled(tmp_path: Path, slow: bool) -> None:
    """Another node is told, and the same one again, as soon as the first notice is known."""
    script = options(tmp_path, **SLOW if slow else {})
    with launched("--nodes", "1:4", *SHORT[: 2 * slow], "--", SCRIPT, script, cwd=tmp_path) as job:
        first = formed(job, 4, 0)
        begun(tmp_path, BUSY)
        notice(job, 4)
        job.events.wait("notice", timeout=LONG)
        until(lambda: job.status()["formation"] or job.events.of("node_left"), "the first notice is handled", LONG)
        notice(job, 1)
        until(lambda: job.events.of("node_left"), "the first one leaves", LONG)
        formed(job, 2, first["generation"])
        finish(tmp_path, job)
    assert_left_by_notice(job, 1, 4)


@pytest.mark.parametrize(
    "known", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["killed with it", "killed once it is known"]
)
def test_a_notice_and_a_kill_together(tmp_path: Path, known: bool) -> None:
    with launched("--nodes", "1:3", "--", SCRIPT, options(tmp_path), cwd=tmp_path) as job:
        first = formed(job, 3, 0)
        pid = next(node["members"][0]["pid"] for node in job.status()["nodes"] if node["node"] == 2)
        notice(job, 2)
        if known:
            job.events.wait("notice", timeout=LONG)
        os.kill(pid, signal.SIGKILL)
        event = formed(job, 2, first["generation"])
        finish(tmp_path, job)
    assert event["left"] == [2]
    if known:  # it was as good as gone: nobody failed, and nobody is started in its place
        assert event["cause"] == "notice"
        assert len(job.events.of("node_started")) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("slow", [False, True], ids=["at the boundary", "within the step"])
def test_nodes_that_a_hint_takes_back_by_a_time_leave_by_then(tmp_path: Path, slow: bool) -> None:
    hints = tmp_path / "hints.json"

    def say(**more: Any) -> None:
        defaults = {"gpus": {"allowed": 3}, "growAfterSeconds": 600, **more}
        (tmp_path / "draft").write_text(json.dumps({"apiVersion": "elastic-hints/v1", "defaults": defaults}))
        (tmp_path / "draft").replace(hints)

    say()
    script = options(tmp_path, **SLOW if slow else {})
    with launched("--nodes", "1:3", "--hints", str(hints), "--", SCRIPT, script, cwd=tmp_path) as job:
        first = formed(job, 3, 0)
        say(reclaim={"to": 1, "by": "in 3 s"})
        job.events.wait("hint_rejected", lambda event: '"by" is "in 3 s"' in event["message"], LONG)
        begun(tmp_path, max(BUSY, last_begun(tmp_path) + 1))
        say(reclaim={"to": 1, "by": datetime.fromtimestamp(time.time() + 3, UTC).isoformat()})
        event = formed(job, 1, first["generation"])
        finish(tmp_path, job)
    assert (sorted(event["left"]), event["cause"]) == ([2, 3], "hint")
    assert [redone["step"] for redone in job.events.of("step_redone")] == [event["first_step"]] * slow
    assert {left["cause"] for left in job.events.of("node_left")} == {"hint"}
    assert job.events.of("node_lost") == []


def test_a_notice_in_an_evaluation_that_is_longer_than_the_grace_period(tmp_path: Path) -> None:
    script = options(tmp_path, evaluate=7, slow_evaluation=0.8)
    with launched("--nodes", "1:3", *SHORT, "--", SCRIPT, script, cwd=tmp_path) as job:
        first = formed(job, 3, 0)
        (tmp_path / "evaluates").unlink(missing_ok=True)
        until((tmp_path / "evaluates").exists, "it evaluates", LONG)
        notice(job, 1)
        formed(job, 2, first["generation"])
        finish(tmp_path, job)
    assert_left_by_notice(job, 1)
    assert_same_sums(tmp_path)


@pytest.mark.parametrize(
    "slow", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["at the boundary", "within the step"]
)
def test_a_job_of_which_no_node_stays_is_saved_and_goes_on_later(tmp_path: Path, slow: bool) -> None:
    script = options(tmp_path, **SLOW if slow else {})
    saving = (*SHORT[: 2 * slow], "--checkpoint-every", "1h", "--node-timeout", "0")
    arguments = ("--nodes", "1:2", *saving, "--", SCRIPT, script)
    with launched(*arguments, cwd=tmp_path) as job:
        formed(job, 2, 0)
        begun(tmp_path, BUSY)
        notice(job, 1, 2)
        assert job.wait(LONG) == 75, job.stderr
        assert_no_process(job.work_dir)
        saved = job.events.of("checkpoint_saved")[-1]["step"]
    assert saved >= BUSY
    assert saved == job.events.of("job_finished")[-1]["steps"]
    assert {event["node"] for event in job.events.of("notice")} == {1, 2}
    with launched(*arguments, cwd=tmp_path) as again:
        formed(again, 2, 0)
        (tmp_path / "fast").touch()
        (tmp_path / "stop").touch()
        assert again.wait(LONG) == 0, again.stderr
