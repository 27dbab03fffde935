"""A job elsewhere than it began: its folder at another place, its disk read-only, its clock an hour off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.events import read_events
from elastic_launcher.report.lost import balance
from tests.support.launches import Launcher, assert_no_process, until
from tests.support.places import SCRIPTS
from tests.support.relaunches import LONG, Stage

HOUR = 3600


class Clock:
    """A time of day that processes have which are started with its environment."""

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "clock.so", folder / "shift"
        source = SCRIPTS / "clock.c"
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library, source], check=True)
        self._file.write_bytes(struct.pack("q", 0))
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._file)}

    def set(self, shift: int) -> None:
        """Sets it to so many seconds ahead of the true time, at once and for all."""
        with open(self._file, "r+b", buffering=0) as file:
            file.write(struct.pack("q", shift))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return Clock(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, which can be made read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def remount(disk: Path, how: str) -> None:
    """Makes a disk ``ro`` or ``rw``; the kernel refuses the former while something is being written."""
    command = ["mount", "-o", f"remount,{how}", disk]
    until(lambda: subprocess.run(command, capture_output=True).returncode == 0, f"{disk} is {how}")


def later(job: Launcher, kind: str) -> dict[str, Any]:
    """Waits for an event that is not there yet."""
    known = len(job.events.of(kind))
    until(lambda: len(job.events.of(kind)) > known, f"another {kind}", LONG)
    return job.events.of(kind)[known]


@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["stopped and renamed", "killed and copied"]
)
def test_a_work_directory_that_was_moved_is_the_same_job(tmp_path: Path, killed: bool) -> None:
    stage = Stage(tmp_path)
    before, after = stage.work_dir, tmp_path / "another place" / "work"
    after.parent.mkdir()
    with stage.run(2, 5, "--checkpoint-every", "3 steps") as job:
        stage.wait_steps(job, 8)
        if killed:
            stage.kill_everything(job)
            shutil.copytree(before, after, symlinks=True)
            shutil.rmtree(before)
        else:
            job.process.send_signal(signal.SIGTERM)
            assert job.wait(LONG) == 75, job.stderr
            before.rename(after)
    stage.work_dir = after
    with stage.run(1, 7, "--checkpoint-every", "3 steps") as job:
        saved = later(job, "checkpoint_saved")
        stage.finish(job)
    assert saved["step"] > stage.events(job)[0]["resumed_step"] >= 6
    assert Path(saved["path"]).is_relative_to(after)
    assert not before.exists()
    assert stage.assert_like_plain(job.events.all(), 7, stopped_only=not killed) >= saved["step"]


@pytest.mark.thorough
def test_a_disk_that_becomes_read_only_stops_nothing_and_is_tried_again(tmp_path: Path, disk: Path) -> None:
    stage = Stage(tmp_path)
    options = ("--checkpoint-every", "0.3s", "--checkpoint-dir", str(disk))
    remount(disk, "ro")
    with stage.run(2, 5, *options) as refused:
        assert refused.wait(LONG) == 2
    assert f"the checkpoints in {disk} can't be written: Read-only file system" in refused.stderr
    assert refused.events.all() == []
    remount(disk, "rw")
    stage.runs = 0
    with stage.run(2, 5, *options) as job:
        later(job, "checkpoint_saved")
        remount(disk, "ro")
        warning = later(job, "warning")
        assert "could not be saved" in warning["message"] and "Read-only file system" in warning["message"]
        stage.wait_steps(job, 5)
        remount(disk, "rw")
        assert later(job, "checkpoint_saved")["path"].startswith(str(disk))
        stage.finish(job)
    assert job.events.of("node_lost") == []
    stage.assert_like_plain(job.events.all(), 5)


def test_two_work_directories_with_one_folder_of_checkpoints(tmp_path: Path) -> None:
    first, second = Stage(tmp_path), Stage(tmp_path)
    second.work_dir = tmp_path / "second"
    options = ("--checkpoint-every", "0.3s", "--checkpoint-dir", str(tmp_path / "shared"))
    with first.run(1, 5, *options) as job:
        later(job, "checkpoint_saved")
        with second.run(1, 5, *options) as other:
            owner = second.work_dir / "job.json"
            warning = later(job, "warning")
            assert (
                f"job {json.loads(owner.read_text())['id']} owns {tmp_path / 'shared'}, in term 2" in warning["message"]
            )
            for _ in range(2):
                assert Path(later(other, "checkpoint_saved")["path"]).is_dir()
            assert other.events.of("warning") == []
            first.wait_steps(job, 3)
            (tmp_path / "stop").touch()
            assert (job.wait(LONG), other.wait(LONG)) == (0, 0), job.stderr + other.stderr


@pytest.mark.parametrize("jump", [pytest.param(HOUR, marks=pytest.mark.thorough), -HOUR], ids=["ahead", "back"])
def test_a_clock_that_is_set_while_it_trains_and_between_two_launches(tmp_path: Path, clock: Clock, jump: int) -> None:
    stage = Stage(tmp_path)
    checkpoint = [sys.executable, "-m", "elastic_launcher", "checkpoint", str(stage.work_dir)]
    options = ("--nodes", "1:2", "--checkpoint-every", "0.5s")
    with stage.run(2, 5, *options, **clock.environment) as job:
        stage.wait_steps(job, 5)
        for shift in (0, jump):
            clock.set(shift)
            stage.wait_steps(job, 5)
            later(job, "checkpoint_saved")
            subprocess.run(checkpoint, env=os.environ | clock.environment, check=True, timeout=LONG)
        assert job.events.of("node_lost") == [] == job.events.of("warning")
        os.kill(job.status()["nodes"][1]["members"][0]["pid"], signal.SIGKILL)
        later(job, "generation_formed")  # without it
        later(job, "generation_formed")  # with another one
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(LONG) == 75, job.stderr
        assert_no_process(stage.work_dir)
    assert len(job.events.of("node_lost")) == 1
    assert balance(read_events(job.events.path)).total < HOUR / 2
    clock.set(-jump)
    with stage.run(1, 7, *options, **clock.environment) as job:
        later(job, "checkpoint_saved")
        stage.finish(job)
    times = [event["time"] for event in job.events.all()]
    assert times == sorted(times)
    assert stage.assert_like_plain(job.events.all(), 7, stopped_only=True) == job.events.of("job_finished")[-1]["steps"]


@pytest.mark.thorough
@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_launcher_that_comes_back_by_another_clock_takes_the_job_over(
    tmp_path: Path, clock: Clock, jump: int
) -> None:
    stage = Stage(tmp_path)
    with stage.run(2, 5, **clock.environment) as job:
        stage.wait_steps(job, 5)
        ranks = {member["pid"] for node in job.status()["nodes"] for member in node["members"]}
        job.process.kill()
        job.process.wait()
        clock.set(jump)
        with stage.run(2, 5, **clock.environment) as again:
            adopted = again.events.wait("coordinator_adopted", timeout=LONG)
            assert {member["pid"] for member in adopted["members"]} == ranks
            later(again, "progress")
            stage.finish(again)
    assert again.events.of("node_lost") == [] == again.events.of("step_redone")
    assert len(again.events.of("generation_formed")) == 1
    stage.assert_like_plain(again.events.all(), 5)
