"""Reads what the controller needs out of the API's Nodes, Pods and Services."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from elastic_launcher.engines.kubernetes.nodes.taints import NOTICES
from elastic_launcher.engines.kubernetes.objects.names import COORDINATOR_LABEL, JOB_LABEL, KIND_LABEL, NODE_LABEL
from elastic_launcher.engines.kubernetes.objects.service import STATUS
from elastic_launcher.engines.kubernetes.objects.template import OVER_QUOTA
from elastic_launcher.quota.jobs import Job, ReportError, job_of
from elastic_launcher.quota.scheduling import KEEPS_AWAY, Taint
from elastic_launcher.quota.sources.machine import Machine
from elastic_launcher.quota.sources.machines import Pod, Service
from elastic_launcher.quota.sources.quantities import whole

ADMITTED = "kueue.x-k8s.io/podset"
"""The label of pods that Kueue has admitted; older versions set it with TopologyAwareScheduling alone."""
WORKLOAD = "kueue.x-k8s.io/workload"
"""The annotation of such pods that names their Workload; with TopologyAwareScheduling alone."""
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""The label of the pods of a JobSet, which the Jobs of the JobSet control; source: JobSet's documentation."""
RAY_LABEL = "ray.io/cluster"
"""The label of the pods of a RayCluster, which names it."""
_OF_RAY = re.compile(r"(?P<owner>.+?)(-raycluster)?-[a-z0-9]{5}")
"""The name of a RayCluster that a RayJob or a RayService makes, after its own; newer versions of KubeRay leave a part
out. Source: KubeRay."""
ENDED = ("Succeeded", "Failed")
KAI_QUEUE_LABEL = "kai.scheduler/queue"
POD_GROUP = "pod-group-name"
"""The annotation by which KAI's pod grouper says of each pod in which PodGroup it is."""

Document = Mapping[str, Any]


def machine_of(node: Document) -> Machine:
    """Returns a machine."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())
    taints = frozenset(
        Taint(str(one.get("key")), one.get("value") or "", str(one.get("effect")))
        for one in spec.get("taints") or ()
        if one.get("effect") in KEEPS_AWAY or one.get("key") in NOTICES
    )
    return Machine(
        node["metadata"]["name"],
        _extended(status.get("allocatable")),
        ready and not spec.get("unschedulable"),
        taints,
        node["metadata"].get("labels") or {},
    )


def pod_of(pod: Document) -> Pod | None:
    """Returns a pod; None if it holds nothing that counts, or nothing any more.

    A pod that is deleted before it has a place counts as one behind a gate.
    """
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    labels = metadata.get("labels") or {}
    machine = spec.get("nodeName") or ""
    if (pod.get("status") or {}).get("phase") in ENDED:
        return None
    gated = not machine and bool(spec.get("schedulingGates") or metadata.get("deletionTimestamp"))
    resources, annotations = _requests(spec), metadata.get("annotations") or {}
    job = labels.get(JOB_LABEL) or labels.get(COORDINATOR_LABEL) or ""
    if not resources and not job:
        return None
    return Pod(
        metadata["namespace"],
        resources,
        machine,
        job,
        NODE_LABEL in labels,
        gated,
        spec.get("priorityClassName") or "",
        labels.get(KAI_QUEUE_LABEL) or "",
        ADMITTED in labels,
        annotations.get(WORKLOAD) or "",
        _owners(metadata),
        "deletionTimestamp" in metadata,
        labels.get(KIND_LABEL) == OVER_QUOTA,
        _number(labels.get(NODE_LABEL, "")),
        annotations.get(POD_GROUP) or "",
        KIND_LABEL in labels,
    )


def _number(text: str) -> int:
    """Returns the number of a node; 0 if the text is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _owners(metadata: Document) -> frozenset[str]:
    """Returns the uids of a pod itself and of what controls it, and the kinds and names of what may control that."""
    controllers = (one.get("uid") for one in metadata.get("ownerReferences") or () if one.get("controller"))
    found = [uid for uid in (metadata.get("uid"), *controllers) if uid]
    labels = metadata.get("labels") or {}
    if name := labels.get(JOBSET_LABEL):
        found.append(f"JobSet/{name}")
    if of_ray := _OF_RAY.fullmatch(labels.get(RAY_LABEL) or ""):
        found += [f"RayJob/{of_ray['owner']}", f"RayService/{of_ray['owner']}"]
    return frozenset(found)


def service_of(service: Document, before: Service | None, now: float) -> Service:
    """Returns the Service of a job.

    The report is as old as the change by which it was seen: launchers say when they made it, by clocks of their own.

    Args:
        service: As the API shows it.
        before: As it was known before, or None.
        now: Seconds since the epoch.
    """
    metadata = service["metadata"]
    text = (metadata.get("annotations") or {}).get(STATUS, "")
    last = before.job if before is not None else None
    if before is not None and before.text == text:
        job, refused = last, before.refused
    else:
        job, refused = _report(text, last, now)
    created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    return Service(metadata["namespace"], metadata["name"], metadata["uid"], created, job, refused, text)


def _report(text: str, last: Job | None, now: float) -> tuple[Job | None, str]:
    """Returns the job that a status reports, or the last one with the reason why it is none."""
    if not text:  # its launcher has just begun
        return last, ""
    try:
        return replace(job_of(json.loads(text)), reported_at=now), ""
    except ReportError as error:
        return last, str(error)
    except (ValueError, RecursionError):
        return last, f"annotation {STATUS} is not JSON"


def _requests(spec: Document) -> dict[str, int]:
    """Returns what a pod asks for: all of its containers together, or the largest of those that prepare it.

    Init containers that go on running count from their start on.
    Source: Kubernetes' documentation of pod resources with sidecar containers.
    """
    going: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            going = _sum(going, asked)
        peak = _most(peak, going if container.get("restartPolicy") == "Always" else _sum(going, asked))
    for container in spec.get("containers") or ():
        going = _sum(going, _asked(container))
    return _most(peak, going)


def _asked(container: Document) -> dict[str, int]:
    resources = container.get("resources") or {}
    return _extended({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _extended(quantities: Document | None) -> dict[str, int]:
    """Returns the extended resources, which are whole numbers and have a domain in their names."""
    found = {name: whole_number(text) for name, text in (quantities or {}).items() if "/" in name}
    return {name: number for name, number in found.items() if number}


def whole_number(quantity: Any) -> int:
    """Returns a quantity of the API, rounded down; 0 for what is none."""
    try:
        return whole(quantity)
    except ValueError:
        return 0


def _sum(some: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: some.get(name, 0) + others.get(name, 0) for name in {*some, *others}}


def _most(some: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: max(some.get(name, 0), others.get(name, 0)) for name in {*some, *others}}
