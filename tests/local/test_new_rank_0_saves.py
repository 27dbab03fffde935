"""Whoever comes to be rank 0 saves at once: the one before it may have died over the last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.launches import launched
from tests.support.ledgers import SCRIPT
from tests.support.resizes import LONG

PERIOD = 40


def test_a_checkpoint_over_which_rank_0_dies_is_made_up_for_before_the_next_is_due(tmp_path: Path) -> None:
    script = json.dumps({"folder": str(tmp_path), "samples": 97, "batch": 24, "micro": 5, "pace": 0.01})
    arguments = ("--nodes", "2:2", "--checkpoint-every", f"{PERIOD} steps", "--", SCRIPT, script)
    with launched(*arguments, cwd=tmp_path, environment={"ELASTIC_FAULT": "saving@0:1"}) as job:
        saved = job.events.wait("checkpoint_saved", timeout=LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert [event["node"] for event in job.events.of("node_lost")] == [1]
    assert PERIOD < saved["step"] < 2 * PERIOD
