"""A script of Accelerate under the launcher equals Accelerate's own training in one process with the global batch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from tests.support.accelerate_loop import BATCH, MICRO, STEPS, build, train
from tests.support.accelerate_trackers import read_lines
from tests.support.launches import launched
from tests.support.places import SCRIPTS
from tests.support.plays import launch_training, notify_rank_0, resize, stop_and_resume
from tests.support.resizes import LONG

SCRIPT = SCRIPTS / "accelerate_train.py"
EPOCHS = 3


@pytest.fixture(autouse=True)
def no_state() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of models so small, threads would only wait for each other
    yield
    torch.set_num_threads(threads)
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()


def assert_as_plain(folder: Path) -> int:
    """Fails unless weights and logs are those of Accelerate alone; returns the number of steps.

    The process that wrote them may have joined late: then its logs begin later.
    """
    found = torch.load(folder / "result.pt", map_location="cpu")
    steps = found["logs"][-1]["step"]
    plain, expected = train(Accelerator(cpu=True), range(steps // STEPS + 1), steps=steps)
    assert (found["model"]["0.weight"] - build().state_dict()["0.weight"]).abs().max() > 0.01
    for name, theirs in plain.state_dict().items():
        torch.testing.assert_close(found["model"][name], theirs, rtol=0, atol=1e-9, msg=name)
    assert found["logs"]
    for one, other in zip(found["logs"], expected[-len(found["logs"]) :], strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    return int(steps)


def assert_tracked_once(folder: Path, steps: int) -> list[int]:
    """Fails unless each step is tracked, by one process at a time; returns these in order."""
    lines = read_lines(folder / "lines.jsonl", "log")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    return list(dict.fromkeys(line["process"] for line in lines))


def options_of(folder: Path, **more: Any) -> str:
    return json.dumps({"folder": str(folder), "epochs": EPOCHS, **more})


@pytest.mark.thorough
@pytest.mark.parametrize("micro", [MICRO, BATCH])
@pytest.mark.parametrize("nodes", ["1:1", "2:2", "3:3"])
def test_ranks_train_what_accelerate_alone_does(nodes: str, micro: int, tmp_path: Path) -> None:
    options = options_of(tmp_path, micro=micro)
    launch_training(SCRIPT, options, tmp_path, nodes)
    assert assert_as_plain(tmp_path) == EPOCHS * STEPS
    assert len(assert_tracked_once(tmp_path, EPOCHS * STEPS)) == 1
    assert [line["what"] for line in read_lines(tmp_path / "lines.jsonl")][-1] == "finish"
    assert sorted(os.listdir(tmp_path / "saved" / "checkpoints")) == ["checkpoint_1", "checkpoint_2"]
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_rank_0_is_killed(tmp_path: Path) -> None:
    environment = {"ELASTIC_FAULT": "reduction@7:1"}
    with launched("--nodes", "2:2", "--", SCRIPT, options_of(tmp_path), cwd=tmp_path, environment=environment) as job:
        assert job.wait(LONG) == 0, job.stderr
        assert len(job.events.of("generation_formed")) > 1
    assert assert_as_plain(tmp_path) == EPOCHS * STEPS
    assert len(assert_tracked_once(tmp_path, EPOCHS * STEPS)) == 2
    assert (tmp_path / "model" / "model.safetensors").exists()


@pytest.mark.thorough
def test_rank_0_is_killed_after_it_has_tracked_and_saved(tmp_path: Path) -> None:
    with launched("--nodes", "2:2", "--", SCRIPT, options_of(tmp_path, dies=STEPS), cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert (tmp_path / "died").exists()
    assert assert_as_plain(tmp_path) == EPOCHS * STEPS
    assert sorted(os.listdir(tmp_path / "saved" / "checkpoints")) == ["checkpoint_1", "checkpoint_2"]


def test_resizes_in_the_middle_of_epochs(tmp_path: Path) -> None:
    options = options_of(tmp_path, epochs=10_000, pace=0.02)
    resize(SCRIPT, options, tmp_path)
    assert_tracked_once(tmp_path, assert_as_plain(tmp_path))


@pytest.mark.thorough
def test_the_node_of_rank_0_gets_notice(tmp_path: Path) -> None:
    options = options_of(tmp_path, epochs=10_000, pace=0.02)
    notify_rank_0(SCRIPT, options, tmp_path)
    processes = assert_tracked_once(tmp_path, assert_as_plain(tmp_path))
    assert len(processes) == 2
    assert {line["process"] for line in read_lines(tmp_path / "lines.jsonl", "finish")} == set(processes)


@pytest.mark.thorough
def test_a_stopped_job_resumes_at_another_size(tmp_path: Path) -> None:
    options = options_of(tmp_path, epochs=10_000, pace=0.02)
    stop_and_resume(SCRIPT, options, tmp_path)
    assert_tracked_once(tmp_path, assert_as_plain(tmp_path))
