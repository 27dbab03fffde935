"""A micro-batch that is too large for memory costs no training: the step is done again with smaller ones, and the model
is that of one process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.launches import Launcher, assert_no_process, launched
from tests.support.resizes import LONG, formed
from tests.support.scripts import memory_train
from tests.support.scripts.memory_train import BATCH, EPOCHS, SAMPLES, SEED, X, Y, build, losses
from tests.support.step_indices import step_indices

STEPS = EPOCHS * math.ceil(SAMPLES / BATCH)


def train_plain(options: dict[str, Any], steps: int) -> dict[str, torch.Tensor]:
    """Returns the weights of one process with enough memory."""
    model = build(options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        epoch, in_epoch = divmod(step, math.ceil(SAMPLES / BATCH))
        chosen = torch.from_numpy(step_indices(SAMPLES, BATCH, SEED, epoch, in_epoch, True, False))
        optimizer.zero_grad()
        for loss in losses(model, X[chosen], Y[chosen], SAMPLES, options.get("where", "backward")):
            loss.backward()
        optimizer.step()
    return model.state_dict()


def play(
    folder: Path,
    nodes: str,
    code: int = 0,
    meanwhile: Callable[[Launcher], object] = lambda job: None,
    given: Sequence[str] = (),
    **options: Any,
) -> Launcher:
    """Trains to the end."""
    script = json.dumps({"folder": str(folder), **options})
    with launched("--nodes", nodes, *given, "--", memory_train.__file__, script, cwd=folder) as job:
        meanwhile(job)
        assert job.wait(LONG) == code, job.stderr
    assert_no_process(job.work_dir)
    return job


def assert_same_model(folder: Path, **options: Any) -> None:
    found = torch.load(folder / "model.pt", weights_only=True)
    assert found["step"] == STEPS or "stop" in options
    for name, wanted in train_plain(options, found["step"]).items():
        assert torch.allclose(found["model"][name], wanted, rtol=1e-11, atol=1e-12), name


def sizes(folder: Path, member: int) -> list[tuple[int, int]]:
    """Returns step and samples of each micro-batch of a member that came to its end."""
    lines = (folder / f"sizes-{member}.txt").read_text().splitlines()
    return [(int(step), int(size)) for step, size in (line.split() for line in lines)]


def lowered(job: Launcher) -> list[tuple[int, int, int]]:
    return sorted((event["member"], event["old"], event["new"]) for event in job.events.of("micro_batch_lowered"))


def test_a_backward_pass_that_runs_out_of_memory_is_done_again_in_place(tmp_path: Path) -> None:
    job = play(tmp_path, "3:3", fits={"1": 3}, since=7)  # the others keep the micro-batch that they have
    assert lowered(job) == [(1, 4, 2), (1, 8, 4)]
    assert {event["device"] for event in job.events.of("micro_batch_lowered")} == {"cpu"}
    assert len(job.events.of("generation_formed")) == 1
    assert max(size for step, size in sizes(tmp_path, 1) if step > 8) == 2
    assert max(size for step, size in sizes(tmp_path, 2) if step > 8) == 8
    assert_same_model(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"wide": True}, id="parts of the gradient are being reduced"),
        pytest.param({"where": "second"}, marks=pytest.mark.thorough, id="another gradient of the step is reduced"),
    ],
)
def test_all_ranks_do_the_step_again_where_some_of_it_is_reduced(tmp_path: Path, options: dict[str, Any]) -> None:
    job = play(tmp_path, "2:2", fits={"1": 2, "2": 6}, since=7, **options)
    assert lowered(job)[-3:] == [(1, 6, 3), (1, 12, 6), (2, 12, 6)]
    assert not job.events.of("node_lost")
    assert job.events.of("generation_formed")[-1]["cause"] == "failure"
    assert_same_model(tmp_path, **options)


def test_a_forward_pass_that_runs_out_of_memory_costs_the_process_which_comes_back_with_smaller_ones(
    tmp_path: Path,
) -> None:
    stop = tmp_path / "stop"

    def joined(job: Launcher) -> None:
        formed(job, 2, formed(job, 1, 1)["generation"])
        stop.touch()

    job = play(tmp_path, "2:2", meanwhile=joined, fits={"1": 6}, where="forward", since=7, stop=str(stop))
    assert lowered(job) == [(1, 12, 6)]
    lost = job.events.of("node_lost")
    assert [event["node"] for event in lost] == [1] and "ran out of memory" in lost[0]["message"]
    assert max(size for _, size in sizes(tmp_path, 3)) == 6
    assert_same_model(tmp_path, stop=stop)


@pytest.mark.parametrize(
    "since",
    [
        pytest.param(-1, id="before it is admitted"),
        pytest.param(7, marks=pytest.mark.thorough, id="in the training, from whose beginning the job restarts"),
    ],
)
def test_processes_that_come_back_with_smaller_micro_batches_do_not_count_as_failures(
    tmp_path: Path, since: int
) -> None:
    job = play(tmp_path, "1:1", fits={"": 1}, where="forward", since=since)
    assert lowered(job) == [(1, 24, 12), (2, 12, 6), (3, 6, 3), (4, 3, 1)]
    assert_same_model(tmp_path)


@pytest.mark.parametrize(
    ("where", "given", "changes", "most"),
    [
        pytest.param("backward", ["--max-batch-per-gpu", "auto"], [(1, 11, 10)], 10, id="in job.backward"),
        pytest.param("forward", [], [(1, 16, 8)], 8, marks=pytest.mark.thorough, id="where it costs the process"),
    ],
)
def test_the_largest_micro_batch_that_fits_is_found_in_the_rehearsal(
    tmp_path: Path, where: str, given: list[str], changes: list[tuple[int, int, int]], most: int
) -> None:
    job = play(tmp_path, "1:1", given=given, fits={"": 10}, where=where, m=None if given else "auto")
    assert lowered(job) == changes
    member = 1 + len(job.events.of("node_failed"))
    assert {size for _, size in sizes(tmp_path, member)} == {BATCH // math.ceil(BATCH / most), 1}  # the tail is one
    assert_same_model(tmp_path)


@pytest.mark.parametrize("where", [pytest.param("forward", marks=pytest.mark.thorough), "backward"])
def test_a_sample_that_does_not_fit_ends_the_job_and_the_message_says_what_to_do(tmp_path: Path, where: str) -> None:
    job = play(tmp_path, "1:1", 1, fits={"": 0}, where=where, guarded=True, m=5)
    assert lowered(job) == [(1, 2, 1), (1, 5, 2)]
    assert "CUDA out of memory" in job.last_message
    assert "Use a device with more memory, a smaller model" in job.last_message
