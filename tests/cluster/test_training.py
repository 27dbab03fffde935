"""A training follows its hints through the sizes that they allow: all that it computes is what it would be anyhow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.stage import HINTS, LONG, staged
from tests.local.ledgers import SCRIPT
from tests.local.resizes import formed
from tests.local.sudden import assert_same_training, options

pytestmark = pytest.mark.timeout(900)  # a minute for each of several pods that import torch on a busy machine

PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start


def test_two_ranks_a_pod_train_the_same_model_through_growth_and_shrinking(tmp_path: Path) -> None:
    with staged(tmp_path, "training") as stage:
        stage.allow(2)
        hints = f"--hints=configmap/{HINTS}"
        stage.launch("--nodes=1:2", "--nproc-per-node=2", hints, script=SCRIPT, argument=options(tmp_path, pace=PACE))
        first = formed(stage, 2, 0, LONG)
        kept = stage.uids()
        stage.allow(4)
        second = formed(stage, 4, first["generation"], LONG)
        asked = [
            pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in stage.nodes().values()
        ]
        stage.allow(2)
        formed(stage, 2, second["generation"], LONG)
        assert kept.items() <= stage.uids().items()
        (tmp_path / "stop").touch()
        assert stage.wait() == 0
    assert asked == ["2", "2"]
    assert_same_training(tmp_path, stage)
