"""A job in pods of which nobody is left who holds the state restarts from its newest checkpoint, by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cluster.stage import staged
from tests.support.ledgers import SCRIPT, assert_same_model, train_plain
from tests.support.losses import BATCH, SAMPLES, options
from tests.support.resizes import formed

pytestmark = [pytest.mark.machine, pytest.mark.thorough, pytest.mark.timeout(900)]


def test_where_nobody_is_left_who_holds_the_state_new_pods_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    with staged(tmp_path, "restart") as stage:
        flags = ("--nodes=1:1", "--checkpoint-every=5 steps")
        fault = {"ELASTIC_FAULT": "reduction@20:1"}
        stage.launch(*flags, script=SCRIPT, argument=options(tmp_path), environment=fault, retries=0)
        again = formed(stage, 1, 1)
        (tmp_path / "stop").touch()
        assert stage.wait() == 0
        assert again["cause"] == "failure" and 0 < again["first_step"] <= 21
        said = [event["message"] for event in stage.events.of("warning")]
        assert any("no other node holds the state; all nodes restart from step" in one for one in said), said
        steps = torch.load(tmp_path / "model.pt")["step"]
        assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))
