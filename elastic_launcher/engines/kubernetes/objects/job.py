"""Builds the Job of a node: one pod, which only the coordinator recreates.

Invariant: what a Job was made of can be read back from it, and from its pod, so that a coordinator after a takeover
knows its nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_launcher import variables
from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL, KIND_LABEL, NODE_LABEL, PREFIX, Names, Owner
from elastic_launcher.engines.kubernetes.objects.pod import Shape, node_pod
from elastic_launcher.engines.kubernetes.objects.template import (
    GUARANTEED,
    OVER_QUOTA,
    Document,
    has_kinds,
    template_of_kind,
)

FIRST_MEMBER = PREFIX + "first-member"
NPROC_PER_NODE = PREFIX + "nproc-per-node"
RESIZE = PREFIX + "resize"
_RESIZES = ("in-process", "respawn")
_NUMBER = re.compile("[1-9][0-9]{0,17}")
KEPT_SECONDS = 300
"""How long a finished Job stays when no coordinator deletes it: after a takeover it shows how the node ended."""
MOST_WEIGHT = 100
"""The most that a preference may weigh for the scheduler."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of all nodes of a job: the user's pod template, and the shape that a node needs besides."""

    names: Names
    owner: Owner
    template: Mapping[str, Any]
    shape: Shape


def node_job(plan: JobPlan, spec: NodeSpec, avoided: Sequence[str] = ()) -> Document:
    """Returns the Job of a node; ``avoided`` are machines that it is put on only where no other has room.

    Raises:
        ConfigError: If the template can't be a node's pod.
    """
    resize = _RESIZES[spec.respawn]
    kind = OVER_QUOTA if spec.over_quota else GUARANTEED
    template = template_of_kind(plan.template, kind)
    ours = {JOB_LABEL: plan.names.job_id, NODE_LABEL: str(spec.node)}
    if has_kinds(plan.template):
        ours[KIND_LABEL] = kind
    environment = {
        variables.NODE: str(spec.node),
        variables.FIRST_MEMBER: str(spec.first_member),
        variables.SLOT: "0",
        variables.RESIZE: resize,
    }
    notes = {FIRST_MEMBER: str(spec.first_member), NPROC_PER_NODE: str(spec.nproc_per_node), RESIZE: resize}
    pod = node_pod(template, plan.shape, ours, environment)
    pod["metadata"]["annotations"] |= notes  # a pod may outlive its Job, and its numbers are used all the same
    if avoided:
        _keep_off(pod["spec"], avoided)
    job: Document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": plan.names.node(spec.node),
            # a queue is named by a label of the Job: Kueue and KAI look there
            "labels": (template["metadata"].get("labels") or {}) | ours,
            "annotations": notes,
            "ownerReferences": [plan.owner.reference()],
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            # a pod that is about to go is not replaced, and not counted before it has gone
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": pod,
        },
    }
    return job


def _keep_off(spec: Document, machines: Sequence[str]) -> None:
    """Has the scheduler prefer any other machine, as strongly as it can be asked to."""
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    of_nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [one]} for one in machines]
    ours = {"weight": MOST_WEIGHT, "preference": {"matchFields": fields}}
    of_nodes[_PREFERRED] = [*(of_nodes.get(_PREFERRED) or ()), ours]


def spec_of(found: Mapping[str, Any]) -> NodeSpec | None:
    """Returns what a node's Job, or its pod, was made for; None where others have made that unreadable."""
    inner = (found.get("spec") or {}).get("template") or {}  # a Job's, which nobody can change
    for metadata in (found.get("metadata") or {}, inner.get("metadata") or {}):
        notes, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
        texts = (labels.get(NODE_LABEL, ""), notes.get(FIRST_MEMBER, ""), notes.get(NPROC_PER_NODE, ""))
        if notes.get(RESIZE) in _RESIZES and all(map(_NUMBER.fullmatch, texts)):
            node, first_member, nproc_per_node = map(int, texts)
            over_quota = labels.get(KIND_LABEL) == OVER_QUOTA
            return NodeSpec(node, first_member, nproc_per_node, notes[RESIZE] == _RESIZES[True], over_quota)
    return None


def node_of(names: Names, found: Mapping[str, Any]) -> int | None:
    """Returns the node of a Job or a pod; None for an object that only has a node's label, such as a copy."""
    metadata = found.get("metadata") or {}
    controllers = (one.get("name") for one in metadata.get("ownerReferences") or () if one.get("controller"))
    number = (metadata.get("labels") or {}).get(NODE_LABEL, "")
    ours = _NUMBER.fullmatch(number) and names.node(int(number)) in (metadata.get("name"), *controllers)
    return int(number) if ours else None
