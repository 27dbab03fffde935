"""Any one of four nodes goes, however it is told: the others keep their pods and processes, and another comes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.coordinator.rules.loss import LONGEST_RETRY
from tests.cluster.machine.places import GPU
from tests.support.cluster import pods
from tests.support.cluster.ends import finish
from tests.support.cluster.stage import HINTS, LONG, Stage, staged
from tests.support.cluster.taken_gpus import fill, idle_pod
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(1200),  # each node that joins takes half a minute on a busy machine
]

NODES = 4
TAINT = "elastic-launcher.test/goes"
PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start
PATIENT = ("--heartbeat-timeout=600", "--progress-timeout=600")
"""So that a rank which a test holds up is not taken for lost."""
IN_A_ROW = 8
STOPPED = """
import os, pathlib, signal, sys
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
        state = stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        continue  # it has just ended
    if state == "T":
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


@contextmanager
def preempted(stage: Stage, machine: str, priority: str, name: str = "urgent") -> Iterator[None]:
    """Takes one GPU more than a machine has free, for a pod of higher priority, until the end.

    Of pods of one priority, the scheduler takes the one that started last.
    """
    gpus = int(stage.kubectl("get", "node", machine, "-o", r"jsonpath={.status.allocatable.nvidia\.com/gpu}"))
    pod = idle_pod(stage.space, name, gpus - taken(stage, machine) + 1, int(machine.removeprefix("node-")))
    pod["spec"]["priorityClassName"] = priority
    try:
        stage.apply(pod)
        yield
    finally:
        stage.delete("pod", name)


def taken(stage: Stage, machine: str) -> int:
    """Returns how many GPUs the pods on a machine have."""
    on_it = f"--field-selector=spec.nodeName={machine},status.phase!=Succeeded,status.phase!=Failed"
    found = json.loads(stage.kubectl("get", "pods", "--all-namespaces", on_it, "-o", "json"))["items"]
    containers = [one for pod in found for one in pod["spec"]["containers"]]
    return sum(int(one["resources"].get("limits", {}).get(GPU, 0)) for one in containers)


@contextmanager
def closed(stage: Stage, machine: int) -> Iterator[None]:
    """Has a machine take no more pods, until the end."""
    stage.kubectl("cordon", f"node-{machine}")
    try:
        yield
    finally:
        stage.kubectl("uncordon", f"node-{machine}")


@contextmanager
def tainted(stage: Stage, machine: int) -> Iterator[None]:
    """Drives all pods from a machine that don't tolerate a taint, until the end."""
    stage.kubectl("taint", "node", f"node-{machine}", f"{TAINT}=:NoExecute")
    try:
        yield
    finally:
        stage.kubectl("taint", "node", f"node-{machine}", f"{TAINT}:NoExecute-")


# -- what is seen of it


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "leaving") as stage:
        stage.allow(NODES)
        yield stage


@pytest.fixture
def crowd(stage: Stage) -> Iterator[str]:
    """Gives a namespace for what takes room."""
    with pods.namespace(stage.kubectl, "crowd") as name:
        yield name


@pytest.fixture
def priority(stage: Stage) -> Iterator[str]:
    """Gives a priority of pods that others make room for."""
    about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": stage.space}}
    stage.kubectl.apply({**about, "value": 1000})
    try:
        yield stage.space
    finally:
        stage.kubectl("delete", "priorityclass", stage.space)


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


def phases(stage: Stage) -> list[str]:
    return [pod["status"]["phase"] for pod in stage.nodes().values()]


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
def test_a_node_that_is_preempted_leaves_and_another_comes_where_there_is_room(stage: Stage, priority: str) -> None:
    launch(stage, f"--nodes=1:{NODES}")
    formed(stage, NODES, 0, LONG)
    before = stage.uids()
    machines = [pod["spec"]["nodeName"] for pod in stage.nodes().values()]
    with preempted(stage, max(machines, key=machines.count), priority):
        notice = stage.events.wait("notice", timeout=LONG)
        assert_replaced(stage, before, notice["node"])
    finish(stage)


@pytest.mark.thorough
def test_the_eighth_preemption_in_a_row_is_replaced_as_fast_as_the_first(
    stage: Stage, crowd: str, priority: str
) -> None:
    fill(stage.kubectl, crowd, 2)
    stage.allow(2)
    launch(stage, "--nodes=1:2")
    generation = formed(stage, 2, 0, LONG)["generation"]
    waits = []
    for count in range(IN_A_ROW):
        until(lambda: phases(stage) == ["Running"] * 2, "both nodes run", LONG)
        before, began = stage.uids(), time.time()
        with preempted(stage, "node-0", priority, f"urgent-{count}"):
            number = 2 + count + 1
            new = stage.events.wait("node_started", lambda event, number=number: event["node"] == number, LONG)
            waits.append(new["time"] - began)
            until(
                lambda number=number: sorted(stage.nodes())[1:] == [number],
                "the replacement's pod waits for room",
                LONG,
            )
            assert len(before.items() & stage.uids().items()) == 1
    # after as many losses that its nodes are to blame for, a job would wait this long by then
    assert waits[-1] < waits[0] + LONGEST_RETRY / 2, waits
    formed(stage, 2, generation, LONG)
    assert len(stage.events.of("node_started")) == 2 + IN_A_ROW
    finish(stage)


@pytest.mark.thorough
def test_a_taint_drives_a_node_from_its_machine_and_another_comes_once_that_is_gone(stage: Stage, crowd: str) -> None:
    fill(stage.kubectl, crowd, NODES - 1, 1)
    with closed(stage, 1):  # the launcher and three nodes run on the other machine
        launch(stage, f"--nodes=1:{NODES}")
        stage.events.wait("node_started", lambda event: event["node"] == NODES, LONG)
        until(
            lambda: sum("nodeName" in pod["spec"] for pod in stage.nodes().values()) == NODES - 1,
            "a place for three",
            LONG,
        )
    formed(stage, NODES, 0, LONG)
    before = stage.uids()
    (driven,) = [node for node, pod in stage.nodes().items() if pod["spec"]["nodeName"] == "node-1"]
    with tainted(stage, 1):
        notice = stage.events.wait("notice", timeout=LONG)
        said = f"1 of {NODES} nodes pending"
        stage.events.wait("warning", lambda e: e["time"] > notice["time"] and said in e["message"], LONG)
        assert notice["node"] == driven
        assert before.items() - stage.uids().items() <= {(driven, before[driven])}
    assert_replaced(stage, before, driven)
    finish(stage)


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


@pytest.mark.thorough
def test_a_node_that_is_deleted_while_another_one_joins_leaves_too(stage: Stage) -> None:
    stage.allow(NODES - 1)
    launch(stage, f"--nodes={NODES - 1}:{NODES}", *PATIENT, faults="freeze=form@2:2")
    stage.events.wait("generation_formed", timeout=LONG)
    stage.allow(NODES)
    until(lambda: stopped(stage, 2), "node 2 is held while the second generation forms", LONG)
    before = stage.uids()
    delete(stage, 3)
    stage.events.wait("notice", lambda event: event["node"] == 3, LONG)
    stopped(stage, 2, go_on=True)
    assert_replaced(stage, before, 3)
    finish(stage)


@pytest.mark.thorough
def test_ranks_that_finish_earlier_than_others_neither_end_nor_restart_them(stage: Stage) -> None:
    launch(stage, f"--nodes={NODES}:{NODES}", epochs=4, linger=[1])
    stage.events.wait("generation_formed", timeout=LONG)
    uid = stage.uids()[1]
    until(lambda: set(stage.nodes()) == {1}, "all others have ended", LONG)
    assert stage.uids() == {1: uid}
    assert [pod["status"]["phase"] for pod in stage.launchers()] == ["Running"]
    (stage.folder / "home").touch()
    assert stage.wait() == 0
    assert len(stage.launchers()) == 1
    assert_same_training(stage.folder, stage)
    assert len(stage.events.of("node_started")) == NODES
