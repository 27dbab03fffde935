"""Ranks that do different things together end the job at once, each of them named; none hangs, none is aborted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.resizes import LONG, allow

APART = "ranks wait for each other in different operations"
EVALUATES = "is in job.evaluate of hits over 97 samples at step"


def play(folder: Path, *flags: str, code: int = 1, grow: int = 0, **more: object) -> Launcher:
    script = options(folder, **{"epochs": 100_000, "pace": 0.01, **more})
    with launched(*flags, "--", SCRIPT.with_name("different_calls.py"), script, cwd=folder) as job:
        if grow:
            job.events.wait("progress", lambda event: event["step"] > 0, LONG)
            allow(folder / "hints.json", grow)
        assert job.wait(LONG) == code, job.stderr
        assert_no_process(job.work_dir)
    assert not job.events.of("node_lost") or job.events.of("node_lost")[0]["signal"] is None, "a rank was aborted"
    return job


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        (
            "optimizer",
            "rank 0 is in job.backward for optimizer 1 (call 1 of step 6), rank 1 is in job.backward for optimizer 0 "
            "(call 1 of step 6); every rank has to make the same calls",
        ),
        pytest.param(
            "evaluate",
            f"rank 0 {EVALUATES} 6, rank 1 is in job.backward for optimizer 0 (call 1 of step 6)",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_ranks_that_do_different_things_are_named(tmp_path: Path, apart: str, said: str) -> None:
    job = play(tmp_path, "--nodes", "2:2", apart=apart)
    assert APART in job.last_message and said in job.last_message, job.last_message


@pytest.mark.thorough
def test_a_counter_of_the_scripts_own_that_a_joiner_resets_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "hints.json").write_text('{"default": "1"}')
    hints = ("--hints", str(tmp_path / "hints.json"))
    job = play(tmp_path, "--nodes", "1:2", *hints, grow=2, apart="counter", pace=0.05)
    assert APART in job.last_message and f"rank 0 {EVALUATES}" in job.last_message, job.last_message
    assert "nor by a counter" in job.last_message


@pytest.mark.thorough
def test_an_evaluation_after_the_training_that_only_one_rank_asks_for_is_its_own(tmp_path: Path) -> None:
    """The others have ended their scripts: nobody waits for them."""
    job = play(tmp_path, "--nodes", "2:2", code=0, apart="after", epochs=2)
    assert json.loads((tmp_path / "after.json").read_text())["count"] == 97, "it has evaluated all samples"
    assert APART not in job.stderr and "done" in job.last_message


@pytest.mark.thorough
def test_a_rank_that_stops_in_the_step_of_a_growth_ends_the_training_on_all(tmp_path: Path) -> None:
    """Its peers are in the larger group by then, and wait for it there."""
    (tmp_path / "hints.json").write_text('{"default": "2"}')
    hints = ("--hints", str(tmp_path / "hints.json"))
    job = play(tmp_path, "--nodes", "2:3", *hints, code=0, grow=3, apart="stop", pace=0.05)
    assert "done (stopped by the script)" in job.last_message


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        ("own", "in job.backward"),
        pytest.param("own stop", "in job.stop at step 6", marks=pytest.mark.thorough),
        pytest.param("own break", "at a break out of the training loop, step 6", marks=pytest.mark.thorough),
    ],
)
def test_ranks_that_wait_in_different_operations_of_which_one_is_the_scripts_own_are_named(
    tmp_path: Path, apart: str, said: str
) -> None:
    """No reduction of ours can tell them: the launcher knows it from what each rank reports."""
    job = play(tmp_path, "--nodes", "2:2", "--heartbeat-timeout", "3", "--progress-timeout", "4", apart=apart)
    assert APART in job.last_message, job.last_message
    assert f"rank 0 is in a collective operation of the script's own, rank 1 is {said}" in job.last_message


def test_a_rank_that_keeps_the_others_waiting_is_named_and_the_training_goes_on(tmp_path: Path) -> None:
    script = options(tmp_path, epochs=4, pace=0.01, apart="slow")
    flags = ("--nodes", "2:2", "--progress-timeout", "6")
    with launched(*flags, "--", SCRIPT.with_name("different_calls.py"), script, cwd=tmp_path) as job:
        said = job.events.wait("warning", lambda event: "has waited" in event["message"], LONG)["message"]
        (tmp_path / "go").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    assert "s in job.backward for optimizer 0 (call 1 of step 6); rank 0 has been" in said, said
    assert "in the loop body of step 5 for" in said and "use job.evaluate" in said and "given up" not in said
