"""One script, unmodified, under plain python, plain torchrun and our launcher: the same training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.launches import assert_no_process, launched, until
from tests.support.ledgers import SCRIPT, assert_each_sample_once, assert_same_model, counted, read_ledgers, train_plain

SAMPLES, BATCH, MICRO, EPOCHS = 97, 24, 5, 2
LONG = 150.0  # torchrun and its ranks import torch on a machine that does other things too
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def options(folder: Path, **more: object) -> str:
    return json.dumps(
        {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": MICRO, "epochs": EPOCHS, **more}
    )


def run(command: list[str], folder: Path, **more: object) -> subprocess.CompletedProcess[str]:
    """Runs the script without our launcher."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_")}
    arguments = [*command, str(SCRIPT), options(folder, **more)]
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONG)


def assert_plain_training(folder: Path, world_size: int) -> None:
    """Fails unless what ran in ``folder`` was the plain training, on that many ranks."""
    ledgers = read_ledgers(folder)
    assert {row["world_size"] for rows in ledgers for row in rows if row["rank"] is not None} == {world_size}
    steps = assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO)
    plain = train_plain(SAMPLES, BATCH, steps)
    assert steps == EPOCHS * 5
    assert_same_model(folder, plain)
    for step, rows in counted(ledgers).items():
        assert rows[-1]["loss"] == pytest.approx(plain.losses[step], rel=1e-9)
        assert rows[-1]["lr"] == pytest.approx(plain.rates[step], rel=1e-12)


@pytest.mark.parametrize(
    ("command", "world_size"),
    [pytest.param(PYTHON, 1, marks=pytest.mark.thorough), (TORCHRUN, 2)],
    ids=["python", "torchrun"],
)
def test_the_script_trains_without_our_launcher(command: list[str], world_size: int, tmp_path: Path) -> None:
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert_plain_training(tmp_path, world_size)


@pytest.mark.thorough
def test_the_script_trains_under_our_launcher(tmp_path: Path) -> None:
    with launched("--nodes", "2:2", "--", SCRIPT, options(tmp_path), cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    assert_plain_training(tmp_path, 2)


def test_a_rank_that_raises_ends_torchrun_and_leaves_no_process(tmp_path: Path) -> None:
    def living() -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if str(tmp_path) in " ".join(process.cmdline()):
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    done = run(TORCHRUN, tmp_path, fault="exception", workers=1)
    assert done.returncode == 1
    assert "ValueError: a mistake in the script" in done.stderr
    until(lambda: not living(), "the ranks end")
