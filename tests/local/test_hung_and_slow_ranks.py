"""A rank that lives is not a rank that gets further: one that hangs is lost, one that is slow is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launches import launched
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import LONG, formed


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_rank_that_hangs_in_a_step_is_lost(tmp_path: Path, rank: int) -> None:
    """Its threads go on to ask for orders; nothing else shows that it will never come."""
    script = options(tmp_path, fault="hang", fault_rank=rank, fault_step=20)
    arguments = ("--nodes", "3:3", "--progress-timeout", "3", "--", SCRIPT, script)
    with launched(*arguments, cwd=tmp_path) as job:
        lost = job.events.wait("node_lost", timeout=LONG)
        formed(job, 3, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert (lost["member"], lost["signal"], len(job.events.of("node_lost"))) == (rank + 1, None, 1)
    assert "made no progress in its step" in lost["message"]
    assert_same_training(tmp_path, job)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("faults", "hangs", "fact"),
    [
        ("reduction@20:3,freeze=micro-batch@20:2", {}, "gave no sign of life"),
        ("reduction@20:3,freeze=form@2:2", {}, "gave no sign of life"),
        pytest.param("reduction@20:3", {"fault": "hang", "fault_rank": 1}, "made no progress"),
    ],
)
def test_a_rank_that_never_comes_to_a_formation_is_lost(
    tmp_path: Path, faults: str, hangs: dict[str, object], fact: str
) -> None:
    """Another one dies in that step, and who is left waits for this one without a group in which to wait."""
    script = options(tmp_path, fault_step=20, **hangs)
    patience = ("--progress-timeout", "3", "--heartbeat-timeout", "3")
    arguments = ("--nodes", "3:3", *patience, "--", SCRIPT, script)
    with launched(*arguments, cwd=tmp_path, environment={"ELASTIC_FAULT": faults}) as job:
        job.events.wait("node_lost", lambda event: event["member"] == 2 and fact in event["message"], LONG)
        formed(job, 3, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert [event["member"] for event in job.events.of("node_lost")] == [3, 2]
    assert_same_training(tmp_path, job)


@pytest.mark.thorough
def test_a_rank_that_is_slow_for_long_is_named_until_it_is_not(tmp_path: Path) -> None:
    script = options(tmp_path, slow_members=[2], slow=0.1, pace=0.02)
    with launched("--nodes", "3:3", "--", SCRIPT, script, cwd=tmp_path) as job:
        told = job.events.wait("straggler", timeout=LONG)
        job.events.wait("progress", lambda event: event["time"] > told["time"], LONG)
        shown = subprocess.run(
            [sys.executable, "-m", "elastic_launcher", "status", "--json", str(job.work_dir)],
            capture_output=True,
            check=True,
        )
        (tmp_path / "fast").touch()
        over = job.events.wait("straggler", lambda event: event["over"], LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert (told["rank"], told["node"], told["over"]) == (1, 2, False)
    assert told["factor"] > 2 and (over["rank"], over["node"]) == (1, 2)
    assert len(job.events.of("straggler")) == 2
    assert [(one["rank"], one["node"]) for one in json.loads(shown.stdout)["stragglers"]] == [(1, 2)]
    assert "rank 1 (node 2)" in job.stderr and "times slower" in job.stderr
    assert "rank 1 (node 2)" in (job.work_dir / "report.md").read_text()
    assert_same_training(tmp_path, job)
