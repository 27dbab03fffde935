"""Loop bodies that are refused in their rehearsal, before anything is trained: two passes in a step where a shrink
could make them wrong, a break, and what a counter of the script decides.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.launches import launched
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG

SCRIPT = SCRIPTS / "passes.py"
EARLY = SCRIPT.with_name("early_break.py")
COUNTER = SCRIPT.with_name("own_counter.py")
thorough = partial(pytest.param, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("nodes", "said"), [("1:2", "with 1 rank, as few as --nodes allows, a rank has 2"), thorough("2:2", "")]
)
def test_two_passes_in_a_step_need_a_share_that_always_fits_in_one_micro_batch(
    tmp_path: Path, nodes: str, said: str
) -> None:
    with launched("--nodes", nodes, "--", SCRIPT, "4", cwd=tmp_path) as job:
        assert job.wait(LONG) == (1 if said else 0), job.stderr
    if said:
        assert "optimizer 0.first_step (SharpnessAware) is half of a step" in job.last_message
        assert said in job.last_message and "Raise max_batch_per_gpu to 8" in job.last_message
        assert not job.events.of("progress")


@pytest.mark.parametrize(("then", "trained"), [("end", 0), thorough("reduce", 0), ("complete", 1)])
def test_a_break_before_a_step_is_complete_is_refused_in_the_rehearsal(tmp_path: Path, then: str, trained: int) -> None:
    with launched("--nodes", "1:1", "--", EARLY, then, cwd=tmp_path) as job:
        assert job.wait(LONG) == (0 if trained else 1), job.stderr
    assert bool(job.events.of("generation_formed")) == bool(trained)
    if not trained:
        assert "left the training loop in its rehearsal" in job.last_message, job.last_message


@pytest.mark.parametrize(("by", "every"), [("enumerate", 3), thorough("wrapped", 2), thorough("counter", 2)])
def test_a_body_that_decides_by_a_counter_of_its_own_is_refused_in_the_rehearsal(
    tmp_path: Path, by: str, every: int
) -> None:
    with launched("--nodes", "1:1", "--", COUNTER, by, str(every), cwd=tmp_path) as job:
        assert job.wait(LONG) == 1, job.stderr
    said = (
        "for optimizer 0 and for optimizer 1 in one try of its rehearsal, and job.backward for optimizer 0 in another"
    )
    assert said in job.last_message and "Decide by job.step" in job.last_message, job.last_message
    assert not job.events.of("generation_formed")


@pytest.mark.parametrize(
    ("by", "every", "turns"), [("step", 3, 2), thorough("samples", 1, 6), thorough("enumerate", 1, 6)]
)
def test_a_body_that_decides_by_step_or_samples_trains_and_is_warned_of_enumerate(
    tmp_path: Path, by: str, every: int, turns: int
) -> None:
    with launched("--nodes", "1:1", "--", COUNTER, by, str(every), cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert f"turns {turns}" in job.stdout
    assert "own_counter.py:" in job.stdout and "enumerate() around a training loader" in job.stdout
