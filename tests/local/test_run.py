"""Whole launches, ended well, badly, by signals: the exit code, one message, and nothing left of them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from elastic_launcher.host import processes
from tests.support.launches import PATIENCE, EventFollower, assert_no_process, until
from tests.support.leftovers import SCRIPT, Stage, script_lines


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_launch_that_ends_well(stage: Stage) -> None:
    with stage.launched("--nodes", "2:2") as launcher:
        launcher.events.wait("progress")
        (stage.here / "stop").touch()
        assert launcher.wait() == 0
        stage.assert_nothing_left()
        lines = launcher.stderr.splitlines()
        assert lines[0] == f"elastic-launcher: work directory {launcher.work_dir}"
        assert sum("OMP_NUM_THREADS=" in line for line in lines) == 1
        assert lines[-2] == f"elastic-launcher: timeline: {launcher.work_dir}/report.html"
        assert script_lines(launcher.stdout) == ["[rank 0] ready", "[rank 0] over 0"]
        assert (launcher.work_dir / "report.html").stat().st_size > 0
        assert launcher.events.of("job_finished")[0]["exit_code"] == 0
        assert json.loads((launcher.work_dir / "metrics.json").read_text())["logged"] == {"rank": 0}
        logs = launcher.events.of("log")
        assert len({event["step"] for event in logs}) == sum(event["rank"] == 0 for event in logs)


def test_a_launch_whose_script_fails_on_one_rank(stage: Stage) -> None:
    with stage.launched("--nodes", "2:2", script=["--fault=exception", "--rank=1", "--step=20"]) as launcher:
        assert launcher.wait() == 1
        stage.assert_nothing_left()
        last = launcher.stderr.splitlines()[-1]
        assert "rank 1" in last
        assert "ArithmeticError: the third wheel came off" in last
        assert "[rank 1] ArithmeticError: the third wheel came off" in launcher.stdout
        assert "[rank 1] Traceback (most recent call last):" in launcher.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)])
def test_a_launch_that_is_told_to_stop(stage: Stage, number: int, code: int) -> None:
    with stage.launched("--nodes", "2:2") as launcher:
        launcher.events.wait("progress")
        launcher.process.send_signal(number)
        assert launcher.wait() == code
        stage.assert_nothing_left()
        assert launcher.stderr.splitlines()[-1].endswith(", the same command resumes from there")
        assert "is saved in" not in launcher.stdout
        assert "the job ends: " in (launcher.work_dir / "logs" / "1-0.log").read_text()
        assert launcher.events.all()[-1]["exit_code"] == code


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_launch_that_is_told_to_stop_before_its_nodes_are_up(stage: Stage, number: int) -> None:
    with stage.launched("--nodes", "2:2") as launcher:
        launcher.events.wait("node_started")
        launcher.process.send_signal(number)
        assert launcher.wait() in (130, 75)
        stage.assert_nothing_left()


@pytest.mark.parametrize("moment", [pytest.param("node_started", marks=pytest.mark.thorough), "progress"])
def test_a_second_interrupt_kills_at_once(stage: Stage, moment: str) -> None:
    with stage.launched("--nodes", "2:2") as launcher:
        launcher.events.wait(moment)

        def ended_by_another() -> bool:
            launcher.process.send_signal(signal.SIGINT)
            return launcher.process.poll() is not None

        until(ended_by_another, "the launcher ends")
        assert launcher.wait() == 130
        stage.assert_nothing_left()
        assert "no report was written" in launcher.stderr.splitlines()[-2]
        assert launcher.stderr.splitlines()[-1].endswith(
            ("; nothing was saved", ", the same command resumes from there")
        )
        assert [event["exit_code"] for event in launcher.events.of("job_finished")] == [130]


def test_a_terminal_that_is_closed_ends_the_job(stage: Stage) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "elastic_launcher", "run", "--nodes", "2:2", "--work-dir", str(stage.work_dir)]
    process = subprocess.Popen(
        [*command, "--", str(SCRIPT)],
        cwd=stage.here,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        events = EventFollower(stage.work_dir / "events.jsonl")
        while not events.of("progress"):
            os.read(ours, 4096)  # live lines would fill the terminal
        os.close(ours)
        assert process.wait(PATIENCE) == 75
        assert_no_process(stage.work_dir)
        assert "stopped by SIGHUP" in events.of("job_finished")[0]["message"]
        assert (stage.work_dir / "report.html").exists()
    finally:
        process.kill()
        process.wait()
        processes.kill_until_none(str(stage.work_dir))


def test_a_reader_of_the_output_that_stands_still_holds_up_neither_the_training_nor_its_end(stage: Stage) -> None:
    command = [sys.executable, "-m", "elastic_launcher", "run", "--nodes", "2:2", "--work-dir", str(stage.work_dir)]
    command += ["--", str(SCRIPT), "--lines=20"]
    process = subprocess.Popen(command, cwd=stage.here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    try:
        events = EventFollower(stage.work_dir / "events.jsonl")
        first = events.wait("progress")
        written = (stage.work_dir / "logs" / "1-0.log").stat().st_size
        until(lambda: (stage.work_dir / "logs" / "1-0.log").stat().st_size > written + 200_000, "the pipe is full")
        events.wait("progress", lambda event: event["time"] > first["time"] + 6.0)
        assert not events.of("node_lost")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert_no_process(stage.work_dir)
        assert b"[rank 0] ready" in process.stdout.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        processes.kill_until_none(str(stage.work_dir))


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["job_started", "node_started", "progress"])
def test_a_launcher_that_is_killed_leaves_nothing_after_the_orphan_timeout(stage: Stage, moment: str) -> None:
    with stage.launched("--nodes", "2:2", "--orphan-timeout", "8") as launcher:
        launcher.events.wait(moment)
        launcher.process.kill()
        launcher.process.wait()
        stage.assert_nothing_left(PATIENCE)  # an agent that only starts counts from its first try on


def test_a_launch_with_two_ranks_on_each_node(stage: Stage) -> None:
    with stage.launched("--nodes", "1:2", "--nproc-per-node", "2") as launcher:
        formed = launcher.events.wait("generation_formed", lambda event: event["world_size"] == 4)
        nodes = {member["member"]: member["node"] for member in formed["members"]}
        assert nodes == {1: 1, 2: 1, 3: 2, 4: 2}
        os.kill(launcher.node_pid(2), signal.SIGTERM)
        launcher.events.wait("generation_formed", lambda event: event["cause"] == "notice" and event["world_size"] == 2)
        (stage.here / "stop").touch()
        assert launcher.wait() == 0
        stage.assert_nothing_left()


@pytest.mark.parametrize("agent", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_rank_or_an_agent_that_is_killed_is_replaced(stage: Stage, agent: bool) -> None:
    with stage.launched("--nodes", "2:2") as launcher:
        launcher.events.wait("progress")
        status = launcher.status()
        pids = {member["member"]: member["pid"] for node in status["nodes"] for member in node["members"]}
        os.kill(launcher.node_pid(2) if agent else pids[2], signal.SIGKILL)
        launcher.events.wait("generation_formed", lambda event: event["joined"] == [3])
        (stage.here / "stop").touch()
        assert launcher.wait() == 0
        stage.assert_nothing_left()
        assert "member 2 (rank 1, node 2) was killed by SIGKILL" in launcher.events.of("node_lost")[0]["message"]


@pytest.mark.thorough
def test_a_rank_that_is_killed_and_was_the_last_is_named_and_the_job_restarts(stage: Stage) -> None:
    with stage.launched("--nodes", "1:1") as launcher:
        launcher.events.wait("progress")
        os.kill(launcher.status()["nodes"][0]["members"][0]["pid"], signal.SIGKILL)
        formed = launcher.events.wait("generation_formed", lambda event: event["generation"] == 2)
        assert [member["member"] for member in formed["members"]] == [2]
        (stage.here / "stop").touch()
        assert launcher.wait() == 0
        stage.assert_nothing_left()
        said = launcher.events.of("warning")[-1]["message"]
        assert "member 1 (rank 0, node 1) was killed by SIGKILL" in said
        assert "all nodes restart from the beginning: nothing was saved" in said


@pytest.mark.quick
def test_hints_and_a_notice_change_the_number_of_nodes(stage: Stage) -> None:
    hints = stage.here / "hints.json"
    hints.write_text('{"default": "1"}')
    with stage.launched("--nodes", "1:3", "--hints", "hints.json") as launcher:
        launcher.events.wait("generation_formed", lambda event: event["world_size"] == 1)
        hints.write_text('{"default": "3"}')
        launcher.events.wait("generation_formed", lambda event: event["world_size"] == 3)
        os.kill(launcher.node_pid(1), signal.SIGTERM)
        formed = launcher.events.wait("generation_formed", lambda event: event["cause"] == "notice")
        assert {member["member"] for member in formed["members"]} == {2, 3}  # in the order in which they were ready
        until(lambda: not (launcher.work_dir / "tmp" / "1").exists(), "node 1 is gone")
        (stage.here / "stop").touch()
        assert launcher.wait() == 0
        stage.assert_nothing_left()
        assert script_lines(launcher.stdout) == ["[rank 0] ready", "[rank 0] over 0"]
