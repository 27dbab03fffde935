"""A report is elsewhere while the run goes on, and however that ends; a place that can't be written costs nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from elastic_launcher.kfp_steps import report_copy
from elastic_launcher.kfp_steps.report_copy import FILES, copied_to, copy_report
from tests.support import histories

JOB_ID = str(histories.resized().events[0]["job_id"])


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_all_of_the_report_goes_there(scheme: str, tmp_path: Path) -> None:
    histories.write(histories.resized().events, tmp_path / "job")
    copy_report(tmp_path / "job", f"{scheme}{tmp_path}/elsewhere/run")
    (own,) = (tmp_path / "elsewhere" / "run").iterdir()
    assert own.name == JOB_ID
    assert {path.name for path in own.iterdir()} == set(FILES)
    assert "<svg" in (own / "report.html").read_text()
    assert not (tmp_path / "job" / "report.html").exists(), "that is the launcher's to write"


def test_it_goes_there_while_the_run_goes_on_and_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_copy, "COPY_SECONDS", 0.02)
    job, place, story = tmp_path / "job", tmp_path / "elsewhere", histories.resized()
    copied = threading.Semaphore(0)

    def copy_and_tell(folder: Path, place: str) -> None:
        copy_report(folder, place)
        copied.release()

    monkeypatch.setattr(report_copy, "copy_report", copy_and_tell)
    histories.write(story.events[:10], job)
    run = [sys.executable, "-c", "input()"]
    with subprocess.Popen(run, stdin=subprocess.PIPE, text=True) as process, copied_to(str(place))(process, job):
        assert copied.acquire(timeout=60)
        assert (place / JOB_ID / "report.html").exists()
        histories.write(story.events, job)
        process.communicate("\n")
    assert (place / JOB_ID / "events.jsonl").read_bytes() == (job / "events.jsonl").read_bytes()


def test_a_place_that_can_not_be_written_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report_copy, "COPY_SECONDS", 0.02)
    tries = threading.Semaphore(0)

    def full(folder: Path, place: str) -> None:
        tries.release()
        raise OSError("no space left")

    monkeypatch.setattr(report_copy, "copy_report", full)
    run = [sys.executable, "-c", "input()"]
    with subprocess.Popen(run, stdin=subprocess.PIPE, text=True) as process, copied_to("/full")(process, tmp_path):
        assert all(tries.acquire(timeout=60) for _ in range(3))
        process.communicate("\n")
    assert capsys.readouterr().out.count("/full can't be written: no space left") == 2  # the last try tells it, too


def test_a_copy_that_breaks_off_leaves_the_one_before_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the step's pod is killed, or the volume becomes full."""
    story = histories.resized()
    histories.write(story.events[:10], tmp_path / "job")
    copy_report(tmp_path / "job", str(tmp_path / "elsewhere"))
    own = tmp_path / "elsewhere" / JOB_ID
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    histories.write(story.events, tmp_path / "job")

    copy = shutil.copyfileobj

    def broken_off(source: BinaryIO, target: BinaryIO, *_: int) -> None:
        if Path(source.name).parent == tmp_path / "job":  # the draft is made of what is there now
            return copy(source, target)
        target.write(source.read(10))
        raise OSError("No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(shutil, "copyfileobj", broken_off)
        patched.setattr(shutil, "_USE_CP_SENDFILE", False, raising=False)
        copy_report(tmp_path / "job", str(tmp_path / "elsewhere"))
    assert {path.name: path.read_bytes() for path in own.iterdir()} == before


def test_a_run_that_was_refused_has_none(tmp_path: Path) -> None:
    copy_report(tmp_path / "job", str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()


def test_jobs_that_share_a_place_overwrite_nothing(tmp_path: Path) -> None:
    for job in ("first", "second"):
        histories.write(histories.Story(job_id=job).start_nodes(1).form(1, cause="start").events, tmp_path / job)
        copy_report(tmp_path / job, str(tmp_path / "elsewhere"))
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"first", "second"}
