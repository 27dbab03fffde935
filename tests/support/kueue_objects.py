"""Kueue's objects as the API shows them, in either version."""

from __future__ import annotations

from typing import Any

GPU = "nvidia.com/gpu"
FLAVOR = "a100"


def cluster_queue(
    name: str, nominal: int, cohort: str = "", *, flavor: str = FLAVOR, version: str = "v1beta2", **more: Any
) -> dict[str, Any]:
    """Returns a ClusterQueue with a quota in one flavor.

    Args:
        name: Its name.
        nominal: What it owns.
        cohort: Its cohort; "" for none.
        flavor: The flavor.
        version: Of the API.
        **more: ``borrowingLimit`` and ``lendingLimit``, and fields of its spec.
    """
    limits = {key: more.pop(key) for key in ("borrowingLimit", "lendingLimit") if key in more}
    quota = {"name": GPU, "nominalQuota": str(nominal), **{key: str(value) for key, value in limits.items()}}
    groups = [{"coveredResources": [GPU], "flavors": [{"name": flavor, "resources": [quota]}]}]
    of_cohort = {"cohortName" if version == "v1beta2" else "cohort": cohort} if cohort else {}
    preemption = {"reclaimWithinCohort": more.pop("reclaim", "Any")}
    spec = {"resourceGroups": groups, "preemption": preemption, **of_cohort, **more}
    return {"apiVersion": f"kueue.x-k8s.io/{version}", "metadata": {"name": name}, "spec": spec}


def flavor(name: str = FLAVOR, **spec: Any) -> dict[str, Any]:
    """Returns a ResourceFlavor."""
    return {"metadata": {"name": name}, "spec": spec}


def local_queue(namespace: str, name: str, queue: str, **more: Any) -> dict[str, Any]:
    """Returns a LocalQueue."""
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": queue, **more}}


def workload(
    namespace: str,
    job: str,
    local_queue: str,
    gpus: int,
    queue: str = "",
    *,
    flavor: str = FLAVOR,
    priority: int = 0,
    finished: bool = False,
    **spec: Any,
) -> dict[str, Any]:
    """Returns the Workload of a Job of one pod.

    Args:
        namespace: Where it is.
        job: The Job's name.
        local_queue: Its LocalQueue.
        gpus: What it asks for.
        queue: The ClusterQueue where it has its quota; "" while it waits.
        flavor: Of which flavor.
        priority: Its priority.
        finished: Whether its Job has ended.
        **spec: More fields of its spec.
    """
    conditions = [{"type": "QuotaReserved", "status": "True" if queue else "False"}]
    conditions += [{"type": "Finished", "status": "True"}] if finished else []
    status: dict[str, Any] = {"conditions": conditions}
    if queue:
        assigned = {"name": "main", "count": 1, "flavors": {GPU: flavor}, "resourceUsage": {GPU: str(gpus)}}
        status["admission"] = {"clusterQueue": queue, "podSetAssignments": [assigned]}
    container = {"resources": {"requests": {GPU: str(gpus), "cpu": "1500m"}}}
    pods = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "metadata": {
            "name": f"job-{job}",
            "namespace": namespace,
            "uid": f"workload-{namespace}-{job}",
            "creationTimestamp": "2026-11-26T10:00:00Z",
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"uid-{job}"}],
        },
        "spec": {"queueName": local_queue, "podSets": [pods], "priority": priority, **spec},
        "status": status,
    }
