"""A loss is nothing to any kind of training: gradient scalers, several optimizers, statistics and masks that depend on
how a step is divided, sums that a script asks for alone; and to an exception that may cost a node.
"""

from __future__ import annotations

import json
import math
import signal
from functools import partial
from pathlib import Path

import pytest
import torch

from elastic_launcher.torch import rng
from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.ledgers import SCRIPT, assert_same_model, train_plain
from tests.support.losses import BATCH as SUDDEN_BATCH
from tests.support.losses import SAMPLES as SUDDEN_SAMPLES
from tests.support.losses import assert_same_training, options
from tests.support.reference_step import replay_step
from tests.support.resizes import LONG, formed
from tests.support.scripts import variants
from tests.support.scripts.variants import BATCH, SAMPLES, Trained, X, Y
from tests.support.step_indices import step_indices

EPOCHS = 8
STEPS = EPOCHS * math.ceil(SAMPLES / BATCH)
thorough = partial(pytest.param, marks=pytest.mark.thorough)


def play(folder: Path, kind: str, faults: str) -> Launcher:
    """Trains to the end, with these faults on the way."""
    script = json.dumps({"folder": str(folder), "kind": kind, "epochs": EPOCHS})
    arguments = ("--nodes", "3:3", "--", variants.__file__, script)
    with launched(*arguments, cwd=folder, environment={"ELASTIC_FAULT": faults}) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert job.events.of("job_finished")[0]["steps"] == STEPS
    assert_no_process(job.work_dir)
    return job


def chosen(step: int) -> torch.Tensor:
    epoch, in_epoch = divmod(step, math.ceil(SAMPLES / BATCH))
    return torch.from_numpy(step_indices(SAMPLES, BATCH, variants.SEED, epoch, in_epoch, True, False))


def assert_same_models(folder: Path, plain: Trained) -> None:
    found = torch.load(folder / "model.pt", weights_only=True)
    for number, model in enumerate(variants.models(plain)):
        for name, wanted in model.state_dict().items():
            there = found[f"model {number}"][name]
            assert torch.allclose(there, wanted, rtol=1e-9, atol=1e-9), f"model {number}: {name}"


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        thorough("scaler", "reduction@12:1", id="a scaler, in the reduction"),
        thorough("scaler", "break=reduced@12:2", id="a scaler, whose reduction is lost on one rank"),
        thorough("gan", "step@12:1", id="two optimizers, after the first one's reduction"),
        thorough("gan", "reduction@12:3", id="two optimizers, in the first one's reduction"),
        pytest.param("gan", "break=reduced@12:1", id="two optimizers, the first reduction is lost on one rank"),
        thorough("scaled gan", "step@12:1", id="two optimizers and a scaler, after the first one's reduction"),
        thorough("sum", "break=reduced@12:1", id="two backward passes, the first reduction is lost on one rank"),
    ],
)
def test_any_training_is_the_plain_one_through_a_loss(tmp_path: Path, kind: str, faults: str) -> None:
    job = play(tmp_path, kind, faults)
    assert len(job.events.of("node_lost")) == (not faults.startswith("break"))
    plain = variants.KINDS[kind]()
    for step in range(STEPS):
        plain.micro_batch(X[chosen(step)], Y[chosen(step)], backward)
    assert_same_models(tmp_path, plain)


@pytest.mark.thorough
def test_a_gradient_that_a_loss_takes_after_another_optimizer_stepped_restarts_the_job(tmp_path: Path) -> None:
    job = play(tmp_path, "turns", "step@12:1")
    said = [event["message"] for event in job.events.of("warning")]
    assert any("all nodes restart from" in message for message in said), said
    plain = variants.KINDS["turns"]()
    for step in range(STEPS):
        plain.micro_batch(X[chosen(step)], Y[chosen(step)], backward)
    assert_same_models(tmp_path, plain)


def backward(loss: torch.Tensor, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Leaves gradients where `job.backward` would: in the parameters of one optimizer."""
    wanted = None if optimizer is None else [p for group in optimizer.param_groups for p in group["params"]]
    loss.backward(inputs=wanted)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("faults", ["reduction@12:1", pytest.param("micro-batch@12:3", marks=pytest.mark.thorough)])
def test_statistics_and_masks_follow_the_history_of_world_sizes(tmp_path: Path, faults: str) -> None:
    """The same as a training without any disturbance that has the world sizes of the events."""
    job = play(tmp_path, "dropout", faults)
    history = [(event["first_step"], event["world_size"]) for event in job.events.of("generation_formed")]
    assert [size for _, size in history[:2]] == [3, 2]
    plain = variants.Dropped()
    device = torch.device("cpu")
    for step in range(STEPS):
        indices = chosen(step)
        world_size = [size for first_step, size in history if first_step <= step][-1]

        def loss(part: slice, indices: torch.Tensor = indices) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(plain.model(X[indices[part]]), Y[indices[part]])

        def begin(rank: int, step: int = step) -> None:
            rng.seed_all(rng.step_seed(0, step, rank), device)

        replay_step(plain.model, loss, len(indices), world_size, 5, begin)
        plain.optimizer.step()
        plain.optimizer.zero_grad()
    assert_same_models(tmp_path, plain)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "faults",
    ["sums@12:1", "summed@12:3", "break=summed@12:2"],
)
def test_a_loss_in_a_sum_that_the_script_asks_for(tmp_path: Path, faults: str) -> None:
    """All that are left see one result: of all that took part, or of those that are left."""
    play(tmp_path, "reduce", faults)
    found: dict[int, set[tuple[float, float]]] = {}
    for path in tmp_path.glob("reduced-*.json"):
        step, count, mean = json.loads(path.read_text())
        found.setdefault(step, set()).add((count, mean))
    assert sorted(found) == list(range(1, STEPS + 1))
    assert all(len(values) == 1 for values in found.values()), found
    assert all(count in (2, 3) and mean == step for step, values in found.items() for count, mean in values)
    plain = variants.KINDS["reduce"]()
    for step in range(STEPS):
        plain.micro_batch(X[chosen(step)], Y[chosen(step)], backward)
    assert_same_models(tmp_path, plain)


@pytest.mark.parametrize(
    ("fault", "crash"),
    [
        ("segmentation fault once", signal.SIGSEGV),
        pytest.param("abort once", signal.SIGABRT, marks=pytest.mark.thorough),
    ],
)
def test_a_rank_that_crashes_costs_its_step_alone(tmp_path: Path, fault: str, crash: signal.Signals) -> None:
    """By a fault in native code, of which Python knows nothing; no `--max-failures` is needed for it."""
    with launched("--nodes", "3:3", "--", SCRIPT, options(tmp_path, fault=fault, fault_step=20), cwd=tmp_path) as job:
        formed(job, 3, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    (lost,) = job.events.of("node_lost")
    assert lost["signal"] == crash and f"was killed by {crash.name}" in lost["message"]
    assert_same_training(tmp_path, job)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("exception once", "ValueError: a mistake in the script"),
        thorough("exit 3 once", "exited with code 3 after step 20"),
    ],
)
def test_a_failure_costs_its_node_where_that_is_wanted(tmp_path: Path, fault: str, said: str) -> None:
    script = options(tmp_path, fault=fault, fault_step=20)
    with launched("--nodes", "3:3", "--max-failures", "1", "--", SCRIPT, script, cwd=tmp_path) as job:
        formed(job, 3, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    lost = job.events.of("node_lost")
    assert [event["node"] for event in lost] == [2] and said in lost[0]["message"]
    assert_same_training(tmp_path, job)


@pytest.mark.thorough
def test_one_exception_more_than_is_wanted_ends_the_job(tmp_path: Path) -> None:
    script = options(tmp_path, fault="exception", fault_step=20)
    with launched("--nodes", "3:3", "--max-failures", "1", "--", SCRIPT, script, cwd=tmp_path) as job:
        assert job.wait(LONG) == 1, job.stderr
        assert_no_process(job.work_dir)
    assert len(job.events.of("node_lost")) == 1
    assert "ValueError: a mistake in the script" in job.events.of("job_finished")[0]["message"]


@pytest.mark.thorough
def test_a_death_in_the_code_after_the_loop_has_all_do_it_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    script = options(tmp_path, epochs=4, die="after")
    flags = ("--nodes", "2:2", "--checkpoint-every", "5 steps")
    with launched(*flags, "--", SCRIPT, script, cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    said = [event["message"] for event in job.events.of("warning")]
    assert any("what it had to do there may be missing; all nodes restart" in message for message in said), said
    saved = torch.load(tmp_path / "model.pt")
    assert saved["step"] == saved["state"]["steps"] == 4 * math.ceil(SUDDEN_SAMPLES / SUDDEN_BATCH)
    assert_same_model(tmp_path, train_plain(SUDDEN_SAMPLES, SUDDEN_BATCH, saved["step"]))
