"""``elastic-launcher stop``: the job is saved and ends with 75, and whatever keeps it from that is said."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.launches import PATIENCE, Launcher, until
from tests.support.leftovers import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def stop(work_dir: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(work_dir), capture_output=True, text=True, timeout=PATIENCE)


def _command(work_dir: Path) -> list[str]:
    return [sys.executable, "-m", "elastic_launcher", "stop", str(work_dir)]


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def rank_pid(job: Launcher) -> int:
    return int(job.status()["nodes"][0]["members"][0]["pid"])


def test_a_job_that_is_stopped_is_saved_and_goes_on_where_it_was(stage: Stage) -> None:
    with stage.launched("--nodes", "2:2") as job:
        job.events.wait("progress")
        said = stop(stage.work_dir)
        assert not psutil.pid_exists(job.process.pid) or psutil.Process(job.process.pid).status() == "zombie"
        assert job.wait() == 75
        stage.assert_nothing_left()
        assert said.returncode == 0, said.stderr
        finished = job.events.all()[-1]
        step = job.events.of("checkpoint_saved")[-1]["step"]
        assert finished["exit_code"] == 75 and finished["steps"] == step
        assert re.fullmatch(
            rf"stopped by `elastic-launcher stop` after step \d+; step {step} is saved in \S+, the same command "
            rf"resumes from there\nto go on: the same command, with --work-dir {stage.work_dir}\n",
            said.stdout,
        )
        assert f"step {step} is saved; the ranks end" in said.stderr
        again = stop(stage.work_dir)
        assert again.returncode == 2
        assert f"is not running: it ended with exit code 75 ({finished['message']})" in again.stderr
    with stage.launched("--nodes", "1:1") as job:
        job.events.wait("progress", lambda event: event["step"] > step)
        (stage.here / "stop").touch()
        assert job.wait() == 0
        assert job.events.of("job_started")[1]["resumed_step"] == step


def test_a_second_stop_waits_with_the_first(stage: Stage) -> None:
    with stage.launched("--nodes", "2:2", "--heartbeat-timeout", "120") as job:
        job.events.wait("progress")
        with contextlib.ExitStack() as stack:
            with frozen(rank_pid(job)):  # no boundary is reached until both have asked
                errors = [stage.root / f"stop-{number}.err" for number in range(2)]
                stops = []
                for error, words in zip(errors, ("is told to stop", "is stopping already"), strict=True):
                    file = stack.enter_context(open(error, "wb"))
                    stops.append(subprocess.Popen(_command(stage.work_dir), stdout=subprocess.PIPE, stderr=file))
                    until(lambda error=error, words=words: words in error.read_text(), words)
                assert job.status()["phase"] == "stopping"
            said = [process.communicate(timeout=PATIENCE)[0].decode() for process in stops]
        assert [process.returncode for process in stops] == [0, 0]
        assert said[0] == said[1] and "is saved in" in said[0]
        assert job.wait() == 75


def test_a_job_that_has_not_begun_to_train_ends_at_once(stage: Stage) -> None:
    with stage.launched("--nodes", "2:2") as job:
        job.events.wait("node_started")
        said = stop(stage.work_dir)
        assert job.wait() == 75
        assert said.stdout.startswith("stopped by `elastic-launcher stop` before training began; nothing was saved\n")
        stage.assert_nothing_left()


@pytest.mark.thorough
def test_a_launcher_that_does_not_answer_is_told_apart_from_one_that_is_gone(stage: Stage) -> None:
    with stage.launched("--nodes", "1:1") as job:
        job.events.wait("progress")
        with frozen(job.process.pid):
            said = stop(stage.work_dir)
        assert said.returncode == 70
        assert f"(process {job.process.pid}) does not answer" in said.stderr
        assert f"`kill -CONT {job.process.pid}`" in said.stderr
        with frozen(rank_pid(job)):
            job.process.kill()
            job.process.wait()
            said = stop(stage.work_dir)
        assert said.returncode == 2
        assert f"its launcher (process {job.process.pid}) is gone without a word; " in said.stderr
        assert " of its processes still run: " in said.stderr


def test_a_folder_without_a_job_is_refused(tmp_path: Path) -> None:
    said = stop(tmp_path / "nowhere")
    assert said.returncode == 2
    assert "nowhere is not there" in said.stderr


def test_a_launch_that_has_taken_as_long_as_it_may_is_saved_and_ends(stage: Stage) -> None:
    with stage.launched("--nodes", "1:1", "--max-runtime", "12s") as job:
        assert job.wait() == 75
        stage.assert_nothing_left()
        saved = job.events.of("checkpoint_saved")
        place = rf"after step \d+; step {saved[-1]['step']} is saved in" if saved else "before training began; nothing"
        assert re.match(rf"stopped by --max-runtime, 12 s since this launch began, {place} ", job.last_message)
