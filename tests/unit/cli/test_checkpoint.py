"""``elastic-launcher checkpoint`` of a job that can't be asked: it says why, and what to do."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from elastic_launcher.cli.checkpoint import checkpoint
from elastic_launcher.host.lock import process_start
from tests.support import histories

APP = typer.Typer()
APP.command()(checkpoint)
HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("owner", "code", "said"),
    [
        ({"host": "elsewhere", "pid": 1}, 2, f"runs on elsewhere, and can't be reached from {HERE}: run this command"),
        ({"host": HERE, "pid": os.getpid(), "started": process_start(os.getpid())}, 70, "does not answer"),
        ({"host": HERE, "pid": os.getpid(), "started": 1}, 2, "is not running: there is nothing to save"),
    ],
)
def test_why_a_job_can_not_be_asked(owner: dict[str, Any], code: int, said: str, tmp_path: Path) -> None:
    histories.write(histories.resized().events[:-8], tmp_path)
    shown = CliRunner().invoke(APP, [str(histories.write_job(tmp_path, **owner))])
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert said in shown.stderr


def test_a_job_of_a_later_version_is_not_exported(tmp_path: Path) -> None:
    path = histories.write_job(tmp_path, config={"v": 99, "script": "train.py"})
    shown = CliRunner().invoke(APP, ["export", str(path), "--to", str(tmp_path / "x.pt")])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "is of version 99" in shown.stderr


def test_a_job_without_a_configuration_has_no_checkpoint_in_another_place(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"v": 1}')
    shown = CliRunner().invoke(APP, ["export", str(tmp_path), "--to", str(tmp_path / "x.pt")])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "has no checkpoint that can be used" in shown.stderr
