"""Reads what the controller needs out of Kueue's objects, as ``v1beta1`` or ``v1beta2`` shows them.

Invariant: counts are whole GPUs, rounded down, and never negative. An object that has another number is refused by its
kind and name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from elastic_launcher.engines.kubernetes.nodes.pod_status import KUEUE_LABEL, condition
from elastic_launcher.quota.scheduling import KEEPS_AWAY, Flavor, Taint, scheduling_of
from elastic_launcher.quota.sources.kueue.tree import Quota
from elastic_launcher.quota.sources.quantities import exact, whole

GROUP = "kueue.x-k8s.io"
DEFAULT_QUEUE = "default"
"""The LocalQueue of what names none; source: Kueue's documentation of LocalQueue defaulting."""
NEVER, LOWER_PRIORITY = "Never", "LowerPriority"
"""What ``reclaimWithinCohort`` may be; ``Any`` is the third."""

Document = Mapping[str, Any]


class KueueError(ValueError):
    """An object of Kueue's that can't be used; the message says which, what is wrong, and what it must be."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An object that can't be used.

    Attributes:
        why: The message.
    """

    why: str


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """A ClusterQueue.

    Attributes:
        name: Its name.
        cohort: The Cohort that it belongs to; "" for none.
        quotas: Its quota of each resource, by resource and flavor.
        weight: Its part of what the cohort's queues borrow.
        reclaims: Whether it takes back what it has lent: ``Any``, ``LowerPriority`` or ``Never``.
        stopped: Whether it admits nothing now.
    """

    name: str
    cohort: str = ""
    quotas: Mapping[tuple[str, str], Quota] = field(default_factory=lambda: MappingProxyType({}))
    weight: float = 1.0
    reclaims: str = NEVER
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Cohort:
    """A Cohort.

    Attributes:
        name: Its name.
        parent: The Cohort above it; "" for none.
        quotas: What it has besides its queues' quotas, by resource and flavor.
        weight: Its part of what its parent's children borrow.
    """

    name: str
    parent: str = ""
    quotas: Mapping[tuple[str, str], Quota] = field(default_factory=lambda: MappingProxyType({}))
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """A LocalQueue.

    Attributes:
        namespace: Where it is.
        name: Its name.
        queue: The ClusterQueue that it leads to.
        stopped: Whether it admits nothing now.
    """

    namespace: str
    name: str
    queue: str
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload that is not finished.

    Attributes:
        namespace: Where it is.
        name: Its name.
        owner: The Job that it is about; "" where it is about something else.
        local_queue: Its LocalQueue.
        queue: The ClusterQueue where it has a reservation; "" while it has none.
        reserved: What that is, by resource and flavor.
        asks: What it asks for, by resource.
        priority: Its priority.
        active: Whether it is to be admitted at all.
        created: When it was made, as the API shows it.
        owners: What it is about: the uids, and such as "JobSet/sweep".
    """

    namespace: str
    name: str
    owner: str = ""
    local_queue: str = ""
    queue: str = ""
    reserved: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))
    asks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    priority: int = 0
    active: bool = True
    created: str = ""
    owners: frozenset[str] = frozenset()


def cluster_queue_of(found: Document) -> ClusterQueue | Refused:
    """Returns a ClusterQueue, or why it can't be used."""
    name, spec = found["metadata"]["name"], found.get("spec") or {}
    what = f"ClusterQueue {name}"
    try:
        return ClusterQueue(
            name,
            _cohort(spec, "cohortName") or _cohort(spec, "cohort"),
            _quotas(spec, what),
            _weight(spec, what),
            str((spec.get("preemption") or {}).get("reclaimWithinCohort") or NEVER),
            _stopped(spec),
        )
    except KueueError as error:
        return Refused(str(error))


def cohort_of(found: Document) -> Cohort | Refused:
    """Returns a Cohort, or why it can't be used."""
    name, spec = found["metadata"]["name"], found.get("spec") or {}
    what = f"Cohort {name}"
    try:
        return Cohort(name, _cohort(spec, "parentName"), _quotas(spec, what), _weight(spec, what))
    except KueueError as error:
        return Refused(str(error))


def local_queue_of(found: Document) -> LocalQueue:
    """Returns a LocalQueue."""
    metadata, spec = found["metadata"], found.get("spec") or {}
    return LocalQueue(metadata["namespace"], metadata["name"], str(spec.get("clusterQueue") or ""), _stopped(spec))


def flavor_of(found: Document) -> Flavor:
    """Returns a ResourceFlavor; what of it can't be understood excludes no machine.

    Source of the rules: Kueue's documentation of ResourceFlavors.
    """
    spec = found.get("spec") or {}
    asked = {"nodeSelector": spec.get("nodeLabels"), "tolerations": spec.get("tolerations")}
    taints = (
        Taint(str(one.get("key")), str(one.get("value") or ""), str(one.get("effect")))
        for one in spec.get("nodeTaints") or ()
    )
    kept = tuple(taint for taint in taints if taint.effect in KEEPS_AWAY)
    return Flavor(found["metadata"]["name"], scheduling_of(asked), kept)


def workload_of(found: Document) -> Workload | Refused | None:
    """Returns a Workload, or why it can't be used; None where it is finished.

    A Workload has its GPUs from the reservation of quota on, and not only from its admission: checks lie in between.
    """
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    if condition(status, "Finished") is not None:
        return None
    owners = metadata.get("ownerReferences") or ()
    jobs = [one["name"] for one in owners if one.get("kind") == "Job"]
    admission = status.get("admission") or {} if condition(status, "QuotaReserved") is not None else {}
    what = f"Workload {metadata['namespace']}/{metadata['name']}"
    try:
        return Workload(
            metadata["namespace"],
            metadata["name"],
            jobs[0] if jobs else "",
            str(spec.get("queueName") or (metadata.get("labels") or {}).get(KUEUE_LABEL, "")),
            str(admission.get("clusterQueue") or ""),
            _reserved(status, admission, what),
            _asked(spec, what),
            int(spec.get("priority") or 0),
            spec.get("active") is not False,
            str(metadata.get("creationTimestamp") or ""),
            frozenset(key for one in owners for key in (one.get("uid"), f"{one.get('kind')}/{one['name']}") if key),
        )
    except KueueError as error:
        return Refused(str(error))


def _cohort(spec: Document, key: str) -> str:
    return str(spec.get(key) or "")


def _stopped(spec: Document) -> bool:
    return str(spec.get("stopPolicy") or "None") != "None"


def _weight(spec: Document, what: str) -> float:
    given = (spec.get("fairSharing") or {}).get("weight")
    try:
        return 1.0 if given is None else float(exact(given))
    except ValueError as error:
        raise KueueError(f"{what}, fairSharing.weight: {error}") from error


def _quotas(spec: Document, what: str) -> Mapping[tuple[str, str], Quota]:
    found: dict[tuple[str, str], Quota] = {}
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for one in flavor.get("resources") or ():
                key = str(one.get("name")), str(flavor.get("name"))
                where = f"{what}: of {key[0]} in flavor {key[1]}"
                found[key] = Quota(
                    _count(one, "nominalQuota", where) or 0,
                    _count(one, "borrowingLimit", where),
                    _count(one, "lendingLimit", where),
                )
    return MappingProxyType(found)


def _count(row: Document, key: str, where: str) -> int | None:
    value = row.get(key)
    if value is None:
        return None
    try:
        return whole(value)
    except ValueError as error:
        raise KueueError(f"{where}, {key}: {error}") from error


def _reserved(status: Document, admission: Document, what: str) -> Mapping[tuple[str, str], int]:
    """Returns what a Workload has reserved, less the part of pods that have ended."""
    ended = {one.get("name"): int(one.get("count") or 0) for one in status.get("reclaimablePods") or ()}
    found: dict[tuple[str, str], int] = {}
    for one in admission.get("podSetAssignments") or ():
        flavors, usage = one.get("flavors") or {}, one.get("resourceUsage") or {}
        pods = max(1, int(one.get("count") or 1))
        for resource in usage:
            count = _count(usage, resource, f"{what}: resourceUsage") or 0
            left = count * max(0, pods - ended.get(one.get("name"), 0)) // pods
            if resource in flavors and left:
                key = resource, str(flavors[resource])
                found[key] = found.get(key, 0) + left
    return MappingProxyType(found)


def _asked(spec: Document, what: str) -> Mapping[str, int]:
    """Returns what all pods of a Workload ask for in extended resources; init containers ask for no more."""
    found: dict[str, int] = {}
    for one in spec.get("podSets") or ():
        pods = int(one.get("count") or 0)
        for container in ((one.get("template") or {}).get("spec") or {}).get("containers") or ():
            resources = container.get("resources") or {}
            asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
            for resource in (name for name in asked if "/" in name):
                found[resource] = found.get(resource, 0) + pods * (_count(asked, resource, what) or 0)
    return MappingProxyType(found)
