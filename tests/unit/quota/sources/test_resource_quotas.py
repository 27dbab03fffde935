"""What a ResourceQuota leaves to the jobs of its namespace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.rounds.world import Bound
from elastic_launcher.quota.sources.machines import Pod
from elastic_launcher.quota.sources.resource_quotas import ResourceQuota, leaves, quota_of
from tests.support.quota_jobs import job

GPU = "nvidia.com/gpu"


def shown(hard: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "gpus", "namespace": "ml"}, "spec": {"hard": hard, **spec}}


def scope(operator: str, *values: str, name: str = "PriorityClass") -> dict[str, Any]:
    return {"matchExpressions": [{"scopeName": name, "operator": operator, **({"values": values} if values else {})}]}


@pytest.mark.parametrize(
    ("of_api", "quota"),
    [
        (shown({f"requests.{GPU}": "4", "requests.cpu": "8", "pods": "9"}), ResourceQuota("ml", "gpus", {GPU: 4})),
        (shown({f"requests.{GPU}": "0"}), ResourceQuota("ml", "gpus", {GPU: 0})),
        (shown({f"requests.{GPU}": "1e3"}), ResourceQuota("ml", "gpus", {GPU: 1000})),
        (shown({f"requests.{GPU}": str(2**63 - 1)}), ResourceQuota("ml", "gpus", {GPU: 2**63 - 1})),
        (
            shown({f"requests.{GPU}": "4"}) | {"status": {"hard": {f"requests.{GPU}": "3"}, "used": {}}},
            ResourceQuota("ml", "gpus", {GPU: 3}),
        ),
        (
            shown({f"requests.{GPU}": "2"}) | {"status": {"hard": {f"requests.{GPU}": "3"}, "used": {}}},
            ResourceQuota("ml", "gpus", {GPU: 2}),
        ),
        (shown({"requests.cpu": "8", f"count/{GPU}": "4", GPU: "4"}), None),
        (
            shown({f"requests.{GPU}": "4"}, scopeSelector=scope("In", "low", "batch")),
            ResourceQuota("ml", "gpus", {GPU: 4}, (("In", frozenset({"low", "batch"})),)),
        ),
        (
            shown({f"requests.{GPU}": "4"}, scopes=["PriorityClass"]),
            ResourceQuota("ml", "gpus", {GPU: 4}, (("Exists", frozenset()),)),
        ),
        (
            shown(
                {f"requests.{GPU}": "4"}, scopes=["NotTerminating"], scopeSelector=scope("Exists", name="BestEffort")
            ),
            ResourceQuota("ml", "gpus", {GPU: 4}),
        ),
    ],
)
def test_the_requests_of_extended_resources_and_the_priority_classes_are_read(
    of_api: dict[str, Any], quota: ResourceQuota | None
) -> None:
    assert quota_of(of_api) == quota


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [
        ("In", ["low"], {"low"}),
        ("NotIn", ["low"], {"high", ""}),
        ("Exists", [], {"low", "high"}),
        ("DoesNotExist", [], {""}),
    ],
)
def test_a_scope_selects_pods_by_their_priority_class(operator: str, values: list[str], selected: set[str]) -> None:
    quota = quota_of(shown({f"requests.{GPU}": "4"}, scopeSelector=scope(operator, *values)))
    assert quota is not None
    found = {name for name in ("low", "high", "") if quota.selects(Pod("ml", {}, priority_class=name))}
    assert found == selected


def in_namespace(name: str, namespace: str) -> Job:
    return replace(job(name), match={"namespace": namespace})


def test_what_other_pods_ask_for_is_taken_off_and_what_jobs_hold_is_not() -> None:
    pods = [
        Pod("ml", {GPU: 2}, "m0", "bert", True),
        Pod("ml", {GPU: 1}, "m0"),
        Pod("ml", {GPU: 1}),
        Pod("ml", {GPU: 1}, gated=True),
        Pod("ml", {GPU: 1}, "m0", "gone", True),
        Pod("other", {GPU: 4}, "m0"),
    ]
    jobs = [in_namespace("bert", "ml"), in_namespace("gpt", "other")]
    quotas = [ResourceQuota("ml", "gpus", {GPU: 8}), ResourceQuota("ml", "all", {GPU: 3})]
    assert leaves(quotas, GPU, jobs, pods) == [
        Bound("ResourceQuota ml/all", frozenset({"bert"}), 0),
        Bound("ResourceQuota ml/gpus", frozenset({"bert"}), 4),
    ]


def test_a_quota_of_priority_classes_counts_for_jobs_with_such_nodes_and_for_those_without_nodes() -> None:
    pods = [
        Pod("ml", {GPU: 2}, "m0", "high", True, priority_class="high"),
        Pod("ml", {GPU: 2}, "m0", "low", True, priority_class="low"),
        Pod("ml", {GPU: 1}, "m0", "both", True, priority_class="low"),
        Pod("ml", {GPU: 1}, "m0", "both", True, priority_class="high"),
        Pod("ml", {GPU: 1}, "m0", priority_class="low"),
        Pod("ml", {GPU: 1}, "m0", priority_class="high"),
    ]
    jobs = [in_namespace(name, "ml") for name in ("high", "low", "both", "waits")]
    quota = ResourceQuota("ml", "low", {GPU: 6}, (("In", frozenset({"low"})),))
    (bound,) = leaves([quota], GPU, jobs, pods)
    assert (bound.name, bound.jobs) == ("ResourceQuota ml/low", {"low", "both", "waits"})
    assert bound.gpus == 5 + 1, "one of them has a node of another class besides"
