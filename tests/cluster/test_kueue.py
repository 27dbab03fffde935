"""Jobs under a real Kueue: it admits, takes back, preempts and gives up nodes, and the job says what is so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.objects.names import NODE_LABEL
from tests.cluster.machine import cluster
from tests.cluster.machine.kubectl import Kubectl
from tests.support.cluster import pods
from tests.support.cluster.ends import end_training, finish
from tests.support.cluster.kueue import GROUP, LABEL, QUEUE, kueue, queues
from tests.support.cluster.stage import LONG, NAME, PLACES, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.manifests import MANIFESTS, objects
from tests.support.resizes import formed

pytestmark = [pytest.mark.machine, pytest.mark.thorough, pytest.mark.timeout(1200)]

GPU = "nvidia.com/gpu"
PRIORITY = "kueue.x-k8s.io/priority-class"
PRIORITY_CLASS = {
    "apiVersion": GROUP,
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "elastic-test-urgent"},
    "value": 1000,
}
UNTIL_TOLD = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, [s.SIGTERM]); s.sigwait([s.SIGTERM])"
READY_WITHIN = "45s"
LIMIT = 1
PLACE = "elastic-test-place"
"""A label that no machine has at first: a pod that wants it is admitted, and never ready."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    requeuing = {"timestamp": "Eviction", "backoffLimitCount": LIMIT, "backoffBaseSeconds": 1}
    kubectl = Kubectl(PLACES, cluster.running(PLACES).programs)
    own = tmp_path / "kueue"
    own.mkdir()
    wait = {"timeout": READY_WITHIN, "blockAdmission": False, "requeuingStrategy": requeuing}
    with kueue(kubectl, PLACES, own, waitForPodsReady=wait), staged(tmp_path, "queue") as stage:
        kubectl("label", "namespace", stage.space, f"{LABEL}=yes")
        role, binding = objects(MANIFESTS / "overlays" / "kueue", "Role", "RoleBinding")
        binding["subjects"] = [{"kind": "ServiceAccount", "name": NAME, "namespace": stage.space}]
        for one in (role, binding):
            one["metadata"].pop("namespace", None)
        stage.apply(role, binding)
        yield stage
        kubectl("label", "nodes", "--all", f"{PLACE}-")


def workloads(stage: Stage) -> dict[str, dict[str, Any]]:
    """Returns the nodes' Workloads, by the uid of the Job."""
    found = stage.get("workloads.kueue.x-k8s.io")
    return {one["metadata"]["ownerReferences"][0]["uid"]: one for one in found}


def jobs(stage: Stage) -> dict[str, dict[str, Any]]:
    """Returns the nodes' Jobs, by their uids."""
    return {one["metadata"]["uid"]: one for one in stage.get("jobs", "-l", NODE_LABEL)}


def rigid(stage: Stage, gpus: int) -> dict[str, Any]:
    """Returns a Job of higher priority that wants so many GPUs and runs until it is deleted."""
    pod = pods.python_pod(stage.space, "rigid", "-c", UNTIL_TOLD, gpus=gpus)["spec"]
    labels = {QUEUE: "gpus", PRIORITY: PRIORITY_CLASS["metadata"]["name"]}
    metadata = {"name": "rigid", "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}


def test_a_job_grows_when_its_queue_admits_a_node_and_outlives_its_preemption(
    stage: Stage,
) -> None:
    stage.kubectl.apply(PRIORITY_CLASS, *queues(stage.space, **{GPU: 1}))
    stage.launch("--nodes=1:2", script=SCRIPT, argument=options(stage.folder, pace=0.1), labels={QUEUE: "gpus"})
    first = formed(stage, 1, 0, LONG)
    stage.events.wait("warning", lambda event: "insufficient unused quota" in event["message"], LONG)
    until(lambda: " pending_nodes=1 " in stage.log(), "the progress line counts the node", LONG)

    quota = {"op": "replace", "path": "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota", "value": 2}
    stage.kubectl("patch", "clusterqueue", stage.space, "--type=json", "--patch", json.dumps([quota]))
    second = formed(stage, 2, first["generation"], LONG)
    assert second["cause"] == "queue"
    (launcher,) = stage.launchers()

    stage.apply(rigid(stage, 2))
    stage.events.wait("nodes_wait", timeout=LONG)
    until(lambda: stage.get("pods", "-l", "job-name=rigid"), "the other Job has their place", LONG)
    stage.delete("job", "rigid")
    formed(stage, 2, second["generation"], LONG)
    assert [one["metadata"]["uid"] for one in stage.launchers()] == [launcher["metadata"]["uid"]], "no retry is spent"
    end_training(stage)
    assert not stage.events.of("node_lost")


def test_a_node_that_is_never_ready_stays_one_job_and_trains_once_it_is_admitted(
    stage: Stage,
) -> None:
    stage.kubectl.apply(*queues(stage.space, **{GPU: 1}))
    template = {"nodeSelector": {PLACE: "yes"}}
    stage.launch(
        "--nodes=1:1", script=SCRIPT, argument=options(stage.folder), template=template, labels={QUEUE: "gpus"}
    )
    (uid,) = until(lambda: jobs(stage), "the node's Job is made", LONG)

    def deactivated() -> bool:
        return workloads(stage).get(uid, {}).get("spec", {}).get("active") is False

    until(deactivated, "Kueue gives the Job up", LONG)
    said = until(lambda: [e for e in stage.events.of("warning") if "deactivated" in e["message"]], "it is said", LONG)
    assert "exceeding the maximum number of re-queuing retries; it is not tried again" in said[0]["message"]
    assert list(jobs(stage)) == [uid] == list(workloads(stage)), "one Job and one Workload all the time"
    assert [event["node"] for event in stage.events.of("node_started")] == [1]

    stage.kubectl("label", "nodes", "--all", f"{PLACE}=yes")
    name = workloads(stage)[uid]["metadata"]["name"]
    assert f"delete Workload {name}" in said[0]["message"]
    stage.delete("workloads.kueue.x-k8s.io", name)
    formed(stage, 1, 0, LONG)
    assert list(jobs(stage)) == [uid]
    until(lambda: "deactivated" not in stage.status()["message"], "status says what is over no longer", LONG)
    finish(stage)
