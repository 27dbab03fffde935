"""What is read out of Kueue's objects, and what of them is refused."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launcher.quota.scheduling import Flavor, Scheduling, Taint, Toleration
from elastic_launcher.quota.sources.kueue.objects import (
    ClusterQueue,
    Cohort,
    LocalQueue,
    Refused,
    Workload,
    cluster_queue_of,
    cohort_of,
    flavor_of,
    local_queue_of,
    whole,
    workload_of,
)
from elastic_launcher.quota.sources.kueue.tree import Quota
from tests.support.kueue_objects import FLAVOR, GPU, cluster_queue, flavor, local_queue, workload


@pytest.mark.parametrize(
    ("quantity", "number"),
    [("0", 0), ("4", 4), (4, 4), ("1500m", 1), ("0.5", 0), ("2.9", 2), ("1k", 1000), ("1Ki", 1024), ("1e3", 1000),
     ("1E", 10**18), ("1.5Ki", 1536), (".5k", 500), ("3000m", 3), ("2E2", 200)],
)  # fmt: skip
def test_a_quantity_is_rounded_down(quantity: Any, number: int) -> None:
    assert whole(quantity) == number


@pytest.mark.parametrize("quantity", ["", "-1", "four", "4 ", "4GPU", None, True, "0x4", "1e", "NaN", "inf", "9" * 30])
def test_what_is_no_quantity_is_refused(quantity: Any) -> None:
    with pytest.raises(ValueError, match="is no quantity of 0 or more"):
        whole(quantity)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_cluster_queue_of_either_version_is_read(version: str) -> None:
    shown = cluster_queue(
        "team-a", 4, "all", version=version, borrowingLimit=2, lendingLimit=1, fairSharing={"weight": "500m"}
    )
    quotas = {(GPU, FLAVOR): Quota(4, 2, 1)}
    assert cluster_queue_of(shown) == ClusterQueue("team-a", "all", quotas, 0.5, "Any")


def test_a_queue_that_says_nothing_else_reclaims_nothing_and_is_not_stopped() -> None:
    shown: dict[str, Any] = {"metadata": {"name": "team-a"}, "spec": {}}
    assert cluster_queue_of(shown) == ClusterQueue("team-a")
    shown["spec"]["stopPolicy"] = "Hold"
    assert cluster_queue_of(shown) == ClusterQueue("team-a", stopped=True)


def test_cohorts_and_local_queues_are_read() -> None:
    groups = cluster_queue("x", 3)["spec"]["resourceGroups"]
    shown = {"metadata": {"name": "all"}, "spec": {"parentName": "root", "resourceGroups": groups}}
    assert cohort_of(shown) == Cohort("all", "root", {(GPU, FLAVOR): Quota(3)})
    assert cohort_of({"metadata": {"name": "all"}}) == Cohort("all")
    assert local_queue_of(local_queue("ml", "gpus", "team-a")) == LocalQueue("ml", "gpus", "team-a")
    assert local_queue_of(local_queue("ml", "gpus", "team-a", stopPolicy="HoldAndDrain")).stopped


def test_a_workload_has_its_gpus_from_the_reservation_on() -> None:
    shown = workload("ml", "bert-1", "gpus", 2, "team-a", priority=7)
    read = workload_of(shown)
    assert read == Workload(
        "ml", "job-bert-1", "bert-1", "gpus", "team-a", {(GPU, FLAVOR): 2}, {GPU: 2}, 7,
        created="2026-11-26T10:00:00Z", owners=frozenset({"uid-bert-1", "Job/bert-1"}),
    )  # fmt: skip
    waits = workload_of(workload("ml", "bert-1", "gpus", 2))
    assert isinstance(waits, Workload) and (waits.queue, waits.reserved, waits.asks) == ("", {}, {GPU: 2})
    assert workload_of(workload("ml", "bert-1", "gpus", 2, "team-a", finished=True)) is None
    given_up = workload_of(workload("ml", "bert-1", "gpus", 2, active=False))
    assert isinstance(given_up, Workload) and not given_up.active


def test_pods_of_a_workload_that_have_ended_hold_nothing() -> None:
    shown = workload("ml", "sweep", "gpus", 8, "team-a")
    shown["status"]["admission"]["podSetAssignments"][0]["count"] = 4
    shown["status"]["reclaimablePods"] = [{"name": "main", "count": 3}]
    read = workload_of(shown)
    assert isinstance(read, Workload) and read.reserved == {(GPU, FLAVOR): 2}


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (
            cluster_queue_of(cluster_queue("team-a", -1)),
            "ClusterQueue team-a: of nvidia.com/gpu in flavor a100, nominalQuota: '-1' is no quantity of 0 or more",
        ),
        (
            cluster_queue_of(cluster_queue("team-a", 1, fairSharing={"weight": "heavy"})),
            "ClusterQueue team-a, fairSharing.weight: 'heavy' is no quantity of 0 or more",
        ),
        (
            cohort_of({"metadata": {"name": "all"}, "spec": {"fairSharing": {"weight": -1}}}),
            "Cohort all, fairSharing.weight: -1 is no quantity of 0 or more",
        ),
    ],
)
def test_a_bad_object_is_refused_by_its_name(read: object, why: str) -> None:
    assert read == Refused(why)


def test_a_bad_workload_is_refused_by_its_name() -> None:
    shown = workload("ml", "bert-1", "gpus", 2, "team-a")
    shown["status"]["admission"]["podSetAssignments"][0]["resourceUsage"][GPU] = "two"
    assert workload_of(shown) == Refused(
        "Workload ml/job-bert-1: resourceUsage, nvidia.com/gpu: 'two' is no quantity of 0 or more"
    )


def test_a_flavor_adds_labels_and_tolerations_and_wants_its_taints_tolerated() -> None:
    found = flavor_of(
        flavor(
            nodeLabels={"pool": "spot"},
            nodeTaints=[
                {"key": "spot", "value": "true", "effect": "NoSchedule"},
                {"key": "old", "effect": "PreferNoSchedule"},
            ],
            tolerations=[{"key": "team", "operator": "Exists", "effect": "NoSchedule"}],
        )
    )  # fmt: skip
    adds = Scheduling((("pool", "spot"),), tolerations=(Toleration("team", exists=True, effect="NoSchedule"),))
    assert found == Flavor("a100", adds, (Taint("spot", "true"),))
    assert flavor_of({"metadata": {"name": "empty"}}) == Flavor("empty")


def test_what_is_not_clear_of_a_flavor_excludes_no_machine() -> None:
    found = flavor_of(flavor(nodeLabels=7, tolerations="all"))
    assert found.adds.admits("m0", {}, [Taint("team")])
