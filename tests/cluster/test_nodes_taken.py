"""The cluster takes the nodes that make a job's minimum: the launcher stays, and goes on with others where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cluster.ends import end_training
from tests.support.cluster.stage import HINTS, LONG, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT, assert_same_model, train_plain
from tests.support.losses import BATCH, SAMPLES, options
from tests.support.resizes import formed

pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(1200),  # each node that joins takes half a minute on a busy machine
]

FOLLOW = f"--hints=configmap/{HINTS}"
PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start
SELDOM = "--checkpoint-every=1h"
"""So that what is saved is saved since nodes are told to go."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "taken") as stage:
        yield stage


def launch(stage: Stage, nodes: str, *arguments: str, **more: Any) -> str:
    """Starts a job whose growth waits for an hour; returns the uid of its launcher's pod once it trains at its size."""
    size = int(nodes.partition(":")[2])
    stage.allow(size, growAfterSeconds=3600)
    stage.launch(f"--nodes={nodes}", FOLLOW, *arguments, script=SCRIPT, argument=options(stage.folder, pace=PACE))
    formed(stage, size, 0, LONG)
    stage.events.wait("progress", lambda event: event["step"] > 3, LONG)
    (pod,) = stage.launchers()
    return str(pod["metadata"]["uid"])


def evict(stage: Stage, node: int, **options: Any) -> None:
    name = str(stage.nodes()[node]["metadata"]["name"])
    about = {"name": name, "namespace": stage.space}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about, "deleteOptions": options}
    path = f"/api/v1/namespaces/{stage.space}/pods/{name}/eviction"
    stage.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


@contextmanager
def drained(stage: Stage, node: int) -> Iterator[None]:
    """Has a node's machine take no more pods, and evicts the node, until the end."""
    machine = stage.nodes()[node]["spec"]["nodeName"]
    stage.kubectl("cordon", machine)
    try:
        evict(stage, node)
        yield
    finally:
        stage.kubectl("uncordon", machine)


def assert_went_on(stage: Stage, launcher: str, size: int) -> None:
    """Fails unless the same launcher goes on from the step that was saved, and the model is the plain one."""
    event = formed(stage, size, 1, LONG)
    (saved,) = stage.events.of("checkpoint_saved")
    assert (event["cause"], event["first_step"]) == ("notice", saved["step"])
    end_training(stage)
    assert stage.events.of("step_redone") == stage.events.of("node_lost") == []
    assert_one_launcher(stage, launcher)


def assert_one_launcher(stage: Stage, launcher: str) -> None:
    (pod,) = stage.launchers()
    assert pod["metadata"]["uid"] == launcher
    assert len(stage.events.of("job_started")) == 1
    assert "quota is there" not in stage.log()


def test_one_of_two_nodes_that_are_the_minimum_is_evicted(stage: Stage) -> None:
    launcher = launch(stage, "2:2", SELDOM)
    evict(stage, 1)
    said = stage.events.wait("nodes_wait", timeout=LONG)["message"]
    assert said.startswith("waiting for nodes, up to 1800 s (--node-timeout): node 1 must leave (notice)")
    assert_went_on(stage, launcher, 2)


@pytest.mark.thorough
def test_the_only_node_is_evicted_and_there_is_no_room_for_a_while(stage: Stage) -> None:
    launcher = launch(stage, "1:1", SELDOM)
    for name in ("node-0", "node-1"):
        stage.kubectl("cordon", name)
    try:
        evict(stage, 1)
        stage.events.wait("nodes_wait", timeout=LONG)
        until(lambda: "1 of 1 nodes pending" in stage.log(), "it says what it lacks", LONG)
        until(lambda: stage.status()["state"] == "waiting", "the status says that it waits", LONG)
        until(lambda: "waiting_for=nodes" in stage.log(), "a progress line says so", LONG)
        assert [pod["status"]["phase"] for pod in stage.launchers()] == ["Running"]
    finally:
        for name in ("node-0", "node-1"):
            stage.kubectl("uncordon", name)
    assert_went_on(stage, launcher, 1)


@pytest.mark.thorough
def test_the_machine_of_the_only_node_is_drained(stage: Stage) -> None:
    launcher = launch(stage, "1:1", SELDOM)
    with drained(stage, 1):
        stage.events.wait("nodes_wait", timeout=LONG)
        assert_went_on(stage, launcher, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("nodes", [1, 2])
def test_nodes_that_get_no_time_to_save_are_replaced_and_go_on_from_the_last_checkpoint(
    stage: Stage, nodes: int
) -> None:
    launcher = launch(stage, f"{nodes}:{nodes}", "--checkpoint-every=5 steps")
    stage.events.wait("checkpoint_saved", timeout=LONG)
    for node in range(1, nodes + 1):
        evict(stage, node, gracePeriodSeconds=0)
    stage.events.wait("generation_formed", lambda event: set(event["left"]) or event["generation"] > 1, LONG)
    formed(stage, nodes, 1, LONG)
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    steps = torch.load(stage.folder / "model.pt")["step"]
    assert_same_model(stage.folder, train_plain(SAMPLES, BATCH, steps))
    assert_one_launcher(stage, launcher)


@pytest.mark.thorough
def test_above_the_minimum_a_node_that_is_evicted_is_replaced_however_long_growth_waits(stage: Stage) -> None:
    launcher = launch(stage, "1:2")
    evict(stage, 2)
    event = stage.events.wait("generation_formed", lambda event: 2 in event["left"], LONG)
    formed(stage, 2, event["generation"], LONG)
    end_training(stage)
    assert_one_launcher(stage, launcher)
