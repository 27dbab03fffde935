"""A launcher that is started again over hints which nobody can read goes on with what its job had."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.launches import launched
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import LONG, formed


@pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.thorough)])
def test_a_job_that_runs_or_resumes_holds_the_last_hint_over_a_malformed_document(tmp_path: Path, how: str) -> None:
    hints = tmp_path / "hints.json"
    hints.write_text('{"default": "2"}')
    arguments = ("--nodes", "1:3", "--hints", str(hints), "--", SCRIPT, options(tmp_path))
    with launched(*arguments, cwd=tmp_path) as first:
        formed(first, 2, 0)
        first.events.wait("progress", lambda event: event["step"] > 3, LONG)
        first.process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
        first.process.wait()
        hints.write_text('{"default": ')
        with launched(*arguments, cwd=tmp_path) as again:
            said = again.events.wait("hint_rejected", timeout=LONG)["message"]
            if how == "stopped":
                formed(again, 2, 1)
            (tmp_path / "stop").touch()
            assert again.wait(LONG) == 0, again.stderr
    assert "not JSON" in said and "2 nodes, until they can be used" in said
    assert len(again.events.of("coordinator_adopted")) == (how == "killed")
    assert_same_training(tmp_path, again)
