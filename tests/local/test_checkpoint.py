"""A job that was stopped, or lost with everything it ran on, goes on from its newest good checkpoint, at any size."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from elastic_launcher.checkpoint import find_newest
from tests.support.launches import assert_no_process, subreaper
from tests.support.ledgers import read_ledgers
from tests.support.relaunches import LONG, Stage


@pytest.mark.quick
def test_a_job_that_is_stopped_goes_on_at_other_sizes_and_loses_no_step(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stopped = 0
    for nodes, micro, number, code in ((2, 5, signal.SIGTERM, 75), (3, 2, signal.SIGINT, 130)):
        with stage.run(nodes, micro) as job:
            stage.wait_steps(job, 12)
            job.process.send_signal(number)
            assert job.wait(LONG) == code, job.stderr
            assert_no_process(stage.work_dir)
        saved, finished = stage.events(job)[-2:]
        assert (saved["kind"], finished["kind"]) == ("checkpoint_saved", "job_finished")
        assert saved["step"] == finished["steps"] > stopped
        stopped = saved["step"]
        last = job.stderr.splitlines()[-1]
        assert last.endswith(f"step {stopped} is saved in {saved['path']}, the same command resumes from there")
    with stage.run(1, 7) as job:
        stage.wait_steps(job, 12)
        stage.finish(job)
    assert f"this job resumes from step {stopped}" in job.stderr
    assert stage.assert_like_plain(job.events.all(), 7, stopped_only=True) > stopped
    started = job.events.of("job_started")
    assert [event["term"] for event in started] == [1, 2, 3]
    assert started[2]["resumed_step"] == stopped
    nodes = [event["node"] for event in job.events.of("node_started")]
    generations = [event["generation"] for event in job.events.of("generation_formed")]
    assert nodes == sorted(set(nodes)) and generations == sorted(set(generations))
    with stage.run(1, 7) as job:
        assert job.wait(LONG) == 0
    assert f"the job in {stage.work_dir} is done: done (the test has seen enough)" in job.stderr
    assert len(job.events.of("job_started")) == 3


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with stage.run(2, 5, "--checkpoint-every", "7 steps") as job:
        job.events.wait("checkpoint_saved", lambda e: e["step"] >= 14, LONG)
        stage.kill_everything(job)
    newest = find_newest(stage.work_dir / "checkpoints")
    assert newest.folder is not None and newest.manifest is not None
    shard = next(newest.folder.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-9] ^= 16
    shard.write_bytes(content)
    with stage.run(1, 5, "--checkpoint-every", "7 steps") as job:
        stage.wait_steps(job, 3)
        stage.finish(job)
    assert f"{shard} is damaged: its checksum is wrong; the checkpoint before it is used instead" in job.stderr
    assert job.events.of("job_started")[1]["resumed_step"] == newest.manifest.step - 7
    stage.assert_like_plain(job.events.all(), 5)


@pytest.mark.thorough
def test_what_is_killed_before_its_first_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for nodes in (3, 1):
        with stage.run(nodes, 5, "--checkpoint-every", "1000 steps") as job:
            stage.wait_steps(job, 5)
            stage.kill_everything(job)
    with stage.run(2, 5) as job:
        stage.wait_steps(job, 3)
        stage.finish(job)
    assert all("resumed_step" not in event for event in job.events.of("job_started"))
    stage.assert_like_plain(job.events.all(), 5)


@pytest.mark.thorough
def test_everything_is_killed_again_and_again_and_the_model_is_the_same(tmp_path: Path) -> None:
    stage = Stage(tmp_path, workers=2)
    chance = random.Random(5)
    saved = 0
    for nodes in (2, 1, 3, 2):
        with stage.run(nodes, 5, "--checkpoint-every", "5 steps") as job:
            stage.wait_steps(job, chance.randrange(0, 40))
            stage.kill_everything(job)
        assert stage.events(job)[0].get("resumed_step", 0) >= saved
        known = [event["step"] for event in stage.events(job) if event["kind"] == "checkpoint_saved"]
        saved = max([saved, *known])
    with stage.run(2, 5) as job:
        stage.wait_steps(job, 3)
        stage.finish(job)
    stage.assert_like_plain(job.events.all(), 5)
    assert (
        sorted(path.name for path in (stage.work_dir / "checkpoints").iterdir() if path.name.startswith(".tmp")) == []
    )


def test_where_nothing_can_be_written_the_training_goes_on_says_so_and_tries_again(tmp_path: Path) -> None:
    """A file comes to stand where the folder of checkpoints should; before the start it is refused."""
    stage = Stage(tmp_path)
    checkpoints = stage.work_dir / "checkpoints"
    stage.work_dir.mkdir()
    checkpoints.touch()
    with stage.run(2, 5) as job:
        assert job.wait(LONG) == 2
    assert f"{checkpoints}'" in job.stderr and "it is no folder" in job.stderr
    checkpoints.unlink()
    with stage.run(2, 5, "--checkpoint-every", "0.2s") as job:
        job.events.wait("node_started", timeout=LONG)
        checkpoints.touch()
        warning = job.events.wait("warning", timeout=LONG)
        assert "could not be saved" in warning["message"] and "File exists" in warning["message"]
        checkpoints.unlink()
        job.events.wait("checkpoint_saved", timeout=LONG)
        stage.finish(job)
    stage.assert_like_plain(job.events.all(), 5)


@pytest.mark.thorough
def test_another_data_set_is_refused_and_named_unless_it_is_accepted(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with stage.run(1) as job:
        stage.wait_steps(job, 2)
        (tmp_path / "save").touch()  # what any rank asks for
        job.events.wait("checkpoint_saved", timeout=LONG)
        command = [sys.executable, "-m", "elastic_launcher", "checkpoint", str(stage.work_dir)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # and what a user asks for
        saved = job.events.of("checkpoint_saved")[-1]
        path = saved["path"]
        assert said == f"step {saved['step']} is saved in {path}\n"
        stage.kill_everything(job)
    with stage.run(1, SAMPLES="98") as job:
        assert job.wait(LONG) == 2
        assert_no_process(stage.work_dir)
    assert f"this job can't go on from {path}: the data set is Numbered of 97 samples there" in job.stderr
    assert "Numbered of 98 samples here (--accept-changes dataset goes on all the same, and gives up" in job.stderr
    with stage.run(1, 5, "--accept-changes", "dataset", SAMPLES="98") as job:
        stage.wait_steps(job, 2)
        stage.finish(job)
    assert stage.events(job)[0]["resumed_step"] == saved["step"]


def test_ranks_that_lose_their_launcher_save_before_they_leave(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with subreaper(), stage.run(2, 5, "--orphan-timeout", "20", "--checkpoint-every", "1h") as job:
        stage.wait_steps(job, 5)
        agents = [psutil.Process(job.node_pid(node)) for node in (1, 2)]
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        reached = max(row["step"] for rows in read_ledgers(tmp_path) for row in rows if row["sync"])
        assert [agent.wait(LONG) for agent in agents] == [75, 75]
        assert_no_process(stage.work_dir)
        logs = "".join(path.read_text() for path in (stage.work_dir / "logs").glob("*-0.log"))
    found = find_newest(stage.work_dir / "checkpoints")
    assert found.manifest is not None
    assert found.manifest.step > reached, "what is saved is older than the end of the launcher"
    assert f"step {found.manifest.step} is saved in {found.folder}" in logs
    with stage.run(1) as job:
        stage.wait_steps(job, 2)
        stage.finish(job)
    stage.assert_like_plain(job.events.all(), 5)
