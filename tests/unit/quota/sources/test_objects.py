"""What the controller reads out of Nodes, Pods and Services as the API shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_launcher.quota.scheduling import Taint
from elastic_launcher.quota.sources.machine import Machine
from elastic_launcher.quota.sources.machines import Pod
from elastic_launcher.quota.sources.objects import machine_of, pod_of, service_of
from tests.support.quota_reports import report, service

GPU = "nvidia.com/gpu"
READY = {"type": "Ready", "status": "True"}


def node(allocatable: dict[str, str], *conditions: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "m0"},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": list(conditions)},
    }


@pytest.mark.parametrize(
    ("shown", "machine"),
    [
        (node({"cpu": "8", "memory": "64Gi", GPU: "8"}, READY), Machine("m0", {GPU: 8})),
        (node({GPU: "8"}), Machine("m0", {GPU: 8}, ready=False)),
        (node({GPU: "8"}, READY | {"status": "Unknown"}), Machine("m0", {GPU: 8}, ready=False)),
        (node({GPU: "8"}, READY, unschedulable=True), Machine("m0", {GPU: 8}, ready=False)),
        (node({GPU: "0", "a/b": "2k", "a/c": "1Ki", "a/d": "500m"}, READY), Machine("m0", {"a/b": 2000, "a/c": 1024})),
        (
            node({GPU: "8"}, READY, taints=[{"key": GPU, "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]),
            Machine("m0", {GPU: 8}, taints=frozenset({Taint(GPU), Taint("x", "", "NoExecute")})),
        ),
        (
            node({}, READY, taints=[{"key": "soft", "effect": "PreferNoSchedule"}]),
            Machine("m0", {}),
        ),
        (
            node({}, READY, taints=[{"key": "karpenter.sh/disrupted", "effect": "PreferNoSchedule"}]),
            Machine("m0", {}, taints=frozenset({Taint("karpenter.sh/disrupted", "", "PreferNoSchedule")})),
        ),
        (
            {"metadata": {"name": "m0", "labels": {"pool": "a100"}}},
            Machine("m0", {}, ready=False, labels={"pool": "a100"}),
        ),
        ({"metadata": {"name": "m0"}}, Machine("m0", {}, ready=False)),
    ],
)
def test_a_machine_is_read(shown: dict[str, Any], machine: Machine) -> None:
    assert machine_of(shown) == machine


def pod(*containers: dict[str, str], phase: str = "Running", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "nlp", **more.pop("metadata", {})},
        "spec": {"containers": [{"resources": {"requests": one}} for one in containers], "nodeName": "m0", **more},
        "status": {"phase": phase},
    }


def init(gpus: int, **more: str) -> dict[str, Any]:
    return {"resources": {"limits": {GPU: str(gpus)}}, **more}


@pytest.mark.parametrize(
    ("shown", "gpus"),
    [
        (pod({GPU: "2", "cpu": "1"}, {GPU: "1"}), 3),
        (pod({GPU: "2"}, initContainers=[init(4), init(1)]), 4),
        (pod({GPU: "2"}, initContainers=[init(1, restartPolicy="Always")]), 3),
        (pod({GPU: "2"}, initContainers=[init(1, restartPolicy="Always"), init(3)]), 4),
        (pod({GPU: "2"}, nodeName="", phase="Pending"), 2),
        (pod({GPU: "1e3"}), 1000),
    ],
)
def test_a_pod_asks_for_the_gpus_of_its_containers(shown: dict[str, Any], gpus: int) -> None:
    found = pod_of(shown)
    assert found is not None and found.resources[GPU] == gpus


@pytest.mark.parametrize(
    "shown",
    [
        pod({"cpu": "1"}),
        pod(),
        pod({GPU: "2"}, phase="Succeeded"),
        pod({GPU: "2"}, phase="Failed"),
    ],
)
def test_a_pod_that_holds_nothing_that_counts_is_left_out(shown: dict[str, Any]) -> None:
    assert pod_of(shown) is None


@pytest.mark.parametrize(
    "shown",
    [
        pod({GPU: "2"}, nodeName="", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
        pod({GPU: "2"}, nodeName="", metadata={"deletionTimestamp": "2026-11-26T09:00:00Z"}),
    ],
)
def test_a_pod_that_can_not_get_a_place_now_is_known_as_such(shown: dict[str, Any]) -> None:
    leaves = "deletionTimestamp" in shown["metadata"]
    assert pod_of(shown) == Pod("nlp", {GPU: 2}, gated=True, leaves=leaves)


def test_the_priority_class_of_a_pod_is_kept() -> None:
    assert pod_of(pod({GPU: "2"}, priorityClassName="high")) == Pod("nlp", {GPU: 2}, "m0", priority_class="high")


def test_a_pod_that_is_being_deleted_holds_its_gpus_until_it_is_gone() -> None:
    shown = pod({GPU: "2"}, metadata={"deletionTimestamp": "2026-11-26T09:00:00Z"})
    assert pod_of(shown) == Pod("nlp", {GPU: 2}, "m0", leaves=True)


def test_a_pod_of_kueue_says_what_it_is_part_of() -> None:
    controllers = [{"uid": "job", "controller": True}, {"uid": "other"}]
    metadata = {"uid": "pod", "ownerReferences": controllers, "annotations": {"kueue.x-k8s.io/workload": "job-sweep"}}
    shown = pod({GPU: "2"}, metadata={**metadata, "labels": {"kueue.x-k8s.io/podset": "main"}})
    owners = frozenset({"pod", "job"})
    assert pod_of(shown) == Pod("nlp", {GPU: 2}, "m0", of_kueue=True, workload="job-sweep", owners=owners)


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        (
            {"elastic-launcher/job": "bert", "elastic-launcher/node": "3"},
            Pod("nlp", {}, "m0", "bert", True, number=3),
        ),
        (
            {"elastic-launcher/job": "bert", "elastic-launcher/node": "third"},
            Pod("nlp", {}, "m0", "bert", True),
        ),
        ({"elastic-launcher/coordinator": "bert"}, Pod("nlp", {}, "m0", "bert")),
        ({"app": "bert"}, None),
    ],
)
def test_the_pods_of_a_job_are_kept_without_gpus_too(labels: dict[str, str], kept: Pod | None) -> None:
    assert pod_of(pod({}, metadata={"labels": labels})) == kept


def test_a_report_is_as_old_as_the_change_by_which_it_was_seen() -> None:
    first = service_of(service("bert", "nlp", report("bert", held=2)), None, 100.0)
    assert first.job is not None and (first.job.held, first.job.reported_at) == (2, 100.0)
    same = service_of(service("bert", "nlp", report("bert", held=2)), first, 200.0)
    assert same.job == first.job
    changed = service_of(service("bert", "nlp", report("bert", held=3)), same, 300.0)
    assert changed.job is not None and (changed.job.held, changed.job.reported_at) == (3, 300.0)


def test_a_service_without_a_report_is_no_job_yet() -> None:
    found = service_of(service("bert", "nlp", None), None, 100.0)
    assert (found.job, found.refused) == (None, "")
    assert (found.namespace, found.id, found.created_at) == ("nlp", "bert", 1_790_000_000.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "annotation elastic-launcher/status is not JSON"),
        ("[" * 100_000, "annotation elastic-launcher/status is not JSON"),
        ("[]", "the report of a job is []; it must be a JSON object"),
        (json.dumps(report("bert", held=-1)), "demand.held"),
    ],
)
def test_a_report_that_can_not_be_used_leaves_the_last_good_one(text: str, why: str) -> None:
    good = service_of(service("bert", "nlp", report("bert", held=2)), None, 100.0)
    bad = service_of(service("bert", "nlp", text), good, 200.0)
    assert bad.job == good.job and why in bad.refused
    assert service_of(service("bert", "nlp", text), bad, 300.0) == bad
    assert service_of(service("bert", "nlp", report("bert", held=2)), bad, 400.0).refused == ""
