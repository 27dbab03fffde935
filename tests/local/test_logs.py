"""``elastic-launcher logs`` beside jobs that run, and after them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launches import PATIENCE, until
from tests.support.leftovers import Stage, script_lines


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def command(stage: Stage, *options: str) -> list[str]:
    return [sys.executable, "-m", "elastic_launcher", "logs", str(stage.work_dir), *options]


def test_lines_are_followed_over_a_resize_until_the_job_ends(stage: Stage) -> None:
    with stage.launched("--nodes", "1:2") as job, open(stage.root / "followed", "wb") as out:
        job.events.wait("progress")
        before = subprocess.run(command(stage, "--rank", "0"), capture_output=True, text=True, timeout=PATIENCE)
        assert (before.returncode, script_lines(before.stdout)) == (0, ["[rank 0] ready"])
        following = subprocess.Popen(command(stage, "--follow"), stdout=out)
        until(lambda: (stage.root / "followed").read_text(), "the first line is shown")
        job.events.wait("generation_formed", lambda event: event["world_size"] == 2)
        (stage.here / "stop").touch()
        assert job.wait() == 0
        assert following.wait(PATIENCE) == 0
    followed = (stage.root / "followed").read_text()
    said = ["[rank 0] over 0", "[rank 0] ready", "[rank 1] over 1", "[rank 1] ready"]
    assert sorted(script_lines(followed)) == said
    after = subprocess.run(command(stage), capture_output=True, text=True, timeout=PATIENCE)
    assert sorted(after.stdout.splitlines()) == sorted(followed.splitlines())
    missing = subprocess.run(command(stage, "--rank", "9"), capture_output=True, text=True, timeout=PATIENCE)
    assert missing.returncode == 2 and "never had a rank 9: it had ranks 0, 1" in missing.stderr


def test_a_reader_that_has_enough_ends_it_without_a_word(stage: Stage) -> None:
    (stage.work_dir / "logs").mkdir(parents=True)
    (stage.work_dir / "job.json").write_text("{}")
    text = "::elastic generation=1 rank=0 world_size=1::\n" + "a line\n" * 100_000
    (stage.work_dir / "logs" / "1-0.log").write_text(text)
    logs = subprocess.Popen(command(stage), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert logs.stdout is not None and logs.stderr is not None
    assert logs.stdout.readline() == "[rank 0] a line\n"
    logs.stdout.close()
    assert logs.stderr.read() == ""
    logs.wait(PATIENCE)
    logs.stderr.close()
