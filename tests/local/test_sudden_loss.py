"""Losing any rank at any moment loses nothing: the survivors do the step again, the node is replaced, the model is the
same as without it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.launches import Launcher, assert_no_process, launched, until
from tests.support.ledgers import SCRIPT, assert_same_model, train_plain
from tests.support.losses import BATCH, SAMPLES, assert_same_sums, assert_same_training, options
from tests.support.resizes import LONG, allow, formed


def play(
    folder: Path,
    faults: str,
    *,
    nodes: int = 3,
    nproc: int = 1,
    lost: tuple[int, ...] = (),
    replaced: bool = False,
    **more: Any,
) -> Launcher:
    """Plays a job in which these faults happen, until the others train on; then it is to end well.

    Args:
        folder: For all that is written.
        faults: What happens (see `elastic_launcher.torch.fault_injection`).
        nodes: How many there are.
        nproc: Ranks on each.
        lost: The nodes that are lost.
        replaced: Whether to wait until all of them are replaced.
        more: Options of the script.
    """
    arguments = ("--nodes", f"{nodes}:{nodes}", "--nproc-per-node", str(nproc))
    with launched(
        *arguments, "--", SCRIPT, options(folder, **more), cwd=folder, environment={"ELASTIC_FAULT": faults}
    ) as job:
        until(lambda: len(job.events.of("node_lost")) >= len(lost), f"nodes {lost} are lost", LONG)
        formed(job, (nodes if replaced else nodes - len(lost)) * nproc, 1)
        (folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert {event["node"] for event in job.events.of("node_lost")} == set(lost)
    assert_same_training(folder, job)
    return job


KILLED = [
    pytest.param("reduction@20:1", 3, 1, (1,), 2, marks=pytest.mark.quick, id="oldest in the reduction"),
    pytest.param("reduction@20:3", 3, 1, (3,), 0, marks=pytest.mark.thorough, id="youngest in the reduction"),
    pytest.param("micro-batch@20:1", 3, 1, (1,), 0, marks=pytest.mark.thorough, id="oldest in a micro-batch"),
    pytest.param("micro-batch@20:3", 3, 1, (3,), 2, marks=pytest.mark.thorough, id="youngest in a micro-batch"),
    pytest.param(
        "micro-batch@20:2", 2, 1, (2,), 0, marks=pytest.mark.thorough, id="the only other one in a micro-batch"
    ),
    pytest.param(
        "reduced@20:1", 2, 1, (1,), 2, marks=pytest.mark.thorough, id="the only other one between reduction and step"
    ),
    pytest.param("reduced@20:3", 3, 1, (3,), 0, marks=pytest.mark.thorough, id="youngest between reduction and step"),
    pytest.param("step@20:1", 3, 1, (1,), 0, marks=pytest.mark.thorough, id="oldest in the step"),
    pytest.param("stepped@20:2", 3, 1, (2,), 2, marks=pytest.mark.thorough, id="middle after the step"),
    pytest.param(
        "reduction@20:1,reduction@20:4", 4, 1, (1, 4), 0, marks=pytest.mark.thorough, id="two at once in the reduction"
    ),
    pytest.param(
        "micro-batch@20:1,micro-batch@20:4",
        4,
        1,
        (1, 4),
        0,
        marks=pytest.mark.thorough,
        id="two at once in a micro-batch",
    ),
    pytest.param(
        "stepped@20:2,stepped@20:3", 4, 1, (2, 3), 2, marks=pytest.mark.thorough, id="two at once after the step"
    ),
    pytest.param(
        "micro-batch@20:2,step@20:3", 4, 1, (2, 3), 2, marks=pytest.mark.thorough, id="two, one after the other"
    ),
    pytest.param("reduction@20:3", 2, 2, (2,), 2, marks=pytest.mark.thorough, id="one of two on the younger node"),
    pytest.param("step@20:2", 2, 2, (1,), 0, marks=pytest.mark.thorough, id="one of two on the older node"),
    pytest.param(
        "reduction@20:1,form@2:3",
        4,
        1,
        (1, 3),
        0,
        marks=pytest.mark.thorough,
        id="another one while a generation forms",
    ),
    pytest.param(
        "reduction@20:1,meet@20:2",
        4,
        1,
        (1, 2),
        2,
        marks=pytest.mark.thorough,
        id="another one while the survivors meet",
    ),
]


@pytest.mark.parametrize(("faults", "nodes", "nproc", "lost", "workers"), KILLED)
def test_ranks_that_are_killed_cost_their_step_alone(
    tmp_path: Path, faults: str, nodes: int, nproc: int, lost: tuple[int, ...], workers: int
) -> None:
    replaced = faults in ("reduction@20:1", "reduction@20:1,reduction@20:4") or nproc > 1
    job = play(tmp_path, faults, nodes=nodes, nproc=nproc, lost=lost, replaced=replaced, workers=workers)
    assert all(event["signal"] == signal.SIGKILL and event["step"] <= 21 for event in job.events.of("node_lost"))


AHEAD = [
    pytest.param("break=reduced@20:2", (), 0, id="one has lost the reduction"),
    pytest.param(
        "break=reduced@20:1",
        (),
        7,
        marks=pytest.mark.thorough,
        id="the oldest has lost it, and the others evaluate already",
    ),
    pytest.param(
        "break=reduced@20:1,break=reduced@20:2", (), 7, marks=pytest.mark.thorough, id="all but one have lost it"
    ),
    pytest.param(
        "reduced@20:1,break=reduced@20:2", (1,), 0, marks=pytest.mark.thorough, id="one has lost it and one is dead"
    ),
    pytest.param(
        "break=reduced@20:3,give@20:1", (1,), 0, marks=pytest.mark.thorough, id="who gives the state dies over it"
    ),
    pytest.param("break=summed@20:2", (), 7, marks=pytest.mark.thorough, id="one has lost an evaluation"),
    pytest.param(
        "break=summed@20:1,summed@20:3",
        (3,),
        7,
        marks=pytest.mark.thorough,
        id="one has lost an evaluation and one is dead",
    ),
]


@pytest.mark.parametrize(("faults", "lost", "evaluate"), AHEAD)
def test_the_most_advanced_gives_its_state_to_those_that_are_behind(
    tmp_path: Path, faults: str, lost: tuple[int, ...], evaluate: int
) -> None:
    """Some ranks have completed an operation when others are told that it broke off."""
    play(tmp_path, faults, lost=lost, evaluate=evaluate)
    assert_same_sums(tmp_path)


@pytest.mark.thorough
def test_a_comparison_of_parameters_that_is_left_open_is_of_the_step_in_which_it_is_made(tmp_path: Path) -> None:
    """The parameters are compared after a checkpoint; here that step breaks off, and once more on one rank alone."""
    faults = "break=reduction@20:1,break=reduced@20:2"
    arguments = ("--nodes", "3:3", "--checkpoint-every", "5 steps", "--", SCRIPT, options(tmp_path))
    with launched(*arguments, cwd=tmp_path, environment={"ELASTIC_FAULT": faults}) as job:
        formed(job, 3, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_same_training(tmp_path, job)


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.thorough), 2])
@pytest.mark.parametrize(
    ("faults", "lost"),
    [
        pytest.param("sums@20:1", (1,), marks=pytest.mark.thorough),
        ("summed@20:3", (3,)),
        pytest.param("sums@20:1,sums@20:2", (1, 2), marks=pytest.mark.thorough),
    ],
)
def test_an_evaluation_is_done_again_whole(tmp_path: Path, faults: str, lost: tuple[int, ...], workers: int) -> None:
    play(tmp_path, faults, lost=lost, evaluate=7, workers=workers)
    assert_same_sums(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", [1, 3])
def test_a_frozen_rank_is_lost_while_others_wait_for_it(tmp_path: Path, frozen: int) -> None:
    arguments = ("--nodes", "3:3", "--heartbeat-timeout", "3", "--", SCRIPT, options(tmp_path))
    with launched(*arguments, cwd=tmp_path) as job:
        formed(job, 3, 0)
        pids = {member["member"]: member["pid"] for node in job.status()["nodes"] for member in node["members"]}
        os.kill(pids[frozen], signal.SIGSTOP)
        lost = job.events.wait("node_lost", timeout=LONG)
        formed(job, 3, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert (lost["node"], lost["signal"]) == (frozen, None)
    assert "gave no sign of life" in lost["message"]
    assert_same_training(tmp_path, job)


@pytest.mark.parametrize(
    "faults",
    [*(pytest.param(f, marks=pytest.mark.thorough) for f in ("meet@0:1", "reduction@0:1", "stepped@0:2")), "give@0:1"],
)
def test_a_death_in_the_first_generation_costs_that_node_only(tmp_path: Path, faults: str) -> None:
    with launched(
        "--nodes", "3:3", "--", SCRIPT, options(tmp_path), cwd=tmp_path, environment={"ELASTIC_FAULT": faults}
    ) as job:
        formed(job, 3, 0)
        until(lambda: job.events.of("node_failed") + job.events.of("node_lost"), "a node is lost", LONG)
        until(lambda: len(job.events.of("node_warm")) > 3, "another one is there", LONG)
        formed(job, 3, 1 if job.events.of("node_lost") else 0)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_same_training(tmp_path, job)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loss_of_the_rank_that_gives_a_joiner_its_state(tmp_path: Path, workers: int) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 2)
    arguments = ("--nodes", "2:3", "--hints", hints, "--", SCRIPT, options(tmp_path, workers=workers))
    with launched(*arguments, cwd=tmp_path, environment={"ELASTIC_FAULT": "give@20:1"}) as job:
        formed(job, 2, 0)
        job.events.wait("progress", lambda event: event["step"] > 30, LONG)
        allow(hints, 3)
        job.events.wait("node_lost", timeout=LONG)
        formed(job, 3, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_same_training(tmp_path, job)


@pytest.mark.parametrize(
    "faults",
    [
        *(pytest.param(f, marks=pytest.mark.thorough) for f in ("end@20:1", "sums@20:1", "reduction@19:1")),
        "break=reduced@19:2",
    ],
)
def test_a_death_at_the_very_end(tmp_path: Path, faults: str) -> None:
    """In the last step, when its end is confirmed, in an evaluation after it: the others do what is left."""
    script = options(tmp_path, epochs=4, evaluate=1000)
    with launched("--nodes", "3:3", "--", SCRIPT, script, cwd=tmp_path, environment={"ELASTIC_FAULT": faults}) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert len(job.events.of("node_lost")) == (not faults.startswith("break"))
    assert_same_training(tmp_path, job)
    assert_same_sums(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "faults"),
    [
        pytest.param(1, "reduction@20:1", marks=pytest.mark.thorough, id="the only one"),
        pytest.param(3, "reduction@20:1,reduction@20:2,reduction@20:3", id="all at once"),
        pytest.param(
            2,
            "break=reduced@20:2,give@20:1",
            marks=pytest.mark.thorough,
            id="who gives the state, and its taker has a part of it",
        ),
    ],
)
def test_where_nobody_is_left_who_holds_the_state_the_job_restarts_from_the_last_checkpoint(
    tmp_path: Path, nodes: int, faults: str
) -> None:
    """Some steps are done again: all in the same way."""
    arguments = ("--nodes", f"{nodes}:{nodes}", "--checkpoint-every", "5 steps", "--", SCRIPT, options(tmp_path))
    with launched(*arguments, cwd=tmp_path, environment={"ELASTIC_FAULT": faults}) as job:
        until(lambda: job.events.of("node_lost"), "a node is lost", LONG)
        again = formed(job, nodes, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    assert again["cause"] == "failure" and 0 < again["first_step"] <= 21 and again["pause_seconds"] > 0
    said = [event["message"] for event in job.events.of("warning")]
    assert any("no other node holds the state; all nodes restart from step" in message for message in said), said
    steps = torch.load(tmp_path / "model.pt", map_location="cpu")["step"]
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))


def test_a_step_in_which_ranks_die_again_and_again_ends_the_job(tmp_path: Path) -> None:
    """Whoever is rank 1 in step 3 dies there."""
    with launched("--nodes", "4:4", "--", SCRIPT, options(tmp_path, fault="kill"), cwd=tmp_path) as job:
        assert job.wait(LONG) == 1, job.stderr
        assert_no_process(job.work_dir)
    message = job.events.of("job_finished")[0]["message"]
    assert "step 3 broke off 3 times in a row" in message and "SIGKILL" in message, message
