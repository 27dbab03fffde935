"""trl's SFTTrainer under the launcher equals its own training in one process, logs included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.places import SCRIPTS
from tests.support.plays import launch_training, resize, stop_and_resume
from tests.support.transformers_models import history, in_float64
from tests.support.trl_models import ARGUMENTS, FLOAT32, assert_same_logs, train_plain

SCRIPT = SCRIPTS / "transformers_train.py"
EPOCHS = 2
SLOW = {"learning_rate": 1e-4}  # so that rounding does not grow over hundreds of steps


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with in_float64():
        yield


def assert_as_plain(folder: Path, kind: str, epochs: int = EPOCHS, **arguments: Any) -> None:
    """Fails unless the weights and all that was logged are those of trl alone."""
    logs = json.loads((folder / "history.json").read_text())
    plain = train_plain(kind, folder / "plain", epochs, logs[-1]["step"], **arguments)
    assert_same_logs(logs, history(plain), kind)
    within = FLOAT32 if kind == "sft_dft" else 1e-9
    weights = torch.load(folder / "weights.pt")
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=within, msg=name)


def options_of(folder: Path, kind: str, epochs: int = EPOCHS, **more: Any) -> str:
    return json.dumps({"folder": str(folder), "kind": kind, "epochs": epochs, **more})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [kind for kind in ARGUMENTS if kind != "sft"])
def test_two_ranks_train_what_trl_alone_does(kind: str, tmp_path: Path) -> None:
    launch_training(SCRIPT, options_of(tmp_path, kind), tmp_path, "2:2")
    assert_as_plain(tmp_path, kind)


@pytest.mark.thorough
@pytest.mark.parametrize("nodes", ["1:1", "3:3"])
def test_one_and_three_ranks_end_in_the_middle_of_an_epoch(nodes: str, tmp_path: Path) -> None:
    launch_training(SCRIPT, options_of(tmp_path, "sft", arguments={"max_steps": 14}), tmp_path, nodes)
    assert_as_plain(tmp_path, "sft", max_steps=14)


@pytest.mark.thorough
def test_resizes_in_the_middle_of_epochs(tmp_path: Path) -> None:
    options = options_of(tmp_path, "sft", 10_000, pace=0.02, arguments=SLOW)
    resize(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, "sft", 10_000, **SLOW)


def test_rank_0_is_killed(tmp_path: Path) -> None:
    sizes = launch_training(SCRIPT, options_of(tmp_path, "sft"), tmp_path, "2:2", {"ELASTIC_FAULT": "reduction@7:1"})
    assert len(sizes) > 1
    assert_as_plain(tmp_path, "sft")


@pytest.mark.thorough
def test_a_stopped_job_resumes_at_another_size(tmp_path: Path) -> None:
    options = options_of(tmp_path, "sft", 10_000, pace=0.02, arguments=SLOW)
    stop_and_resume(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, "sft", 10_000, **SLOW)
