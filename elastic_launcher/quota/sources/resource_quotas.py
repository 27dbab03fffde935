"""ResourceQuotas as bounds: what each leaves to the jobs of its namespace.

A quota leaves its ``hard`` number less what other pods of the namespace ask for. These are counted from the pods
themselves. ``status.used`` would say the same a moment later: it falls only some time after a pod is gone, and jobs
would shrink for that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_launcher.kube.collection import Collection
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Capacity, Projects
from elastic_launcher.quota.queues import Queue
from elastic_launcher.quota.rounds.world import Bound
from elastic_launcher.quota.sources.enforcer import Following, Word
from elastic_launcher.quota.sources.machines import Pod
from elastic_launcher.quota.sources.objects import whole_number
from elastic_launcher.quota.sources.watched import Watched

_REQUESTS = "requests."
"""Of extended resources, a quota can have requests alone."""
_CLASS = "PriorityClass"


@dataclass(frozen=True, slots=True)
class ResourceQuota:
    """One ResourceQuota.

    Attributes:
        namespace: Where it is.
        name: Its name.
        hard: The most that pods may ask for together, by extended resource.
        classes: What the priority class of a pod must fulfil to be counted, all of it: an operator of the API, and the
            values that it is about. Other scopes select every pod here.
    """

    namespace: str
    name: str
    hard: Mapping[str, int]
    classes: tuple[tuple[str, frozenset[str]], ...] = ()

    def selects(self, pod: Pod) -> bool:
        """Returns whether it counts a pod of its namespace."""
        return all(_fulfils(pod.priority_class, operator, values) for operator, values in self.classes)


def _fulfils(priority_class: str, operator: str, values: frozenset[str]) -> bool:
    match operator:
        case "In":
            return priority_class in values
        case "NotIn":
            return priority_class not in values
        case "DoesNotExist":
            return not priority_class
        case _:
            return bool(priority_class)


def quota_of(shown: Mapping[str, Any]) -> ResourceQuota | None:
    """Returns a ResourceQuota as the API shows it; None if it does not limit extended resources.

    The API server goes by the status, which follows the spec a moment later: the smaller number of both counts.
    """
    metadata, spec = shown["metadata"], shown.get("spec") or {}
    enforced = (shown.get("status") or {}).get("hard") or {}
    hard = {
        key.removeprefix(_REQUESTS): min(whole_number(number), whole_number(enforced.get(key, number)))
        for key, number in (spec.get("hard") or {}).items()
        if key.startswith(_REQUESTS) and "/" in key
    }
    if not hard:
        return None
    selector = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    classes = [
        (str(one.get("operator")), frozenset(one.get("values") or ()))
        for one in selector
        if one.get("scopeName") == _CLASS
    ]
    if _CLASS in (spec.get("scopes") or ()):
        classes.append(("Exists", frozenset()))
    return ResourceQuota(metadata["namespace"], metadata["name"], hard, tuple(classes))


class ResourceQuotas:
    """The ResourceQuotas of the namespaces whose jobs count.

    Args:
        following: How the cluster is followed.

    Attributes:
        key: Its key under ``capacity`` in the projects document.
        watched: What is followed.
    """

    key = "resourceQuotas"

    def __init__(self, following: Following) -> None:
        self.watched: Sequence[Watched[Any]] = [
            Watched(
                "the ResourceQuotas" + (f" of namespace {name}" if name else ""),
                Collection(f"/api/v1/namespaces/{name}/resourcequotas" if name else "/api/v1/resourcequotas"),
                lambda one, _: quota_of(one),
                following.lock,
                following.changed,
            )
            for name in following.namespaces or [""]
        ]

    def queues(self, _: Projects) -> Sequence[Queue]:
        """Returns nothing: a quota caps a namespace, and guarantees nothing."""
        return ()

    def marked(self, _: Projects, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Returns the pods as they are: all count by themselves."""
        return pods

    def word(self, projects: Projects, jobs: Sequence[Job], pods: Sequence[Pod]) -> Word:
        """Returns what each quota leaves to the jobs of its namespace."""
        resource = (projects.capacity or Capacity()).resource
        quotas = [one for watched in self.watched for one in watched.objects.values() if resource in one.hard]
        return Word(leaves(quotas, resource, jobs, pods))


def leaves(quotas: Iterable[ResourceQuota], resource: str, jobs: Sequence[Job], pods: Sequence[Pod]) -> list[Bound]:
    """Returns what quotas of a resource leave to the jobs of their namespaces.

    A quota with a scope of priority classes counts for the jobs that have nodes of these, and for those without nodes,
    whose class is not known yet. Nodes of such a job that the quota does not select are no part of what it leaves: the
    job may have them besides.
    """
    names = {(job.match.get("namespace", ""), job.id) for job in jobs}
    by_namespace: dict[str, list[Pod]] = {}
    for pod in pods:
        by_namespace.setdefault(pod.namespace, []).append(pod)
    found = []
    for quota in sorted(quotas, key=lambda one: (one.namespace, one.name)):
        others, besides = 0, dict[str, int]()
        counted = {name: set[bool]() for namespace, name in names if namespace == quota.namespace}
        for pod in by_namespace.get(quota.namespace, ()):
            gpus, selects = pod.resources.get(resource, 0), quota.selects(pod)
            if pod.is_node and pod.job in counted:
                counted[pod.job].add(selects)
                besides[pod.job] = besides.get(pod.job, 0) + (0 if selects else gpus)
            elif selects:
                others += gpus
        bound = frozenset(name for name, nodes in counted.items() if nodes != {False})
        left = max(0, quota.hard[resource] - others) + sum(besides.get(name, 0) for name in bound)
        found.append(Bound(f"ResourceQuota {quota.namespace}/{quota.name}", bound, left))
    return found
