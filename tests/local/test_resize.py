"""Through any sequence of resizes the training is the plain one, and survivors stay who they are."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.ledgers import SCRIPT, assert_each_sample_once, assert_same_model, counted, read_ledgers, train_plain
from tests.support.resizes import LONG, allow, formed

SAMPLES, BATCH, MICRO = 97, 24, 5


def options(folder: Path, **more: Any) -> str:
    return json.dumps(
        {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": MICRO, "pace": 0.004, **more}
    )


TOGETHER = pytest.mark.xdist_group("resized")  # one job for all three, in one process


@pytest.fixture(scope="module")
def resized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Launcher]]:
    """A job that went 1, 3, 2, 4, 1, 3, 2: by hints, and once by notice."""
    folder = tmp_path_factory.mktemp("resized")
    hints = folder / "hints.json"
    allow(hints, 1)
    with launched("--nodes", "1:4", "--hints", hints, "--", SCRIPT, options(folder), cwd=folder) as job:
        last = formed(job, 1, 0)
        allow(hints, 3)
        last = formed(job, 3, last["generation"])
        os.kill(job.node_pid(last["members"][1]["node"]), signal.SIGTERM)
        last = formed(job, 2, last["generation"])
        for size in (4, 1, 3, 2):
            allow(hints, size)
            last = formed(job, size, last["generation"])
        (folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        yield folder, job


@pytest.mark.quick
@TOGETHER
def test_the_same_training_through_six_resizes(resized: tuple[Path, Launcher]) -> None:
    folder, job = resized
    sizes = [event["world_size"] for event in job.events.of("generation_formed")]
    wanted = iter(sizes)
    assert all(size in wanted for size in (1, 3, 2, 4, 1, 3, 2)), sizes
    ledgers = read_ledgers(folder)
    steps = counted(ledgers)
    plain = train_plain(SAMPLES, BATCH, len(steps))
    assert_same_model(folder, plain)
    for step, rows in steps.items():
        row = next(r for r in reversed(rows) if r["sync"])
        assert row["loss"] == pytest.approx(plain.losses[step], rel=1e-9)
        assert row["lr"] == pytest.approx(plain.rates[step], rel=1e-12)
    assert job.events.of("job_finished")[0]["steps"] == len(steps)
    assert_no_process(job.work_dir)


@pytest.mark.quick
@TOGETHER
def test_each_sample_once_in_order_through_six_resizes(resized: tuple[Path, Launcher]) -> None:
    folder, _ = resized
    assert assert_each_sample_once(read_ledgers(folder), SAMPLES, BATCH, MICRO) > 10


@pytest.mark.quick
@TOGETHER
def test_survivors_keep_their_processes(resized: tuple[Path, Launcher]) -> None:
    folder, job = resized
    member_of_pid = {rows[0]["pid"]: rows[0]["member"] for rows in read_ledgers(folder)}
    assert len(set(member_of_pid.values())) == len(member_of_pid), "a member had two processes"
    history = [{m["member"] for m in event["members"]} for event in job.events.of("generation_formed")]
    assert all(before & after for before, after in zip(history, history[1:], strict=False)), "nobody survived a resize"


def test_a_slow_joiner_costs_the_others_no_step(tmp_path: Path) -> None:
    """Its slow start and its slow first forward pass are its own: the others train on meanwhile."""
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    script = options(tmp_path, slow_start=2.0, slow_forward=3.0, workers=2)
    with launched("--nodes", "1:2", "--hints", hints, "--", SCRIPT, script, cwd=tmp_path) as job:
        formed(job, 1, 0)
        before = job.events.of("progress")[-1]["step"]
        allow(hints, 2)
        event = formed(job, 2, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert event["first_step"] - before > 100, "the others waited for the joiner"
    steps = assert_each_sample_once(read_ledgers(tmp_path), SAMPLES, BATCH, MICRO)
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))


def test_a_joiner_that_dies_in_its_first_step_costs_that_step_alone(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    with launched(
        "--nodes", "1:2", "--hints", hints, "--", SCRIPT, options(tmp_path, die="admitted"), cwd=tmp_path
    ) as job:
        formed(job, 1, 0)
        allow(hints, 2)
        failed = job.events.wait("node_failed", timeout=LONG)
        formed(job, 2, 1)  # the node that takes its place
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert "SIGKILL" in failed["message"]
    ledgers = read_ledgers(tmp_path)
    steps = assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO)
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))
    assert_no_process(job.work_dir)


@pytest.mark.thorough
def test_augmented_samples_are_the_same_at_any_size_and_with_any_workers(tmp_path: Path) -> None:
    """Each sample once, by the sum of all that reached the model in each step."""
    sums = []
    for name, nodes, workers in (("one", "1:1", 0), ("three", "3:3", 2)):
        folder = tmp_path / name
        folder.mkdir()
        script = options(folder, augment=True, epochs=2, workers=workers, pace=0.0)
        with launched("--nodes", nodes, "--", SCRIPT, script, cwd=folder) as job:
            assert job.wait(LONG) == 0, job.stderr
        steps = counted(read_ledgers(folder))
        sums.append([sum(row["sum"] for row in steps[step]) for step in sorted(steps)])
        assert_no_process(job.work_dir)
    assert len(sums[0]) == 10
    assert sums[0] == pytest.approx(sums[1], rel=1e-12)


@pytest.mark.thorough
def test_the_nodes_that_the_hint_names_leave_and_new_ones_come_when_there_is_room(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 3)
    with launched("--nodes", "1:3", "--hints", hints, "--", SCRIPT, options(tmp_path), cwd=tmp_path) as job:
        first = formed(job, 3, 0)
        job_id = json.loads((job.work_dir / "job.json").read_text())["id"]
        entry = {"match": {"id": job_id}, "growAfterSeconds": 0}
        allow(hints, 1, {**entry, "gpus": {"allowed": 2}, "leave": [1]})
        second = formed(job, 2, first["generation"])
        allow(hints, 1, {**entry, "gpus": {"allowed": 3}, "leave": [2, 3]})
        third = formed(job, 3, second["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    nodes = [{member["node"] for member in event["members"]} for event in (first, second, third)]
    assert nodes == [{1, 2, 3}, {2, 3}, {2, 3, 4}], "the third asks for no node to go: none is too many"
    assert {event["node"]: event["cause"] for event in job.events.of("node_left")} == {1: "hint"}
    assert_each_sample_once(read_ledgers(tmp_path), SAMPLES, BATCH, MICRO)
