"""Lanes, which can only be read forward, train like one plain process on any number of ranks."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic_launcher.torch import rng
from tests.support.lane_batches import lane_batches
from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, allow, formed
from tests.support.scripts.lanes_train import BATCH, LENGTHS, SEED, build, loss_of, sample

SCRIPT = SCRIPTS / "lanes_train.py"
STEPS = -(-sum(LENGTHS) // BATCH)
ORDER = lane_batches(LENGTHS, BATCH)
FIRSTS = [sum(LENGTHS[:lane]) for lane in range(len(LENGTHS))]


def script(folder: Path, **options: Any) -> tuple[str, ...]:
    return "--", str(SCRIPT), json.dumps({"folder": str(folder), **options})


def steps_of(folder: Path) -> dict[int, list[list[int]]]:
    """Returns lane and place of the samples of each step, which all ranks have seen alike."""
    found: dict[int, list[list[int]]] = {}
    for path in folder.glob("steps-*.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            assert found.setdefault(row["step"], row["places"]) == row["places"], row
    return found


def drawn(lane: int, epoch: int, place: int) -> torch.Tensor:
    """Returns a sample as the script gets it."""
    state = random.getstate()
    random.seed(rng.sample_seed(SEED, epoch, FIRSTS[lane] + place))
    found = sample(lane, epoch, place) + 0.01 * random.random()
    random.setstate(state)
    return found


def train_plain(steps: dict[int, list[list[int]]]) -> nn.Module:
    """Returns what plain torch makes of these batches, in one process."""
    model, optimizer = build()
    for step in range(1, len(steps) + 1):
        epoch = (step - 1) // STEPS
        optimizer.zero_grad()
        loss_of(model, torch.stack([drawn(lane, epoch, place) for lane, place in steps[step]])).backward()
        optimizer.step()
    return model


def assert_same(folder: Path, job: Launcher, shuffle: bool = False) -> None:
    """Ends a training; fails unless each pass had each sample once, in order, and the model is the plain one's."""
    (folder / "stop").touch()
    assert job.wait(LONG) == 0, job.stderr
    end = torch.load(folder / "end.pt", weights_only=True)
    steps = steps_of(folder)
    assert sorted(steps) == list(range(1, end["steps"] + 1))
    for step, places in steps.items():
        if not shuffle:
            assert places == [list(place) for place in ORDER[(step - 1) % STEPS]], step
    for first in range(1, end["steps"] - STEPS + 2, STEPS):
        epoch = [tuple(place) for step in range(first, first + STEPS) for place in steps[step]]
        assert sorted(epoch) == [(lane, place) for lane, length in enumerate(LENGTHS) for place in range(length)]
    for name, values in train_plain(steps).state_dict().items():
        assert end["model"][name].numpy() == pytest.approx(values.numpy(), rel=1e-9), name
    assert_no_process(job.work_dir)


def kill_rank_0(job: Launcher, generation: dict[str, Any]) -> None:
    pids = {member["member"]: member["pid"] for node in job.status()["nodes"] for member in node["members"]}
    os.kill(pids[generation["members"][0]["member"]], signal.SIGKILL)
    job.events.wait("node_lost", timeout=LONG)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="one micro-batch"),
        pytest.param({"micro": 3}, id="accumulation", marks=pytest.mark.thorough),
        pytest.param({"micro": 3, "shuffle": True}, id="shuffled", marks=pytest.mark.thorough),
        pytest.param({"micro": 3, "shuffle": True, "workers": 2}, id="workers", marks=pytest.mark.thorough),
    ],
)
def test_the_plain_model_through_1_3_2_ranks(tmp_path: Path, options: dict[str, Any]) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    with launched("--nodes", "1:3", "--hints", hints, *script(tmp_path, **options), cwd=tmp_path) as job:
        formed(job, 1, 0)
        allow(hints, 3)
        last = formed(job, 3, 1)
        kill_rank_0(job, last)
        formed(job, 2, last["generation"])
        assert_same(tmp_path, job, options.get("shuffle", False))


@pytest.mark.thorough
def test_the_plain_model_where_a_node_leaves_by_a_notice(tmp_path: Path) -> None:
    with launched("--nodes", "1:3", *script(tmp_path, micro=3), cwd=tmp_path) as job:
        first = formed(job, 3, 0)
        os.kill(job.node_pid(1), signal.SIGTERM)
        formed(job, 2, first["generation"])
        assert_same(tmp_path, job)
    assert {event["node"] for event in job.events.of("node_left")} == {1}


@pytest.mark.thorough
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stopped_job_goes_on_with_the_next_samples_at_another_size(tmp_path: Path, shuffle: bool) -> None:
    arguments = script(tmp_path, micro=3, shuffle=shuffle)
    with launched("--nodes", "3:3", *arguments, cwd=tmp_path, work_dir=tmp_path / "job") as job:
        formed(job, 3, 0)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(LONG) == 75, job.stderr
    with launched("--nodes", "2:2", *arguments, cwd=tmp_path, work_dir=tmp_path / "job") as job:
        formed(job, 2, 1)
        assert_same(tmp_path, job, shuffle)
    assert job.events.of("job_started")[1]["resumed_step"] > 0
