"""The step of Argo's ``elastic-train``, as rendered: a real pod with worker pods, a hint edit, and a next attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.objects.names import Owner
from tests.cluster.machine import volumes
from tests.support.cluster import digits
from tests.support.cluster.argo_step import FOLDER, step_pod
from tests.support.cluster.ranks import adopted, processes
from tests.support.cluster.stage import HINTS, LONG, Stage, staged
from tests.support.cluster.workflow_kind import WORKFLOW, workflows_known
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

PACE = 0.02
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def workflow_kind() -> Iterator[None]:
    with workflows_known():
        yield


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "argo") as stage:
        yield stage


def parameters(stage: Stage) -> dict[str, str]:
    """Returns what the Workflow's author gives: the rest is the template's own."""
    claim = volumes.claim_name(stage.folder)
    node = stage.node_spec()
    node["containers"][0]["volumeMounts"].append({"name": claim, "mountPath": FOLDER})
    return {
        "claim": claim,
        "script": str(SCRIPT),
        "arguments": json.dumps([options(stage.folder, pace=PACE)]),
        "engine": "kubernetes",
        "nodes": "2:3",
        "hints": f"configmap/{stage.space}/{HINTS}",
        "pod_template": json.dumps({"spec": node}),
        "name": "digits",
        "orphan_timeout": "180",  # a pod's start on a busy machine
        "work_dir": f"{FOLDER}/{stage.work_dir.name}",
        "checkpoint_dir": f"{FOLDER}/checkpoints",
    }


def test_a_step_trains_through_an_edit_and_a_deleted_attempt_to_its_end(stage: Stage) -> None:
    for overlay in ("argo", "hints"):
        stage.kubectl.apply(*digits.overlay(overlay, stage.space, stage.space))
    stage.allow(2)
    stage.apply(WORKFLOW)
    (workflow,) = stage.get("workflows")
    metadata = workflow["metadata"]
    owner = Owner(workflow["apiVersion"], workflow["kind"], metadata["name"], metadata["uid"])
    given = parameters(stage)

    first = step_pod(given, owner, 0)
    stage.apply(first)
    formed(stage, 2, 0, LONG)
    stage.allow(3)
    formed(stage, 3, 1, LONG)

    before, pids = stage.uids(), processes(stage)
    stage.delete("pod", first["metadata"]["name"])
    until(lambda: not stage.launchers(), "the first attempt is gone", LONG)
    assert stage.uids() == before, "what it made is the Workflow's"
    stage.apply(step_pod(given, owner, 1))
    found = adopted(stage, 2)
    assert {one["member"]: {one["pid"]} for one in found["members"]} == pids
    assert stage.uids() == before

    stage.allow(2)
    formed(stage, 2, 2)
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
    assert len(stage.events.of("job_started")) == 1
    assert not stage.events.of("node_lost")
    until(lambda: not stage.nodes(), "no node is left", LONG)
