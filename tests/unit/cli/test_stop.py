"""``elastic-launcher stop`` of a job that does not run any more."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer
from typer.testing import CliRunner

from elastic_launcher.cli.stop import stop
from elastic_launcher.host.lock import Lock
from tests.support import histories

APP = typer.Typer()
APP.command()(stop)


def test_how_a_job_ended_is_told_in_one_line(tmp_path: Path) -> None:
    histories.write(histories.troubled().events, tmp_path)
    shown = CliRunner().invoke(APP, [str(tmp_path)])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"elastic-launcher: the job in {tmp_path} is not running: it ended with exit code 1")
    assert shown.stderr.count("\n") == 1


def test_a_copy_of_a_running_jobs_folder_does_not_stop_that_job(tmp_path: Path) -> None:
    job, copy = tmp_path / "job", tmp_path / "copy"
    histories.write_job(histories.write(histories.resized().events[:3], job), path=str(job), **Lock(job / "l").owner)
    shutil.copytree(job, copy)
    (tmp_path / "link").symlink_to(job)
    of_copy, of_job = (CliRunner().invoke(APP, [str(tmp_path / name)]) for name in ("copy", "link"))
    assert (of_copy.exit_code, of_job.exit_code) == (2, 70)  # this process is the launcher, and does not answer
    assert f"{copy} is a copy of the work directory {job}, where its job runs" in of_copy.stderr
