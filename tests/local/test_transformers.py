"""Hugging Face's Trainer under the launcher equals its own training in one process, logs included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.places import SCRIPTS
from tests.support.plays import launch_training, notify_rank_0, resize, stop_and_resume, train_twice
from tests.support.transformers_models import ARGUMENTS, history, in_float64, train_plain

SCRIPT = SCRIPTS / "transformers_train.py"
EPOCHS = 3
STEPS = 9  # of an epoch
SLOW = {"learning_rate": 1e-4}  # so that rounding does not grow over hundreds of steps


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with in_float64():
        yield


def assert_as_plain(folder: Path, kind: str, epochs: int = EPOCHS, **arguments: Any) -> int:
    """Fails unless the weights and all that was logged are those of transformers alone; returns the number of steps."""
    logs = json.loads((folder / "history.json").read_text())
    steps = logs[-1]["step"]
    rel = 1e-5 if kind == "smoothed" else 1e-9  # transformers smooths labels in float32
    plain = train_plain(kind, folder / "plain", epochs, steps, **arguments)
    assert len(logs) == len(history(plain))
    for ours, theirs in zip(logs, history(plain), strict=True):
        assert ours == pytest.approx(theirs, rel=rel, abs=1e-12)
    weights = torch.load(folder / "weights.pt", map_location="cpu")
    assert list(weights) == list(plain.model.state_dict())
    for name, theirs in plain.model.state_dict().items():
        torch.testing.assert_close(weights[name], theirs.cpu(), rtol=0, atol=rel, msg=name)
    return int(steps)


def options_of(folder: Path, kind: str, epochs: int = EPOCHS, **more: Any) -> str:
    return json.dumps({"folder": str(folder), "kind": kind, "epochs": epochs, **more})


@pytest.mark.parametrize(
    "kind", ["tokens", *(pytest.param(one, marks=pytest.mark.thorough) for one in ARGUMENTS if one != "tokens")]
)
def test_two_ranks_train_what_transformers_alone_does(kind: str, tmp_path: Path) -> None:
    launch_training(SCRIPT, options_of(tmp_path, kind), tmp_path, "2:2")
    assert assert_as_plain(tmp_path, kind) == EPOCHS * STEPS
    assert (tmp_path / "saved").is_dir()


@pytest.mark.thorough
@pytest.mark.parametrize("nodes", ["1:1", "3:3"])
def test_one_and_three_ranks_end_in_the_middle_of_an_epoch(nodes: str, tmp_path: Path) -> None:
    arguments = {"max_steps": 14, "eval_strategy": "steps", "eval_steps": 4}
    launch_training(SCRIPT, options_of(tmp_path, "tokens", arguments=arguments), tmp_path, nodes)
    assert assert_as_plain(tmp_path, "tokens", **arguments) == 14


@pytest.mark.thorough
def test_resizes_in_the_middle_of_epochs(tmp_path: Path) -> None:
    options = options_of(tmp_path, "tokens", 10_000, pace=0.02, arguments=SLOW)
    resize(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, "tokens", 10_000, **SLOW)


@pytest.mark.parametrize("kind", ["tokens", pytest.param("lora", marks=pytest.mark.thorough)])
def test_rank_0_is_killed(kind: str, tmp_path: Path) -> None:
    sizes = launch_training(SCRIPT, options_of(tmp_path, kind), tmp_path, "2:2", {"ELASTIC_FAULT": "reduction@7:1"})
    assert len(sizes) > 1
    assert assert_as_plain(tmp_path, kind) == EPOCHS * STEPS


@pytest.mark.thorough
def test_a_rank_is_killed_in_an_evaluation(tmp_path: Path) -> None:
    launch_training(SCRIPT, options_of(tmp_path, "tokens", dies=STEPS), tmp_path, "2:2")
    assert (tmp_path / "died").exists()
    assert assert_as_plain(tmp_path, "tokens") == EPOCHS * STEPS


BEST = {
    "learning_rate": 0.03,
    "lr_scheduler_type": "constant",
    "save_strategy": "epoch",
    "save_total_limit": 1,
    "load_best_model_at_end": True,
}


@pytest.mark.thorough
def test_rank_0_is_killed_while_it_saves_and_the_best_model_is_loaded(tmp_path: Path) -> None:
    launch_training(SCRIPT, options_of(tmp_path, "tokens", 9, dies_saving=STEPS, arguments=BEST), tmp_path, "2:2")
    assert (tmp_path / "died").exists()
    assert_as_plain(tmp_path, "tokens", 9, **BEST)
    kept, expected = ([one.name for one in folder.glob("checkpoint-*")] for folder in (tmp_path, tmp_path / "plain"))
    assert kept == expected
    assert (tmp_path / kept[0] / "trainer_state.json").exists()


@pytest.mark.thorough
def test_rank_0_is_killed_while_it_saves_the_model_after_training(tmp_path: Path) -> None:
    options = options_of(tmp_path, "tokens", dies_saving_model=EPOCHS * STEPS)
    sizes = launch_training(SCRIPT, options, tmp_path, "2:2")
    assert (tmp_path / "died").exists() and sizes[-1] == 1
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    weights = torch.load(tmp_path / "weights.pt", map_location="cpu")
    for name, value in saved.state_dict().items():
        torch.testing.assert_close(value.to(torch.float64), weights[name], rtol=0, atol=0, msg=name)
    assert (tmp_path / "trainer_state.json").exists()


@pytest.mark.thorough
def test_the_node_of_rank_0_gets_notice(tmp_path: Path) -> None:
    options = options_of(tmp_path, "tokens", 10_000, pace=0.02, arguments=SLOW)
    notify_rank_0(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, "tokens", 10_000, **SLOW)


@pytest.mark.thorough
def test_a_stopped_job_resumes_at_another_size(tmp_path: Path) -> None:
    saving = SLOW | {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    options = options_of(tmp_path, "tokens", 10_000, pace=0.02, arguments=saving, resume=True)
    stop_and_resume(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, "tokens", 10_000, **SLOW)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "ends",
    [
        pytest.param({"arguments": {"max_steps": 14, "eval_strategy": "no"}}, id="max_steps"),
        pytest.param({"arguments": {"eval_strategy": "no"}, "stops": 14}, id="a callback"),
    ],
)
def test_a_training_that_has_done_its_steps_ends_at_once_where_it_resumes(ends: dict[str, Any], tmp_path: Path) -> None:
    train_twice(SCRIPT, options_of(tmp_path, "tokens", **ends), tmp_path, "ended by the Trainer): 14 steps", every=14)
    plain = train_plain("tokens", tmp_path / "plain", EPOCHS, 14, **ends["arguments"]).model.state_dict()
    for name, ours in torch.load(tmp_path / "weights.pt", map_location="cpu").items():
        torch.testing.assert_close(ours, plain[name].cpu(), rtol=0, atol=1e-9, msg=name)
    logs = json.loads((tmp_path / "history.json").read_text())
    assert len([one for one in logs if "train_loss" in one]) == 1


@pytest.mark.thorough
def test_early_stopping_counts_on_where_a_job_resumes(tmp_path: Path) -> None:
    train_twice(
        SCRIPT, options_of(tmp_path, "tokens", 9, arguments=BEST), tmp_path, "ended by the Trainer): ", every=10
    )
    assert_as_plain(tmp_path, "tokens", 9, **BEST)
