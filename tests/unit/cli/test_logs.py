"""What ranks wrote comes out whole and in order: over generations, runs and rotated files, and as it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from elastic_launcher.cli.logs import logs
from elastic_launcher.config import JobConfig
from elastic_launcher.launcher.rank_logs import JobLines

APP = typer.Typer()
APP.command()(logs)


def mark(generation: int, rank: int) -> str:
    return f"::elastic generation={generation} rank={rank} world_size=2::\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    config = JobConfig(script="train.py", min_nodes=1, max_nodes=3)
    (tmp_path / "job.json").write_text(json.dumps({"v": 1, "id": "job", "config": config.to_dict()}))
    return tmp_path


def write(job: Path, name: str, text: str) -> None:
    with open(job / "logs" / name, "a") as file:
        file.write(text)


def shown(job: Path, *options: str) -> Result:
    return CliRunner().invoke(APP, [str(job), *options])


def test_lines_stand_by_generation_and_rank_over_runs(job: Path) -> None:
    write(job, "1-0.log", f"ready\n{mark(1, 0)}one\n{mark(2, 1)}three\n")
    write(job, "2-0.log", f"ready too\n{mark(2, 0)}two\n")
    write(job, "3-0.log", f"again\n{mark(3, 0)}four\nelastic-launcher: the job ends: stopped\n")
    write(job, "3.log", "the agent's own\n")
    assert shown(job).stdout.splitlines() == [
        "[rank 0] ready",
        "[rank 0] one",
        "[rank 0] ready too",
        "[rank 0] two",
        "[rank 1] three",
        "[rank 0] again",
        "[rank 0] four",
    ]
    assert shown(job, "--rank", "1").stdout == "[rank 1] three\n"


def test_rotated_files_come_first_also_in_the_middle_of_a_line(job: Path) -> None:
    write(job, "1-0.log.1", f"{mark(1, 0)}one\ntw")
    write(job, "1-0.log", "o\nthree")
    assert shown(job).stdout == "[rank 0] one\n[rank 0] two\n[rank 0] three\n"


def test_what_never_trained_is_told_last_with_its_node(job: Path) -> None:
    write(job, "1-0.log", "Traceback\n")
    write(job, "2-0.log", f"{mark(1, 0)}one\n")
    assert shown(job).stdout == "[rank 0] one\n[node 1] Traceback\n"


def test_in_a_job_that_never_trained_the_first_rank_stands_for_rank_0(job: Path) -> None:
    write(job, "1-0.log", "Traceback\n")
    write(job, "2-0.log", "Traceback too\n")
    assert shown(job).stdout == "[rank 0] Traceback\n[node 2] Traceback too\n"


def test_of_a_progress_bar_the_last_state_is_shown(job: Path) -> None:
    write(job, "1-0.log", f"{mark(1, 0)}10%\r50%\r100%\r\n")
    assert shown(job).stdout == "[rank 0] 100%\n"


@pytest.mark.parametrize("options", [["--rank", "7"], ["--rank", "7", "--follow"], ["--rank", "2"]])
def test_a_rank_that_never_was_is_refused(job: Path, options: list[str]) -> None:
    write(job, "1-0.log", f"{mark(1, 0)}one\n")
    write(job, "2-0.log", mark(1, 1))
    found = shown(job, *options)
    assert found.exit_code == 2
    assert f"never had a rank {options[1]}: it had ranks 0, 1" in found.stderr
    assert shown(job, "--rank", "1").exit_code == 0  # it was there, and wrote nothing


def test_a_job_without_lines_prints_nothing(job: Path) -> None:
    assert (shown(job).exit_code, shown(job).stdout) == (0, "")


def test_what_is_written_later_is_told_once_through_a_rotation(job: Path) -> None:
    lines = JobLines(job / "logs")
    write(job, "1-0.log", f"ready\n{mark(1, 0)}one\npa")
    assert [line.text for line in lines.written()] == ["ready", "one"]
    assert list(lines.new()) == []
    write(job, "1-0.log", "rt\ntwo\n")
    write(job, "2-0.log", "held back\n")
    assert [line.text for line in lines.new()] == ["part", "two"]
    write(job, "1-0.log", "three\n")
    (job / "logs" / "1-0.log.1").write_bytes((job / "logs" / "1-0.log").read_bytes())
    (job / "logs" / "1-0.log").write_text("four\n")
    write(job, "2-0.log", f"{mark(2, 1)}five")
    assert [str(line) for line in lines.new()] == [
        "[rank 0] three",
        "[rank 0] four",
        "[rank 1] held back",
    ]
    assert [str(line) for line in lines.rest()] == ["[rank 1] five"]


@pytest.mark.parametrize("ends", ["reader", "terminal"])
def test_logs_of_a_cluster_leave_no_copy_behind(ends: str, tmp_path: Path) -> None:
    code = """
import asyncio, contextlib, os, signal, sys
from elastic_launcher.cli.main import main
from elastic_launcher.engines.kubernetes import remote_job

class Job:
    name = "ml/digits"

    async def save_logs(self, folder, follow):
        (folder / "1-0.log").write_text("::elastic generation=1 rank=0 world_size=1::\\n" + "line\\n" * 100_000)
        if sys.argv[-1] == "--follow":
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.Event().wait()
        return []

@contextlib.asynccontextmanager
async def cluster_job(wanted):
    yield Job()

remote_job.cluster_job = cluster_job
main()
"""
    command = [sys.executable, "-c", code, "logs", "job/digits", *(["--follow"] if ends == "terminal" else [])]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if ends == "reader":
            assert process.stdout.readline() == b"[rank 0] line\n"
            process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == (1 if ends == "reader" else 129)
    assert list(tmp_path.iterdir()) == []
