"""The Service of a job: its stable address, and the record of its leader, which change together.

Invariant: nodes are led to the pod of the newest term alone, and whoever writes with an older one is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import COORDINATOR_LABEL, JOB_LABEL, PREFIX, Names, Owner

TERM = PREFIX + "term"
STATUS = PREFIX + "status"
NUMBERS = "numbers"
"""Of the status: ``node`` and ``member`` that were not used yet, nor any above."""
STOP = PREFIX + "stop"
"""Why the job is to stop; who sets it is whoever may edit the Service."""

_TERM = re.compile("[0-9]{1,18}")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """The record in a job's Service.

    Attributes:
        version: Its resource version, by which a change of others is noticed.
        term: Number of the leader's term; 0 before the first.
        address: The ClusterIP, the same for the job's whole life.
        status: How the job stood last.
        stop: Why it is to stop; empty where it is not.
    """

    version: str
    term: int
    address: str
    status: Mapping[str, Any]
    stop: str

    @property
    def numbers(self) -> tuple[int, int]:
        """The first node and the first member that were not used, by the status; 1 where it has none."""
        match self.status.get(NUMBERS):
            case {"node": int(node), "member": int(member)} if min(node, member) >= 1:
                return node, member
        return 1, 1


def new_service(names: Names, owner: Owner, ports: Mapping[str, int]) -> Document:
    """Returns a job's Service before anybody governs; ``ports`` are what the coordinator listens at, by name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.service,
            "labels": {JOB_LABEL: names.job_id},
            "annotations": {TERM: "0"},
            "ownerReferences": [owner.reference()],
        },
        "spec": {
            "selector": coordinator_labels(names, 0),
            "publishNotReadyAddresses": True,  # members wait for an answer, not for a probe
            "ports": [{"name": name, "port": port} for name, port in ports.items()],
        },
    }


def same_service(names: Names, owner: Owner, ports: Mapping[str, int], held: Record) -> Document:
    """Returns a job's Service as its coordinator holds it: nodes know its address, and would never learn another.

    ``held`` is what the Service said last.
    """
    service = new_service(names, owner, ports)
    service["metadata"]["annotations"] = {TERM: str(held.term), STATUS: json.dumps(held.status)}
    service["spec"] |= {"clusterIP": held.address, "selector": coordinator_labels(names, held.term)}
    return service


def coordinator_labels(names: Names, term: int) -> dict[str, str]:
    """Returns what the pod of a term's coordinator is known by."""
    return {COORDINATOR_LABEL: names.job_id, TERM: str(term)}


def take_over(names: Names, found: Record) -> Document:
    """Returns the change by which the next term begins; it conflicts with the change of another launcher."""
    term = found.term + 1
    metadata = {"resourceVersion": found.version, "annotations": {TERM: str(term)}}
    return {"metadata": metadata, "spec": {"selector": coordinator_labels(names, term)}}


def tell_status(found: Record, status: Mapping[str, Any]) -> Document:
    """Returns the change by which a status is written, refused where the Service has changed since."""
    return {"metadata": {"resourceVersion": found.version, "annotations": {STATUS: json.dumps(status)}}}


def read_record(service: Mapping[str, Any]) -> Record:
    """Returns what a Service says; what others have made unreadable of its status or its term counts as none."""
    metadata = service.get("metadata") or {}
    notes = metadata.get("annotations") or {}
    try:
        status = json.loads(notes.get(STATUS, "{}"))
    except (ValueError, RecursionError):
        status = {}
    spec = service.get("spec") or {}
    terms = (notes.get(TERM, ""), (spec.get("selector") or {}).get(TERM, ""))  # where annotations were taken, the other
    return Record(
        metadata.get("resourceVersion", ""),
        next((int(term) for term in terms if _TERM.fullmatch(term)), 0),
        spec.get("clusterIP", ""),
        status if isinstance(status, dict) else {},
        notes.get(STOP, ""),
    )
