"""Nodes whose Jobs are suspended, as by a queue, after their ranks have begun and before they have trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.objects.names import NODE_LABEL
from tests.support.cluster.ends import finish
from tests.support.cluster.stage import LONG, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.resizes import formed

pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "requeued") as stage:
        yield stage


def jobs(stage: Stage) -> dict[int, tuple[str, str]]:
    """Returns name and uid of the nodes' Jobs."""
    found = stage.get("jobs", "-l", NODE_LABEL)
    names = {int(job["metadata"]["labels"][NODE_LABEL]): job["metadata"] for job in found}
    return {node: (one["name"], one["uid"]) for node, one in sorted(names.items())}


def suspend(stage: Stage, node: int, suspended: bool = True) -> None:
    """Does what Kueue does when it takes a node back, or admits it."""
    name, _ = jobs(stage)[node]
    change = json.dumps({"spec": {"suspend": suspended}})
    stage.kubectl("patch", "job", name, f"--namespace={stage.space}", "--type=merge", "--patch", change)


def test_nodes_requeued_before_they_trained_stay_the_same_jobs_and_train_later(
    stage: Stage,
) -> None:
    stage.launch("--nodes=2:2", script=SCRIPT, argument=options(stage.folder))
    made = until(lambda: len(found := jobs(stage)) == 2 and found, "both Jobs are made", LONG)
    suspend(stage, 2)  # so that the other one waits for it
    stage.events.wait("node_warm", lambda event: event["node"] == 1, LONG)
    suspend(stage, 1)
    requeued = stage.events.wait("node_requeued", lambda event: event["node"] == 1, LONG)
    until(lambda: not stage.nodes(), "their pods are gone", LONG)
    assert jobs(stage) == made

    suspend(stage, 1, False)
    suspend(stage, 2, False)
    event = formed(stage, 2, 0, LONG)
    assert jobs(stage) == made
    members = {one["node"]: one["member"] for one in event["members"]}
    assert [members[1]] == requeued["members"] and members[1] > 2
    assert [event["node"] for event in stage.events.of("node_started")] == [1, 2]
    for kind in ("notice", "node_left", "node_failed", "node_lost"):
        assert not stage.events.of(kind)
    finish(stage)
