"""Checkpoints that can't be used are named before anything starts, and a full disk costs the training nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.checkpoints import JOB, save
from tests.support.launches import until
from tests.support.relaunches import LONG, Stage


def cut_short(folder: Path) -> None:
    (folder / "state.json").write_bytes((folder / "state.json").read_bytes()[:-4])


def flip(folder: Path) -> None:
    content = bytearray((folder / "state.json").read_bytes())
    content[3] ^= 32
    (folder / "state.json").write_bytes(content)


def make_newer(folder: Path) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(document | {"v": 99}))


def leave(folder: Path) -> None:
    """It is of another script already."""


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(cut_short, "state.json is cut short", marks=pytest.mark.thorough),
        (flip, "state.json is damaged: its checksum is wrong"),
        pytest.param(
            make_newer,
            "it is of version 99, and this elastic-launcher reads up to 1: use a newer one",
            marks=pytest.mark.thorough,
        ),
        (leave, "is of another job: the script is other.py there and train.py here"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_starts_nothing(
    tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    stage = Stage(tmp_path)
    job = replace(JOB, script="other.py", arguments=(stage.script,))
    path = save(stage.work_dir / "checkpoints", 10, job=job)
    spoil(path)
    with stage.run(1) as launcher:
        assert launcher.wait(LONG) == 2
    assert f"no checkpoint in {path.parent} can be used: " in launcher.stderr and said in launcher.stderr
    assert "Traceback" not in launcher.stderr
    assert launcher.events.all() == []
    assert path.is_dir()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own; who removes ``filler`` makes room on it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    (disk / "filler").write_bytes(bytes(250 * 1024))
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.thorough
def test_a_disk_that_is_full_stops_nothing_and_is_tried_again(tmp_path: Path, full_disk: Path) -> None:
    stage = Stage(tmp_path)
    with stage.run(2, 5, "--checkpoint-every", "0.3s", "--checkpoint-dir", str(full_disk)) as job:
        warning = job.events.wait("warning", timeout=LONG)
        assert "could not be saved" in warning["message"] and "No space left on device" in warning["message"]
        stage.wait_steps(job, 5)
        (full_disk / "filler").unlink()
        assert job.events.wait("checkpoint_saved", timeout=LONG)["path"].startswith(str(full_disk))
        stage.finish(job)
    stage.assert_like_plain(job.events.all(), 5)


def test_a_full_work_directory_ends_no_training_not_even_one_that_prints(tmp_path: Path, full_disk: Path) -> None:
    """A rank is lost meanwhile, and its node is replaced when there is room."""
    stage = Stage(tmp_path, prints=True)
    stage.work_dir = full_disk / "job"
    (full_disk / "filler").unlink()
    with stage.run(2, 5, "--checkpoint-every", "1h") as job:
        stage.wait_steps(job, 5)
        rank = int(next(tmp_path.glob("ledger-2-*")).stem.rpartition("-")[2])
        with contextlib.suppress(OSError), open(full_disk / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(512)):
                pass
        os.kill(rank, signal.SIGKILL)
        written = sum(path.stat().st_size for path in tmp_path.glob("ledger-*"))
        until(lambda: sum(path.stat().st_size for path in tmp_path.glob("ledger-*")) > written + 20_000, "steps", LONG)
        (full_disk / "filler").unlink()
        stage.finish(job)
    stage.assert_like_plain(job.events.all(), 5)


def test_a_job_that_stops_waits_a_while_for_room_on_the_disk(tmp_path: Path, full_disk: Path) -> None:
    stage = Stage(tmp_path)
    with stage.run(2, 5, "--checkpoint-every", "1h", "--checkpoint-dir", str(full_disk)) as job:
        stage.wait_steps(job, 5)
        job.process.send_signal(signal.SIGTERM)
        job.events.wait("warning", lambda event: "that is tried again" in event["message"], LONG)
        (full_disk / "filler").unlink()
        assert job.wait(LONG) == 75, job.stderr
    [saved] = job.events.of("checkpoint_saved")
    assert saved["step"] == job.events.of("job_finished")[0]["steps"]
    assert f"step {saved['step']} is saved in {full_disk}" in job.last_message
