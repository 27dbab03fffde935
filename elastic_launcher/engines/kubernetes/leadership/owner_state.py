"""Decides whether the launcher's step is being stopped or only moved, from its pod and the pod's controllers.

Invariants: an owner that is ending always means *stop*; *hand over* needs an owner that lives
and will recreate the pod; in doubt, a signalled launcher stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Document = Mapping[str, Any]


class Order(StrEnum):
    """The order to the launcher."""

    NOTHING = "nothing"
    STOP = "stop"
    HAND_OVER = "hand over"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The order to the launcher, and its reason in one line; empty where there is nothing to do."""

    order: Order
    why: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An object that could not be read; None is one that does not exist."""


UNKNOWN = Unknown()

USUAL_GRACE = 30
"""Seconds that a cluster gives a pod that asks for nothing else."""
_FINISHED = ("Succeeded", "Failed", "Error")
_JOB_ENDS = ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet")


def judge(pod: Document | Unknown | None, owner: Document | Unknown | None, signalled: bool) -> Verdict:
    """Returns what the launcher is to do.

    Args:
        pod: Its own pod.
        owner: What controls its pod: a Workflow, a Job, anything else; the pod itself where nothing does.
        signalled: Whether SIGTERM has come.
    """
    ending = _ending(owner)
    if ending:
        return Verdict(Order.STOP, ending)
    if not signalled:
        return Verdict(Order.NOTHING)
    if isinstance(owner, Unknown) or isinstance(pod, Unknown):
        return Verdict(Order.STOP, "SIGTERM, and it can't be read whether the step is stopped or moved")
    moved = "its pod was deleted" if pod is None else _moved(pod)
    if not moved:
        return Verdict(Order.STOP, "SIGTERM, while neither its pod nor what controls that is being deleted")
    assert owner is not None
    last = _last_of(owner)
    return Verdict(Order.STOP, f"{moved}, and {last}") if last else Verdict(Order.HAND_OVER, moved)


def grace_of(pod: Document) -> float:
    """Returns how many seconds the processes of a pod have from SIGTERM until they are killed."""
    asked = (pod.get("metadata") or {}).get("deletionGracePeriodSeconds")
    usual = (pod.get("spec") or {}).get("terminationGracePeriodSeconds", USUAL_GRACE)
    return float(usual if asked is None else asked)


def _ending(owner: Document | Unknown | None) -> str:
    """Returns how an owner ends; empty where it does not, or can't be read."""
    if owner is None:
        return "what the step belongs to was deleted"
    if isinstance(owner, Unknown):
        return ""
    name = _name(owner)
    if owner.get("kind") == "Pod":
        return ""  # the launcher's own pod: its deletion means no more than the signal
    if (owner.get("metadata") or {}).get("deletionTimestamp"):
        return f"{name} is being deleted"
    spec, status = owner.get("spec") or {}, owner.get("status") or {}
    if owner.get("kind") == "Workflow":
        if spec.get("shutdown"):
            return f"{name} was told to shut down ({spec['shutdown']})"
        if spec.get("activeDeadlineSeconds") == 0:
            return f"{name} was terminated"
        return f"{name} has ended ({status['phase']})" if status.get("phase") in _FINISHED else ""
    if owner.get("kind") == "Job":
        if spec.get("suspend"):
            return f"{name} was suspended"
        for one in status.get("conditions") or ():
            if one.get("type") in _JOB_ENDS and one.get("status") == "True":
                return f"{name} has ended ({one.get('reason') or one['type']})"
    return ""


def _moved(pod: Document) -> str:
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            return f"its pod is being moved ({one.get('reason') or 'DisruptionTarget'})"
    return "its pod is being deleted" if (pod.get("metadata") or {}).get("deletionTimestamp") else ""


def _name(owner: Document) -> str:
    return f"{owner.get('kind', 'its owner')} {(owner.get('metadata') or {}).get('name', '')}".rstrip()


def _last_of(owner: Document) -> str:
    """Returns why an owner will not make the pod again; empty where it may."""
    if owner.get("kind") == "Pod":
        return "nothing controls it that would make another"
    spec, status = owner.get("spec") or {}, owner.get("status") or {}
    if owner.get("kind") == "Job" and "podFailurePolicy" not in spec:
        # a Job counts a pod as failed as soon as it is being deleted, unless told otherwise: that is this one
        counted = status.get("terminating", 0) > 0 and spec.get("podReplacementPolicy") != "Failed"
        if status.get("failed", 0) - counted >= spec.get("backoffLimit", 6):
            return f"{_name(owner)} has no retries left (backoffLimit)"
    return ""
