"""Data that is read forward, or drawn by weight, trains like one plain process on any number of ranks."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet
from torch import nn

from elastic_launcher.lane_order import LaneOrder
from elastic_launcher.torch import rng
from elastic_launcher.torch.data.lane_reader import LaneReader
from elastic_launcher.weighted_sampling import WeightedSampling
from tests.support.lane_batches import lane_batches
from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.ledgers import assert_no_step_done_again, counted, read_ledgers, script_module
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, allow, formed

SCRIPT = SCRIPTS / "lanes_train.py"
TRAINED = script_module(SCRIPT)
BATCH, SAMPLES, SEED = TRAINED.BATCH, TRAINED.SAMPLES, TRAINED.SEED
STEPS = -(-SAMPLES // BATCH)
PARTS = (range(40), range(40, 53), range(53, 53), range(53, 90), range(90, SAMPLES))
ALL = {"micro": 3, "workers": 2, "shuffle": True}


def write_tars(folder: Path) -> None:
    """Writes the numbers of samples, as WebDataset has labels."""
    for part, numbers in enumerate(PARTS):
        with tarfile.open(folder / f"file-{part}.tar", "w") as tar:
            for number in numbers:
                info = tarfile.TarInfo(f"{number:04}.cls")
                info.size = len(str(number))
                tar.addfile(info, io.BytesIO(str(number).encode()))


def write_parquet(folder: Path) -> None:
    """Writes the numbers of samples."""
    for part, numbers in enumerate(PARTS):
        table = pyarrow.table({"number": pyarrow.array(list(numbers), pyarrow.int64())})
        parquet.write_table(table, folder / f"file-{part}.parquet", row_group_size=5)


class Training:
    """A training of the script in a folder, and what it must come to."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder = folder
        self.options = {"source": "lanes", "shuffle": False, **options, "folder": str(folder)}
        self.command = ("--", str(SCRIPT), json.dumps(self.options))
        self.order = lru_cache(self._order)
        if self.options["source"] == "tar":
            write_tars(folder)
        if self.options["source"] == "parquet":
            write_parquet(folder)

    def _order(self, epoch: int) -> list[int]:
        """Returns the samples of an epoch as one reader has them."""
        if self.options["source"] == "weights":
            return WeightedSampling(TRAINED.WEIGHTS).indices(SEED, epoch, 0, SAMPLES).tolist()
        data = TRAINED.source_of(self.options)
        if self.options["shuffle"]:
            reader = LaneReader(data, LaneOrder(data.lengths, BATCH), SEED, True)
            numbers = [number for number, _ in reader.samples(epoch, range(SAMPLES)) or []]
        else:
            lanes = [
                [data.decode(given)[0] for given in data.open(lane, epoch, 0)] for lane in range(len(data.lengths))
            ]
            numbers = [lanes[lane][place] for step in lane_batches(data.lengths, BATCH) for lane, place in step]
        assert sorted(numbers) == list(range(SAMPLES))
        return numbers

    def step(self, number: int) -> tuple[int, list[int]]:
        """Returns epoch and samples of a step, counted from 0."""
        epoch, in_epoch = divmod(number, STEPS)
        return epoch, self.order(epoch)[in_epoch * BATCH : (in_epoch + 1) * BATCH]

    def assert_same(self, job: Launcher) -> None:
        """Ends it; fails unless each step had its samples, once and in order, and the model is the plain one's."""
        (self.folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        ledgers = read_ledgers(self.folder)
        assert_no_step_done_again(ledgers)
        steps = counted(ledgers)
        assert sorted(steps) == list(range(len(steps)))
        for step, rows in steps.items():
            assert [number for row in rows for number in row["indices"]] == self.step(step)[1], f"step {step}"
        found = torch.load(self.folder / "model.pt", weights_only=True, map_location="cpu")
        for name, values in self._plain(len(steps)).state_dict().items():
            assert torch.allclose(found[name], values, rtol=1e-9, atol=1e-9), name
        assert_no_process(job.work_dir)

    def _plain(self, steps: int) -> nn.Module:
        """Returns what plain torch makes of these steps, in one process."""
        model, optimizer = TRAINED.build()
        for step in range(steps):
            epoch, numbers = self.step(step)
            optimizer.zero_grad()
            TRAINED.loss_of(model, torch.stack([self._sample(number, epoch) for number in numbers])).backward()
            optimizer.step()
        return model

    def _sample(self, number: int, epoch: int) -> torch.Tensor:
        """Returns a sample as the script gets it."""
        if self.options["source"] != "lanes":
            return TRAINED.sample(number, 0)
        state = random.getstate()
        random.seed(rng.sample_seed(SEED, epoch, number))
        found = TRAINED.sample(number, epoch) + 0.01 * random.random()
        random.setstate(state)
        return found


def kill_rank_0(job: Launcher, generation: dict[str, Any]) -> None:
    pids = {member["member"]: member["pid"] for node in job.status()["nodes"] for member in node["members"]}
    os.kill(pids[generation["members"][0]["member"]], signal.SIGKILL)
    job.events.wait("node_lost", timeout=LONG)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(ALL, id="lanes"),
        pytest.param({}, id="one micro-batch", marks=pytest.mark.thorough),
        pytest.param({"micro": 3, "workers": 1}, id="in order", marks=pytest.mark.thorough),
        pytest.param({"micro": 5, "shuffle": True}, id="no workers", marks=pytest.mark.thorough),
        pytest.param({**ALL, "source": "tar"}, id="tar", marks=pytest.mark.thorough),
        pytest.param({**ALL, "source": "parquet"}, id="parquet", marks=pytest.mark.thorough),
        pytest.param({"micro": 5, "source": "parquet"}, id="parquet in order", marks=pytest.mark.thorough),
        pytest.param({"micro": 3, "workers": 2, "source": "weights"}, id="weights", marks=pytest.mark.thorough),
    ],
)
def test_the_plain_model_through_1_3_2_ranks(tmp_path: Path, options: dict[str, Any]) -> None:
    hints, training = tmp_path / "hints.json", Training(tmp_path, options)
    allow(hints, 1)
    with launched("--nodes", "1:3", "--hints", hints, *training.command, cwd=tmp_path) as job:
        formed(job, 1, 0)
        allow(hints, 3)
        last = formed(job, 3, 1)
        kill_rank_0(job, last)
        formed(job, 2, last["generation"])
        training.assert_same(job)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["reduction@20:1", "micro-batch@20:1", "reduced@20:2"])
def test_a_killed_rank_loses_no_sample(tmp_path: Path, fault: str) -> None:
    training = Training(tmp_path, ALL)
    with launched("--nodes", "3:3", *training.command, cwd=tmp_path, environment={"ELASTIC_FAULT": fault}) as job:
        job.events.wait("node_lost", timeout=LONG)
        formed(job, 3, 1)
        training.assert_same(job)


@pytest.mark.thorough
def test_the_plain_model_where_a_node_leaves_by_a_notice(tmp_path: Path) -> None:
    training = Training(tmp_path, ALL)
    with launched("--nodes", "1:3", *training.command, cwd=tmp_path) as job:
        first = formed(job, 3, 0)
        os.kill(job.node_pid(1), signal.SIGTERM)
        formed(job, 2, first["generation"])
        training.assert_same(job)
    assert {event["node"] for event in job.events.of("node_left")} == {1}


@pytest.mark.thorough
@pytest.mark.parametrize("options", [ALL, {"micro": 3}, {"micro": 3, "workers": 2, "source": "weights"}])
def test_a_stopped_job_goes_on_with_the_next_samples_at_another_size(tmp_path: Path, options: dict[str, Any]) -> None:
    training, work_dir = Training(tmp_path, options), tmp_path / "job"
    with launched("--nodes", "3:3", *training.command, cwd=tmp_path, work_dir=work_dir) as job:
        formed(job, 3, 0)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(LONG) == 75, job.stderr
    with launched("--nodes", "2:2", *training.command, cwd=tmp_path, work_dir=work_dir) as job:
        formed(job, 2, 1)
        training.assert_same(job)
    assert job.events.of("job_started")[1]["resumed_step"] % STEPS > 0
