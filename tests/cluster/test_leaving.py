"""Any one of four nodes goes, however it is told: the others keep their pods and processes, and another comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import pods
from tests.cluster.stage import HINTS, LONG, Stage, staged
from tests.local.ledgers import SCRIPT, read_ledgers
from tests.local.resizes import formed
from tests.local.sudden import assert_same_training, options
from tests.support import until

pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(1200),  # each node that joins takes half a minute on a busy machine
]

NODES = 4
PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start
PATIENT = ("--heartbeat-timeout=600", "--progress-timeout=600")
"""So that a rank which a test holds up is not taken for lost."""
STOPPED = """
import os, pathlib, signal, sys
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    if stat.read_text().rpartition(")")[2].split()[0] == "T":
        print(stat.parent.name)
        if sys.argv[1:]:
            os.kill(int(stat.parent.name), signal.SIGCONT)
"""
"""Names the processes of a pod that stand still, and has them go on where that is asked for."""


# -- how a node is told to go


def pod_of(stage: Stage, node: int) -> str:
    return str(stage.nodes()[node]["metadata"]["name"])


def delete(stage: Stage, node: int) -> None:
    stage.delete("pod", pod_of(stage, node))


def kill(stage: Stage, node: int) -> None:
    stage.delete("pod", pod_of(stage, node), "--grace-period=0", "--force")


def evict(stage: Stage, node: int) -> None:
    name = pod_of(stage, node)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": stage.space}}
    path = f"/api/v1/namespaces/{stage.space}/pods/{name}/eviction"
    stage.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


# -- what is seen of it


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "leaving") as stage:
        stage.allow(NODES)
        yield stage


def launch(stage: Stage, *arguments: str, faults: str = "", **more: Any) -> None:
    hints = f"--hints=configmap/{HINTS}"
    script = options(stage.folder, pace=PACE, **more)
    environment = {"ELASTIC_FAULT": faults}
    stage.launch(hints, *arguments, script=SCRIPT, argument=script, environment=environment)


def assert_replaced(stage: Stage, before: dict[int, str], *gone: int) -> None:
    """Waits until these nodes have left, and others train in their place; fails if any other pod is a new one."""
    smaller = [stage.events.wait("generation_formed", lambda e, one=one: one in e["left"], LONG) for one in gone]
    formed(stage, NODES, max(event["generation"] for event in smaller), LONG)
    until(lambda: len(stage.nodes()) == NODES, "the pods of those that left are gone", LONG)
    assert before.items() - stage.uids().items() == {(node, before[node]) for node in gone}


def finish(stage: Stage) -> None:
    """Ends the training; fails unless it was the plain one, and each member was one process for all of its life."""
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
    members = [rows[0]["member"] for rows in read_ledgers(stage.folder)]
    assert len(members) == len(set(members))


def stopped(stage: Stage, node: int, go_on: bool = False) -> list[str]:
    """Returns the processes of a node that a fault has stopped."""
    python = (pods.python_pod(stage.space, "any")["spec"]["containers"][0]["command"][0], "-c", STOPPED)
    more = ("go on",) if go_on else ()
    return stage.kubectl("exec", pod_of(stage, node), f"--namespace={stage.space}", "--", *python, *more).split()


@pytest.mark.thorough
def test_however_a_node_is_told_to_go_the_others_stay_and_another_comes(stage: Stage) -> None:
    launch(stage, f"--nodes=1:{NODES}")
    formed(stage, NODES, 0, LONG)
    ways: tuple[tuple[Callable[[Stage, int], None], int], ...] = ((delete, 1), (evict, 3), (kill, 4))
    before = stage.uids()
    for tell, node in ways:
        tell(stage, node)
        stage.events.wait("generation_formed", lambda event, node=node: node in event["left"], LONG)
    assert_replaced(stage, before, *(node for _, node in ways))
    noticed = {event["node"]: event["source"] for event in stage.events.of("notice")}
    assert {1, 3} <= set(noticed), noticed
    finish(stage)


@pytest.mark.thorough
def test_a_node_that_is_evicted_in_the_first_step_leaves_after_it(stage: Stage) -> None:
    stage.allow(NODES - 1)
    launch(stage, f"--nodes={NODES - 1}:{NODES}", *PATIENT, faults="freeze=micro-batch@0:2")
    stage.events.wait("node_warm", lambda event: event["node"] == 2, LONG)
    until(lambda: stopped(stage, 2), "node 2 is held in the first step", LONG)
    stage.allow(NODES)
    stage.events.wait("node_warm", lambda event: event["node"] == NODES, LONG)
    before = stage.uids()
    evict(stage, 3)
    stage.events.wait("notice", lambda event: event["node"] == 3, LONG)
    stopped(stage, 2, go_on=True)
    assert_replaced(stage, before, 3)
    finish(stage)
