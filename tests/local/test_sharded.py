"""A model that is sharded within each node trains as one plain process does, through resizes and losses of nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elastic_launcher.config import ExitCode
from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, allow, formed
from tests.support.scripts.shard_memory import MODEL_BYTES
from tests.support.scripts.shard_train import SEED, Options, Texts, Transformer, loss_of, model_as_built, optimizer_of
from tests.support.step_indices import step_indices

SCRIPT = SCRIPTS / "shard_train.py"


def train_plain(options: Options, steps: int) -> tuple[Transformer, list[float], list[float]]:
    """Returns the model after so many steps of plain torch, and each step's loss and gradient norm."""
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
    return model, losses, norms


def assert_plain_training(options: Options, job: Launcher) -> int:
    """Fails unless what has been trained is what plain torch trains; returns the number of steps."""
    folder = Path(options.folder)
    end = torch.load(folder / "end.pt", weights_only=True, map_location="cpu")
    steps: int = end["steps"]
    plain, losses, norms = train_plain(options, steps)
    close = {"rel": 0.02, "abs": 0.02} if options.mixed else {"rel": 1e-10, "abs": 1e-11}
    begun = {event["first_step"] for event in job.events.of("generation_formed")}
    computed = set()
    for file in folder.glob("*.jsonl"):
        for row in map(json.loads, file.read_text().splitlines()):
            assert row["loss"] == pytest.approx(losses[row["step"] - 1], **close)
            if row["norm"] or row["step"] not in begun:  # only a step that broke can have been taken from another node
                assert row["norm"] == pytest.approx(norms[row["step"] - 1], **close)
                computed.add(row["step"])
    assert computed == set(range(1, steps + 1))
    for name, tensor in plain.state_dict().items():
        assert end["model"][name].numpy() == pytest.approx(tensor.numpy(), **close), name
    scores = plain(Texts(options.samples).tokens).detach()
    assert end["scores"].double().numpy() == pytest.approx(
        scores.flatten(1).numpy(), **{**close, "abs": close["abs"] * 5}
    )
    assert end["sums"] == pytest.approx({"squares": scores.square().sum().item(), "count": options.samples}, **close)
    assert_no_process(job.work_dir)
    return steps


def test_nodes_of_two_train_the_plain_model_through_a_growth_and_a_loss(tmp_path: Path) -> None:
    hints, options = tmp_path / "hints.json", Options(str(tmp_path), pace=0.005)
    allow(hints, 2)
    arguments = ("--nodes", "1:2", "--nproc-per-node", "2", "--hints", hints, "--", SCRIPT, json.dumps(vars(options)))
    with launched(*arguments, cwd=tmp_path) as job:
        formed(job, 2, 0)
        allow(hints, 4)
        last = formed(job, 4, 1)
        pids = {member["member"]: member["pid"] for node in job.status()["nodes"] for member in node["members"]}
        os.kill(pids[last["members"][-1]["member"]], signal.SIGKILL)
        last = formed(job, 2, last["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert assert_plain_training(options, job) > last["first_step"]


@pytest.mark.thorough
@pytest.mark.parametrize(("each", "most", "last"), [(2, 3, 2), (4, 2, 1)], ids=["nodes of two", "nodes of four"])
def test_nodes_train_the_plain_model_through_a_growth_and_a_notice(
    each: int, most: int, last: int, tmp_path: Path
) -> None:
    hints, options = tmp_path / "hints.json", Options(str(tmp_path), pace=0.005)
    allow(hints, each)
    arguments = ("--nodes", f"1:{most}", "--nproc-per-node", str(each), "--hints", hints)
    with launched(*arguments, "--", SCRIPT, json.dumps(vars(options)), cwd=tmp_path) as job:
        formed(job, each, 0)
        allow(hints, each * most)
        grown = formed(job, each * most, 1)
        allow(hints, each * last)
        shrunk = formed(job, each * last, grown["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert assert_plain_training(options, job) > shrunk["first_step"]


FAULTS = {
    "a rank that breaks after the reduction, with its node, takes the step from another node": "break=reduced@6:3",
    "ranks of two nodes that break, one after the other": "break=reduced@6:2,break=reduced@12:3,break=reduction@18:4",
    "a rank that breaks after an evaluation, with its node, takes the result from another node": "break=summed@30:3",
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
def test_where_no_node_is_left_the_next_one_takes_the_last_checkpoint(tmp_path: Path) -> None:
    options = Options(str(tmp_path), epochs=6)
    with launched(
        *("--nodes", "1:1", "--nproc-per-node", "2", "--checkpoint-every", "5 steps"),
        *("--", SCRIPT, json.dumps(vars(options))),
        cwd=tmp_path,
        environment={"ELASTIC_FAULT": "reduction@12:2"},
    ) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert 0 < job.events.of("generation_formed")[1]["first_step"] <= 12
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
@pytest.mark.parametrize(("batch", "micro"), [(25, 3), (3, 2)])
def test_two_of_three_nodes_are_killed_at_once(batch: int, micro: int, tmp_path: Path) -> None:
    options = Options(str(tmp_path), samples=26, batch=batch, micro=micro, pace=0.01)
    arguments = ("--nodes", "1:3", "--nproc-per-node", "2", "--", SCRIPT, json.dumps(vars(options)))
    with launched(*arguments, cwd=tmp_path) as job:
        last = formed(job, 6, 0)
        for node in {member["node"] for member in last["members"][2:]}:
            os.kill(job.node_pid(node), signal.SIGKILL)
        last = formed(job, 6, last["generation"])
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
def test_no_rank_has_more_of_the_model_than_under_fsdp_alone(tmp_path: Path) -> None:
    script = SCRIPTS / "shard_memory.py"
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back at once
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, script, "fsdp", tmp_path], env=os.environ | environment, check=True, timeout=LONG)
    hints = tmp_path / "hints.json"
    allow(hints, 2)
    arguments = ("--nodes", "1:2", "--nproc-per-node", "2", "--hints", hints, "--checkpoint-every", "1000000 steps")
    with launched(*arguments, "--", script, "job", tmp_path, cwd=tmp_path, environment=environment) as job:
        formed(job, 2, 0)
        allow(hints, 4)
        begun = formed(job, 4, 1)["first_step"]
        job.events.wait("progress", lambda event: event["step"] > begun, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    alone, grown = ([int(file.read_text()) for file in tmp_path.glob(f"{side}-*")] for side in ("fsdp", "job"))
    part = MODEL_BYTES / 2
    assert len(alone) == 2 and all(2 * part < one < 4 * part for one in alone), alone  # and two layers, gathered
    assert len(grown) == 4 and all(one < max(alone) + part / 2 for one in grown), (grown, alone)
