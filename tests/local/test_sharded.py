"""A model that is sharded within each node trains as one plain process does, through resizes and losses of nodes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_launcher.config import ExitCode
from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, allow, formed
from tests.support.scripts.shard_memory import MODEL_BYTES
from tests.support.scripts.shard_train import SEED, Options, Texts, loss_of, model_as_built, optimizer_of
from tests.support.step_indices import step_indices

SCRIPT = SCRIPTS / "shard_train.py"


def train_plain(options: Options, steps: int) -> tuple[dict[str, torch.Tensor], list[float], list[float]]:
    """Returns the weights after so many steps of plain torch, and each step's loss and gradient norm."""
    model = model_as_built(options.mixed)
    optimizer, texts = optimizer_of(model), Texts(options.samples)
    a_pass = -(-options.samples // options.batch)
    losses, norms = [], []
    for step in range(steps):
        epoch, at = divmod(step, a_pass)
        chosen = step_indices(options.samples, options.batch, SEED, epoch, at, True, False)
        optimizer.zero_grad()
        loss, _ = loss_of(model, texts.tokens[chosen], texts.wanted[chosen])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip).item())
        losses.append(loss.item())
        optimizer.step()
    return model.state_dict(), losses, norms


def assert_plain_training(options: Options, job: Launcher) -> int:
    """Fails unless what has been trained is what plain torch trains; returns the number of steps."""
    folder = Path(options.folder)
    end = torch.load(folder / "end.pt", weights_only=True)
    weights, losses, norms = train_plain(options, end["steps"])
    close = {"rel": 0.02, "abs": 0.02} if options.mixed else {"rel": 1e-10, "abs": 1e-11}
    rows: dict[int, dict[str, Any]] = {}
    for file in folder.glob("*.jsonl"):
        rows.update({row["step"] - 1: row for row in map(json.loads, file.read_text().splitlines())})
    assert sorted(rows) == list(range(end["steps"]))
    assert [rows[step]["loss"] for step in sorted(rows)] == pytest.approx(losses, **close)
    taken = {step for step in rows if rows[step]["norm"] == 0}  # from another node, with gradients of zeros
    assert taken <= {event["first_step"] - 1 for event in job.events.of("generation_formed")}
    assert [rows[step]["norm"] for step in sorted(rows) if step not in taken] == pytest.approx(
        [norm for step, norm in enumerate(norms) if step not in taken], **close
    )
    for name, plain in weights.items():
        assert end["model"][name].numpy() == pytest.approx(plain.numpy(), **close), name
    assert_no_process(job.work_dir)
    return int(end["steps"])


def test_nodes_of_two_train_the_plain_model_through_a_growth_and_a_loss(tmp_path: Path) -> None:
    hints, options = tmp_path / "hints.json", Options(str(tmp_path), pace=0.005)
    allow(hints, 2)
    arguments = ("--nodes", "1:2", "--nproc-per-node", "2", "--hints", hints, "--", SCRIPT, json.dumps(vars(options)))
    with launched(*arguments, cwd=tmp_path) as job:
        formed(job, 2, 0)
        allow(hints, 4)
        last = formed(job, 4, 1)
        os.kill(last["members"][-1]["pid"], signal.SIGKILL)
        last = formed(job, 2, last["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert assert_plain_training(options, job) > last["first_step"]


@pytest.mark.thorough
def test_nodes_of_two_train_the_plain_model_through_a_growth_and_a_notice(tmp_path: Path) -> None:
    hints, options = tmp_path / "hints.json", Options(str(tmp_path), pace=0.005)
    allow(hints, 2)
    arguments = ("--nodes", "1:3", "--nproc-per-node", "2", "--hints", hints, "--", SCRIPT, json.dumps(vars(options)))
    with launched(*arguments, cwd=tmp_path) as job:
        formed(job, 2, 0)
        allow(hints, 6)
        last = formed(job, 6, 1)
        allow(hints, 4)
        last = formed(job, 4, last["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert assert_plain_training(options, job) > last["first_step"]


FAULTS = {
    "a rank that breaks after the reduction, with its node, takes the step from another node": "break=reduced@6:3",
    "ranks of two nodes that break, one after the other": "break=reduced@6:2,break=reduced@12:3,break=reduction@18:4",
    "a rank is killed before the reduction": "reduction@9:4",
    "a rank is killed after the reduction": "reduced@9:1",
}


@pytest.mark.thorough
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_node_stays_whole_or_goes_whole(faults: str, tmp_path: Path) -> None:
    options = Options(str(tmp_path), epochs=6)
    with launched(
        *("--nodes", "2:2", "--nproc-per-node", "2", "--", SCRIPT, json.dumps(vars(options))),
        cwd=tmp_path,
        environment={"ELASTIC_FAULT": faults},
    ) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert job.events.of("node_lost") or job.events.of("step_redone") or "break" in faults
    assert assert_plain_training(options, job) == 30


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["recompute", "compiled", "mixed"])
def test_a_model_that_is_recomputed_compiled_or_in_bfloat16(kind: str, tmp_path: Path) -> None:
    options = Options(str(tmp_path), epochs=2, **{kind: True})
    with launched(
        *("--nodes", "2:2", "--nproc-per-node", "2", "--", SCRIPT, json.dumps(vars(options))),
        cwd=tmp_path,
        environment={"ELASTIC_FAULT": "reduction@4:4"},
    ) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert job.events.of("step_redone")
    assert assert_plain_training(options, job) == 10


@pytest.mark.thorough
@pytest.mark.parametrize(("nproc", "batch", "micro"), [(2, 25, 3), (4, 9, 1), (2, 3, 2)])
def test_two_of_three_nodes_are_killed_at_once(nproc: int, batch: int, micro: int, tmp_path: Path) -> None:
    options = Options(str(tmp_path), samples=26, batch=batch, micro=micro, pace=0.01, recompute=nproc == 4)
    arguments = ("--nodes", "1:3", "--nproc-per-node", str(nproc), "--", SCRIPT, json.dumps(vars(options)))
    with launched(*arguments, cwd=tmp_path) as job:
        last = formed(job, 3 * nproc, 0)
        for node in {member["node"] for member in last["members"][nproc:]}:
            os.kill(job.node_pid(node), signal.SIGKILL)
        last = formed(job, 3 * nproc, last["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert len(job.events.of("node_lost")) == 2
    assert assert_plain_training(options, job) > last["first_step"]


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 1)])
def test_a_checkpoint_loads_on_nodes_of_another_size(before: int, after: int, tmp_path: Path) -> None:
    options = Options(str(tmp_path), pace=0.005)
    script = ("--", SCRIPT, json.dumps(vars(options)))
    with launched("--nodes", "2:2", "--nproc-per-node", str(before), *script, cwd=tmp_path) as job:
        formed(job, 2 * before, 0)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(LONG) == ExitCode.STOPPED, job.stderr
    saved = job.events.of("checkpoint_saved")[-1]["step"]
    with launched("--nodes", "1:1", "--nproc-per-node", str(after), *script, cwd=tmp_path) as job:
        job.events.wait("progress", lambda event: event["step"] > saved + 5, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert assert_plain_training(options, job) > saved


@pytest.mark.thorough
def test_a_rank_never_has_as_much_memory_as_the_whole_model(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 4)
    arguments = ("--nodes", "1:2", "--nproc-per-node", "4", "--hints", hints, "--", SCRIPTS / "shard_memory.py")
    with launched(*arguments, tmp_path, cwd=tmp_path) as job:
        formed(job, 4, 0)
        allow(hints, 8)
        formed(job, 8, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    grown = [int(file.read_text()) for file in tmp_path.glob("rank-*")]
    assert len(grown) == 8 and MODEL_BYTES / 2 < min(grown) <= max(grown) < MODEL_BYTES
