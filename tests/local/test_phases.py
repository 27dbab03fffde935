"""A script of two phases trains, grows, loses ranks, is stopped and goes on in the second one as in the first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.launches import Launcher, launched, until
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, allow, formed

SCRIPT = SCRIPTS / "phases.py"
OWN_LOOPS = SCRIPT.with_name("own_loops.py")
ADAPTIVE = SCRIPT.with_name("adaptive_phases.py")
FIRST_PHASE = 2 * (5 + 3)  # steps


def options(folder: Path, **more: Any) -> str:
    return json.dumps({"folder": str(folder), **more})


def plain(folder: Path, script: Path = SCRIPT, **more: Any) -> dict[str, Any]:
    """Returns what the same script comes to in one process."""
    folder.mkdir()
    subprocess.run([sys.executable, script, options(folder, **more)], check=True)
    return dict(json.loads((folder / "ended-0.json").read_text()))


def ends(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("ended-*.json")]


def assert_same(ended: dict[str, Any], expected: dict[str, Any]) -> None:
    assert ended["step"] == expected["step"]
    assert ended["scores"] == pytest.approx(expected["scores"], rel=1e-9)
    for mine, right in zip(ended["model"], expected["model"], strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(right), rtol=1e-9, atol=1e-11)


def assert_two_end_as_one(folder: Path) -> None:
    """Two ranks that were stopped at a step have what one process has that stops there."""
    ended = ends(folder)
    assert len(ended) == 2
    expected = plain(folder / "plain", stop_at=ended[0]["step"])
    for one in ended:
        assert_same(one, expected)


def in_second_phase(job: Launcher) -> None:
    job.events.wait("progress", lambda e: e.get("phase") == 1, LONG)


def test_ranks_join_and_are_replaced_in_the_second_phase_and_know_what_came_of_the_first(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    arguments = ("--nodes", "1:2", "--hints", hints, "--", SCRIPT, options(tmp_path, pace=0.02))
    with launched(*arguments, cwd=tmp_path) as job:
        in_second_phase(job)
        allow(hints, 2)
        grown = formed(job, 2, 1)
        os.kill(job.status()["nodes"][0]["members"][0]["pid"], signal.SIGKILL)
        replaced = formed(job, 2, grown["generation"] + 1)
        assert replaced["cause"] == "failure"
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_two_end_as_one(tmp_path)


def test_a_job_that_is_stopped_in_the_second_phase_is_saved_and_goes_on_there(tmp_path: Path) -> None:
    arguments = ("--nodes", "2:2", "--", SCRIPT, options(tmp_path, pace=0.02, epochs=[2, 40], stop_at=200))
    with launched(*arguments, cwd=tmp_path) as job:
        in_second_phase(job)
        stopped = subprocess.run([sys.executable, "-m", "elastic_launcher", "stop", str(job.work_dir)], check=False)
        assert (stopped.returncode, job.wait(LONG)) == (0, 75), job.stderr
        saved = job.events.of("checkpoint_saved")[-1]
    assert saved["step"] > FIRST_PHASE
    with launched(*arguments, cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
        assert job.events.of("job_started")[-1]["resumed_step"] == saved["step"]
    expected = plain(tmp_path / "plain", epochs=[2, 40], stop_at=200)
    ended = ends(tmp_path)
    assert len(ended) == 2
    for one in ended:
        assert_same(one, expected)


@pytest.mark.thorough
def test_a_rank_joins_in_the_second_phase_after_another_launcher_has_taken_over(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    arguments = ("--nodes", "1:2", "--hints", hints, "--", SCRIPT, options(tmp_path, pace=0.02))
    with launched(*arguments, cwd=tmp_path) as first:
        in_second_phase(first)
        first.process.kill()
        first.process.wait()
        with launched(*arguments, cwd=tmp_path) as job:
            job.events.wait("coordinator_adopted", timeout=LONG)
            allow(hints, 2)
            formed(job, 2, 1)
            (tmp_path / "stop").touch()
            assert job.wait(LONG) == 0, job.stderr
    assert_two_end_as_one(tmp_path)


@pytest.mark.thorough
def test_a_rank_joins_although_each_epoch_has_a_data_set_of_its_own(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    arguments = ("--nodes", "1:2", "--hints", hints, "--", SCRIPT, options(tmp_path, pace=0.4, per_epoch=True))
    with launched(*arguments, cwd=tmp_path) as job:
        in_second_phase(job)
        allow(hints, 2)
        formed(job, 2, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert not job.events.of("node_failed")
    ended = ends(tmp_path)
    expected = plain(tmp_path / "plain", stop_at=ended[0]["step"], per_epoch=True)
    for one in ended:
        assert_same(one, expected)


@pytest.mark.thorough
def test_a_job_with_loops_of_its_own_and_an_evaluation_after_each_goes_on_in_a_later_one(tmp_path: Path) -> None:
    arguments = ("--nodes", "1:1", "--", OWN_LOOPS, options(tmp_path, pace=0.1))
    with launched(*arguments, cwd=tmp_path) as job:
        job.events.wait("progress", lambda e: e["epoch"] >= 4, LONG)
        stopped = subprocess.run([sys.executable, "-m", "elastic_launcher", "stop", str(job.work_dir)], check=False)
        assert (stopped.returncode, job.wait(LONG)) == (0, 75), job.stderr
    with launched(*arguments, cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
        skipped = job.events.of("job_started")[-1]["resumed_step"] // 4
    (ended,), expected = ends(tmp_path), plain(tmp_path / "plain", OWN_LOOPS)
    assert ended["scores"][skipped:] == pytest.approx(expected["scores"][skipped:], rel=1e-9)
    assert_same(ended, {**expected, "scores": ended["scores"]})


def test_a_rank_joins_late_into_loops_of_the_scripts_own_with_an_evaluation_after_each(tmp_path: Path) -> None:
    """What it skips it has not evaluated: it gets what came of that in the job."""
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    arguments = ("--nodes", "1:2", "--hints", hints, "--", OWN_LOOPS, options(tmp_path, pace=0.4, loops=60))
    with launched(*arguments, cwd=tmp_path) as job:
        job.events.wait("progress", lambda e: e["epoch"] >= 3, LONG)
        allow(hints, 2)
        grown = formed(job, 2, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert not job.events.of("node_failed")
    ended = ends(tmp_path)
    assert len(ended) == 2
    expected = plain(tmp_path / "plain", OWN_LOOPS, loops=ended[0]["step"] // 4)
    for one in ended:
        own = grown["first_step"] // 4 + 1  # loops of which a joiner may know another one's score
        assert_same({**one, "scores": one["scores"][own:]}, {**expected, "scores": expected["scores"][own:]})


def assert_like_one_process(folder: Path, first: int = 0) -> None:
    """Two ranks of a batch that adapts end their phases where one process does, with its model.

    ``first``: the first phase that both have trained in; of one before it, a joiner knows the evaluation's result.
    """
    ended, expected = ends(folder), plain(folder / "plain", ADAPTIVE)
    assert len(ended) == 2
    for one in ended:
        for key in ("ends", "statistical"):
            assert one[key][first:] == expected[key][first:]
        assert_same(one, expected)


@pytest.mark.thorough
def test_two_phases_with_a_batch_that_adapts_end_as_in_one_process_though_a_rank_is_replaced(tmp_path: Path) -> None:
    arguments = ("--nodes", "2:2", "--", ADAPTIVE, json.dumps({"folder": str(tmp_path), "pace": 0.05}))
    with launched(*arguments, cwd=tmp_path) as job:
        in_second_phase(job)
        os.kill(job.status()["nodes"][0]["members"][0]["pid"], signal.SIGKILL)
        formed(job, 2, 1)
        assert job.wait(LONG) == 0, job.stderr
    assert_like_one_process(tmp_path, first=1)


@pytest.mark.thorough
def test_a_launcher_takes_over_at_the_end_of_a_phase_with_a_batch_that_adapts(tmp_path: Path) -> None:
    arguments = ("--nodes", "2:2", "--", ADAPTIVE, json.dumps({"folder": str(tmp_path), "waits": True}))
    with launched(*arguments, cwd=tmp_path) as first:
        until(lambda: len([*tmp_path.glob("at-end-*")]) == 2, "both ranks to end the first phase", LONG)
        changes = first.events.of("batch_changed")
        first.process.kill()
        first.process.wait()
        with launched(*arguments, cwd=tmp_path) as job:
            job.events.wait("coordinator_adopted", timeout=LONG)
            (tmp_path / "go").touch()
            assert job.wait(LONG) == 0, job.stderr
    assert_like_one_process(tmp_path)
    steps = [event["step"] for event in job.events.of("batch_changed")]
    assert changes and steps == sorted(set(steps)) and len(steps) > len(changes)
