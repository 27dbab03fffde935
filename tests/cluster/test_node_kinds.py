"""Nodes within a job's guarantee, and nodes above it: other machines, another priority, and who leaves first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL, KIND_LABEL, NODE_LABEL
from tests.support.cluster.ends import end_training
from tests.support.cluster.stage import HINTS, LONG, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.resizes import formed

pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]

PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start
OWNED, LENT = 1000, 10
KUEUES = "kueue.x-k8s.io/priority-class"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "kinds") as stage, priority_classes(stage):
        yield stage


@contextmanager
def priority_classes(stage: Stage) -> Iterator[None]:
    """Makes two PriorityClasses, which are the whole cluster's, for the time of a test."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "preemptionPolicy": "Never"}
    found = {f"owned-{stage.space}": OWNED, f"lent-{stage.space}": LENT}
    stage.kubectl.apply(*({**kind, "metadata": {"name": name}, "value": value} for name, value in found.items()))
    try:
        yield
    finally:
        stage.kubectl("delete", "priorityclasses", *found, "--ignore-not-found")


def launch(stage: Stage, lent_selector: dict[str, str]) -> None:
    sections = {
        "guaranteed": {
            "priorityClassName": f"owned-{stage.space}",
            "nodeSelector": {"kubernetes.io/hostname": "node-0"},
            "labels": {KUEUES: "owned"},
        },
        "overQuota": {"priorityClassName": f"lent-{stage.space}", "nodeSelector": lent_selector},
    }
    argument = options(stage.folder, pace=PACE)
    stage.launch("--nodes=1:4", f"--hints=configmap/{HINTS}", script=SCRIPT, argument=argument, kinds=sections)


def kinds(stage: Stage) -> dict[int, tuple[str, int, str]]:
    """Returns of each node's pod its kind, its priority and its machine."""
    return {
        node: (pod["metadata"]["labels"][KIND_LABEL], pod["spec"]["priority"], pod["spec"].get("nodeName", ""))
        for node, pod in stage.nodes().items()
    }


def jobs_with(stage: Stage, label: str) -> dict[int, Any]:
    """Returns a label of each node's Job."""
    labels = [one["metadata"]["labels"] for one in stage.get("jobs", "-l", f"{JOB_LABEL},{NODE_LABEL}")]
    return {int(one[NODE_LABEL]): one.get(label) for one in labels}


def test_new_nodes_are_of_the_kind_that_is_short_old_pods_stay_and_those_over_quota_leave_first(stage: Stage) -> None:
    owned, lent = ("guaranteed", OWNED, "node-0"), ("overQuota", LENT, "node-1")
    stage.allow(2, guaranteed=1)
    launch(stage, {"kubernetes.io/hostname": "node-1"})
    first = formed(stage, 2, 0, LONG)
    before = stage.uids()
    assert kinds(stage) == {1: owned, 2: lent}
    assert jobs_with(stage, KIND_LABEL) == {1: "guaranteed", 2: "overQuota"}
    assert jobs_with(stage, KUEUES) == {1: "owned", 2: None}

    stage.allow(4, guaranteed=2)
    second = formed(stage, 4, first["generation"], LONG)
    assert kinds(stage) == {1: owned, 2: lent, 3: owned, 4: lent}
    assert before.items() <= stage.uids().items()

    stage.allow(2, guaranteed=2)
    formed(stage, 2, second["generation"], LONG)
    until(lambda: len(stage.nodes()) == 2, "the pods of the nodes that left are gone", LONG)
    assert kinds(stage) == {1: owned, 3: owned}
    end_training(stage)


@pytest.mark.thorough
def test_a_node_over_quota_that_no_machine_has_room_for_gives_way_once_it_is_guaranteed(stage: Stage) -> None:
    stage.allow(2, guaranteed=1)
    launch(stage, {"no-machine": "has-this"})
    first = formed(stage, 1, 0, LONG)
    until(lambda: kinds(stage).get(2) == ("overQuota", LENT, ""), "the second node waits for a machine", LONG)
    stage.allow(2, guaranteed=2)
    formed(stage, 2, first["generation"], LONG)
    until(lambda: set(stage.nodes()) == {1, 3}, "the pod that waited is gone", LONG)
    assert kinds(stage)[3] == ("guaranteed", OWNED, "node-0")
    end_training(stage)
