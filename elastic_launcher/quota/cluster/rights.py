"""The rights that the quota controller needs; the overlay `quota-controller` grants them, verb for verb."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elastic_launcher.engines.kubernetes.access.rights import Asked, Lack, Need
from elastic_launcher.hints.reference import Reference

OVERLAY = "quota-controller"
MACHINES = Need("", "nodes", ("list", "watch"), "count the GPUs of machines", "nothing grows")
PODS = Need("", "pods", ("list", "watch"), "count the GPUs that are in use", "nothing grows")
SERVICES = Need("", "services", ("list", "watch"), "read what jobs report", "there are no jobs")
EVENTS = Need("", "events", ("create",), "record each change on the job's Service", "only the log and the history do")
QUOTAS = Need(
    "", "resourcequotas", ("list", "watch"), "count with ResourceQuotas", "with `resourceQuotas`, nothing grows"
)
CLUSTER_WIDE = (MACHINES, PODS, SERVICES, EVENTS, QUOTAS)
"""For all of the cluster; with ``--namespace``, all but machines and pods in those namespaces alone."""
KAI = tuple(
    Need("scheduling.run.ai", resource, ("list", "watch"), purpose, without, "quota-kai")
    for resource, purpose, without in (
        ("queues", "read the queues of KAI", "it can't decide"),
        (
            "podgroups",
            "find the queue of a pod",
            "pods without a queue's label count for no queue, and nodes that KAI does not take back are hinted above "
            "its quota",
        ),
    )
)
"""For all of the cluster, where the projects document names ``kai``."""
KUEUE = tuple(
    Need("kueue.x-k8s.io", resource, ("list", "watch"), purpose, without, "quota-kueue")
    for resource, purpose, without in (
        ("clusterqueues", "read the quotas of queues", "it can't decide"),
        ("cohorts", "read what queues share", "it can't decide"),
        ("localqueues", "find the queue of a job", "it can't decide"),
        ("workloads", "count what queues have admitted", "it can't decide"),
        ("resourceflavors", "find the machines of queues", "machines count whatever their taints and labels are"),
    )
)
"""For all of the cluster, where the projects document names ``kueue``."""
HINTS = Need("", "configmaps", ("get", "list", "patch", "watch"), "follow the hints and write them", "it can't decide")
HISTORY = Need("", "configmaps", ("get", "patch"), "keep the history", "`quota history` shows nothing")
PROJECTS = Need("", "configmaps", ("list", "watch"), "follow the projects document", "it can't decide")
NEW = Need("", "configmaps", ("create",), "make the hints and the history", "somebody else has to make them")
LEASE = Need("coordination.k8s.io", "leases", ("get", "update"), "lead alone", "it never leads")
NEW_LEASE = Need("coordination.k8s.io", "leases", ("create",), "make its Lease", "somebody else has to make it")
OWN = (HINTS, HISTORY, PROJECTS, NEW, LEASE, NEW_LEASE)
"""In the namespace of the hints; the first of each kind for one object alone."""


def history_of(hints: Reference) -> str:
    """Returns the name of the ConfigMap with the history, beside that of the hints."""
    return f"{hints.name}-history"


def lease_of(hints: Reference) -> str:
    """Returns the name of the Lease of those that write the hints."""
    return f"{hints.name}-controller"


def needs_of(hints: Reference, projects: Reference | None, namespaces: Sequence[str]) -> list[Asked]:
    """Returns what a controller needs.

    Args:
        hints: The ConfigMap that it writes.
        projects: The ConfigMap with the projects document; None where that is a file.
        namespaces: Those whose jobs count; none for all.
    """
    there = hints.namespace
    asked = [Asked(need, "", OVERLAY) for need in (MACHINES, PODS)]
    asked += [Asked(need, name, OVERLAY) for need in (SERVICES, EVENTS, QUOTAS) for name in namespaces or [""]]
    asked += [Asked(HINTS, there, OVERLAY, hints.name), Asked(HISTORY, there, OVERLAY, history_of(hints))]
    if projects is not None:
        asked.append(Asked(PROJECTS, projects.namespace, OVERLAY, projects.name))
    asked += [Asked(LEASE, there, OVERLAY, lease_of(hints))]
    return asked + [Asked(need, there, OVERLAY) for need in (NEW, NEW_LEASE)]


def told(lacks: Iterable[Lack]) -> list[str]:
    """Returns what to say of missing rights, a line each."""
    return [f"the controller's account: {one}" for one in lacks]
