"""``elastic-launcher stop`` of a job that does not run any more."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from elastic_launcher.cli.stop import stop
from tests.support import histories

APP = typer.Typer()
APP.command()(stop)


def test_how_a_job_ended_is_told_in_one_line(tmp_path: Path) -> None:
    histories.write(histories.troubled().events, tmp_path)
    shown = CliRunner().invoke(APP, [str(tmp_path)])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"elastic-launcher: the job in {tmp_path} is not running: it ended with exit code 1")
    assert shown.stderr.count("\n") == 1
