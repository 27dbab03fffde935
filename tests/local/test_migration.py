"""The scripts of ``docs/migrate.md``: each as its author would run it, and the elastic one, give the same model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipelines.migration.__main__ import ADAPTIVE, ELASTIC, HERE, KERAS
from tests.support.launches import Launcher, launched
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, allow

HELD = SCRIPTS / "held.py"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu")  # one process: it starts several on GPUs only
ON_CPU = {"ACCELERATE_USE_CPU": "true"}
FOUR_STEPS = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}
TOGETHER = pytest.mark.xdist_group("migration")  # one elastic training for all


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The model of the elastic script, on one node, then two, then one."""
    folder = tmp_path_factory.mktemp("elastic")
    hints = folder / "hints.json"
    allow(hints, 1)
    arguments = ["--nodes", "1:2", "--hints", hints, "--", HELD, ELASTIC, "20", "200"]
    with launched(*arguments, cwd=folder, environment=ONE_THREAD) as job:
        job.events.wait("generation_formed", timeout=LONG)
        allow(hints, 2)
        job.events.wait("node_warm", lambda event: event["node"] == 2, LONG)
        (folder / "go-20").touch()
        job.events.wait("generation_formed", lambda event: event["world_size"] == 2, LONG)
        allow(hints, 1)
        job.events.wait("hint_applied", lambda event: event["allowed"] == 1 < event["generation"], LONG)
        (folder / "go-200").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert [event["world_size"] for event in job.events.of("generation_formed")] == [1, 2, 1]
        assert job.events.of("job_finished")[0]["steps"] == 700
    return trained(folder)


def trained(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the model that a script has saved."""
    state: dict[str, torch.Tensor] = torch.load(folder / "digits.pt", weights_only=True)
    return state


@TOGETHER
@pytest.mark.parametrize(
    ("script", "launcher", "environment"),
    [
        pytest.param("from_plain.py", (), {}, id="plain"),
        pytest.param("from_ddp.py", TORCHRUN, {}, id="ddp", marks=pytest.mark.thorough),
        pytest.param("from_accelerate.py", TORCHRUN, ON_CPU, id="accelerate-two-processes"),
        pytest.param("from_accelerate.py", ACCELERATE, FOUR_STEPS, id="accelerate-launch", marks=pytest.mark.thorough),
        pytest.param("from_runai.py", (), {}, id="runai", marks=pytest.mark.thorough),
    ],
)
def test_a_script_and_what_it_becomes_train_the_same_model(
    elastic: dict[str, torch.Tensor],
    tmp_path: Path,
    script: str,
    launcher: tuple[str, ...],
    environment: dict[str, str],
) -> None:
    command = [sys.executable, *launcher, str(HERE / script)]
    env = os.environ | ONE_THREAD | environment
    with subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True) as process:
        try:
            assert process.wait(LONG) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):  # launchers start processes of their own
                os.killpg(process.pid, signal.SIGKILL)
    before = trained(tmp_path)
    assert before.keys() == elastic.keys()
    for name, parameter in before.items():
        assert torch.allclose(elastic[name], parameter, rtol=1e-9, atol=1e-9), name


def joined_by_a_node(folder: Path, script: Path) -> Launcher:
    """Runs a script on one node, and on two from its step 20 on; returns the launcher at its end."""
    hints = folder / "hints.json"
    allow(hints, 1)
    arguments = ["--nodes", "1:2", "--hints", hints, "--", HELD, script, "20"]
    with launched(*arguments, cwd=folder, environment=ONE_THREAD) as job:
        job.events.wait("generation_formed", timeout=LONG)
        allow(hints, 2)
        job.events.wait("node_warm", lambda event: event["node"] == 2, LONG)
        (folder / "go-20").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert [event["world_size"] for event in job.events.of("generation_formed")] == [1, 2]
    return job


def test_the_script_whose_batch_adapts_learns_while_a_node_joins(tmp_path: Path) -> None:
    job = joined_by_a_node(tmp_path, ADAPTIVE)
    said = re.findall(r"epoch (\d+): accuracy ([\d.]+)", job.stdout + job.stderr)
    assert [int(epoch) for epoch, _ in said] == list(range(len(said))) and len(said) >= 30
    assert float(said[-1][1]) > 0.9
    assert all(32 < event["new"] <= 512 for event in job.events.of("batch_changed"))


@pytest.mark.thorough
def test_the_script_for_keras_learns_while_a_node_joins(tmp_path: Path) -> None:
    job = joined_by_a_node(tmp_path, KERAS)
    assert job.events.of("job_finished")[0]["steps"] == 180
    assert float(re.findall(r"accuracy: ([\d.]+)", job.stdout)[-1]) > 0.95
    assert (tmp_path / "digits.keras").exists()
