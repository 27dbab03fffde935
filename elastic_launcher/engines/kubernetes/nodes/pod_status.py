"""Derives a node's state from its Job and its pod.

It waits, for a reason in one line; it runs; it has a termination notice; or it is gone, with or without a known reason.
Invariant: any documents make one of the four, and a node that is gone stays so, whichever of its documents
go after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elastic_launcher.engines.kubernetes.objects.template import live_container

Document = Mapping[str, Any]

MOST_CHARACTERS = 300
"""A message is one line of a log."""
_FIRST_SIGNAL = 128
"""A container that a signal ended has 128 + its number for an exit code."""
_LAST_SIGNAL = 64
_KILLED = -9


class Cause(StrEnum):
    """The reason why a node waits."""

    ADMISSION = "admission"
    QUOTA = "quota"
    ROOM = "room"
    REFUSED = "refused"
    RIGHT = "right"
    IMAGE = "image"
    CONTAINER = "container"
    STARTING = "starting"


HAS_PLACE = frozenset({Cause.IMAGE, Cause.CONTAINER, Cause.STARTING})
"""The reasons for which a node waits on its machine, or has just been asked for."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A node whose agent has not begun, and why, in one line and the cluster's words."""

    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class Running:
    """A node whose agent runs, in a pod on a machine."""

    pod: str
    machine: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """A node with a termination notice.

    Attributes:
        why: By whom, in one line.
        seconds: How long it had from then on; None where that is not said yet.
        again: Whether its Job waits to be admitted again, and then has another pod.
    """

    why: str
    seconds: int | None
    again: bool = False
    pod: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """A node of which nothing runs any more, or nothing that counts.

    Attributes:
        exit_code: Its agent's exit code; minus the signal's number when a signal ended it; None if nobody can know.
        why: How it ended, in one line; empty where the exit code says it all.
        taken: Whether the cluster took it, and it did not fail by itself.
        last_line: The last of its log, where its pod has kept that; empty for one that did not fail by itself.
    """

    exit_code: int | None
    why: str = ""
    taken: bool = False
    last_line: str = ""


Standing = Waiting | Running | Leaving | Gone

_SUSPENDED = "its Job is suspended"
_IMAGE = {
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "ImageInspectError",
    "InvalidImageName",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}
_REFUSED = re.compile(r'^(Error creating: )?([a-z.]+ "[^"]*" is forbidden: )?')
"""Names a Job or a pod that never was, pods another at each try."""
_FORBIDDEN = 403
BAD_DOCUMENT = (400, 422)
_BY_ADMISSION = re.compile(r'admission webhook "|\S+ "[^"]*" is forbidden: ')
"""What others have decided, with the codes of a bad document: it says nothing of that, and may be otherwise later."""
_NO_RIGHT = re.compile(r'User ".*" cannot \w+ resource "')
_NEVER_BEGAN = {"StartError", "ContainerCannotRun"}
"""Reasons of a container that ended before its command began: its exit code is the runtime's."""
_QUOTED = r"[\"'`]{}\\*[\"'`]"
"""How a runtime names a command that it can't run; what quotes that once more puts backslashes before its quotes."""
_ORDINARY = {"", "ContainerCreating", "PodInitializing"}
_TAKEN = {"Preempting", "Preempted", "Terminated", "NodeShutdown", "Shutdown", "NodeLost", "DeadlineExceeded"}
"""Reasons of failed pods that are the cluster's doing, a pod template's own deadline among them; one that was evicted
for its own limits has no condition."""
_TURNED_AWAY = {
    "Evicted",  # its machine is short of something
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "NodeShutdown",
    "TaintToleration",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
}
"""Why kubelets refuse pods that were scheduled to them, as 1.35 has it; what else they say is about the pod itself."""
_NO_ROOM = "OutOf"
"""What such a reason starts with where the resource that the machine is out of follows."""
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "PreemptionByKubeScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "its machine has a taint that it does not tolerate",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "its machine ends it",
    "DeletionByPodGC": "its machine is gone",
}
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUEUE_LABELS = (KUEUE_LABEL, "kai.scheduler/queue", "runai/queue")
"""By which a Job or a pod names its queue."""


def standing(
    job: Document | None, pod: Document | None, events: Sequence[Document] = (), admission: str = ""
) -> Standing:
    """Returns the state of a node.

    Args:
        job: Its Job; None where it was deleted.
        pod: The Job's pod; None where there is none.
        events: Events about both, the oldest first; none where they may not be read.
        admission: Why its queue does not admit it, if that is known.
    """
    if pod is None:
        return _without_pod(job, events, admission)
    status = _node_status(pod)
    state = status.get("state") or {}
    if _part(pod, "status").get("phase") in ("Succeeded", "Failed") or "terminated" in state:
        return _ended(pod, state.get("terminated") or {})
    if status.get("restartCount"):  # nothing of ours asks for it: the agent that ran there is no more
        return Gone(None, "its machine was started again", taken=True)
    if job is not None and suspended(job):
        if "running" in state:
            return Leaving(f"taken back: {_SUSPENDED}{_by_queue(job)}", None, again=True)
        return _not_admitted(job, admission)
    leaving = _leaving(pod)
    if leaving is not None:
        return leaving
    if "running" in state:
        return Running(_part(pod, "metadata").get("name", ""), _part(pod, "spec").get("nodeName", ""))
    return _waiting(pod, state.get("waiting") or {}, events)


def _without_pod(job: Document | None, events: Sequence[Document], admission: str) -> Standing:
    if job is None or _part(job, "metadata").get("deletionTimestamp"):
        return Gone(None, "its Job was deleted", taken=True)
    status = job.get("status") or {}
    for kind in ("Failed", "FailureTarget", "Complete", "SuccessCriteriaMet"):
        found = condition(status, kind)
        if found is not None:
            why = f"its pod is gone ({found.get('reason') or kind}: {one_line(found.get('message', ''))})"
            return Gone(None, why, taken=found.get("reason") != "DeadlineExceeded")
    if suspended(job):
        return _not_admitted(job, admission)
    refusal = _last(events, {"FailedCreate"})
    if refusal is None:
        return Waiting(Cause.STARTING, "its Job has no pod yet; if that lasts, `kubectl describe job` says why")
    return refused(refusal.get("message", ""))


def suspended(job: Document) -> bool:
    """Whether a Job is there to be admitted: its queue has not let it begin yet, or has taken it back."""
    return bool((job.get("spec") or {}).get("suspend"))


def in_kueue(job: Document) -> bool:
    """Whether a Job names a queue of Kueue's."""
    return KUEUE_LABEL in (_part(job, "metadata").get("labels") or {})


def _not_admitted(job: Document, admission: str) -> Waiting:
    return Waiting(Cause.ADMISSION, f"{_SUSPENDED}{_by_queue(job)}: {admission or 'it waits for quota admission'}")


def refused(message: str) -> Waiting:
    """Returns what a node waits for whose Job, or pod, the API server refuses for now."""
    why = one_line(_REFUSED.sub("", message))
    if "exceeded quota" in why:
        return Waiting(Cause.QUOTA, why)
    return Waiting(Cause.RIGHT if _NO_RIGHT.search(why) else Cause.REFUSED, why)


def refused_for_now(status: int, message: str) -> bool:
    """Whether the API server refuses an object only as it is now: for quota, rights or admission."""
    return status == _FORBIDDEN or (status in BAD_DOCUMENT and _BY_ADMISSION.match(one_line(message)) is not None)


def _waiting(pod: Document, state: Document, events: Sequence[Document]) -> Waiting:
    scheduled = condition(_part(pod, "status"), "PodScheduled", "False")
    if scheduled is not None:
        if scheduled.get("reason") == "SchedulingGated":
            return Waiting(Cause.ADMISSION, "its pod is held back by a scheduling gate")
        return Waiting(Cause.ROOM, _room(scheduled.get("message", "")))
    for status in (*(_part(pod, "status").get("initContainerStatuses") or ()), {"state": {"waiting": state}}):
        held = (status.get("state") or {}).get("waiting") or {}
        reason = held.get("reason", "")
        if reason not in _ORDINARY:
            why = f"{reason}: {one_line(held.get('message', ''))}".removesuffix(": ")
            return Waiting(Cause.IMAGE if reason in _IMAGE else Cause.CONTAINER, why)
    trouble = _last(events, {"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedScheduling"})
    if trouble is not None:
        return Waiting(Cause.STARTING, f"{trouble['reason']}: {one_line(trouble.get('message', ''))}")
    where = _part(pod, "spec").get("nodeName")
    progress = _last(events, {"Pulling", "Pulled"})
    if where and progress is not None and progress["reason"] == "Pulling":
        return Waiting(Cause.STARTING, f"{where} is {_lowered(one_line(progress.get('message', '')))}")
    return Waiting(Cause.STARTING, f"its container is being started on {where}" if where else "it is being scheduled")


def _leaving(pod: Document) -> Leaving | None:
    seconds = _part(pod, "metadata").get("deletionGracePeriodSeconds")
    disruption = condition(_part(pod, "status"), "DisruptionTarget")
    if disruption is not None:
        reason = disruption.get("reason", "")
        what = _DISRUPTIONS.get(reason, reason or "disrupted")
        message = one_line(disruption.get("message", ""))
        return Leaving(f"{what}: {message}" if message else what, seconds)
    return Leaving("its pod is being deleted", seconds) if _part(pod, "metadata").get("deletionTimestamp") else None


def _ended(pod: Document, ended: Document) -> Gone:
    status = _part(pod, "status")
    code = ended.get("exitCode")
    reason = ended.get("reason", "")
    if code is None or reason == "ContainerStatusUnknown":
        code = 0 if status.get("phase") == "Succeeded" else None
    elif _FIRST_SIGNAL < code <= _FIRST_SIGNAL + _LAST_SIGNAL:
        code = _FIRST_SIGNAL - code
    leaving = _leaving(pod)
    taken = leaving is not None or status.get("reason") in _TAKEN or turned_away(pod)
    if not ended and (failed := _failed_init(pod)):
        return Gone(None, failed, taken)
    if status.get("reason"):
        return Gone(code, f"{status['reason']}: {one_line(status.get('message', ''))}".removesuffix(": "), taken)
    if reason == "OOMKilled":
        limit = _memory(pod)
        return Gone(_KILLED, f"OOMKilled: out of memory{limit}; raise resources.limits.memory of the pod template")
    if reason in _NEVER_BEGAN:
        why = f"{reason}: {one_line(ended.get('message', ''))}".removesuffix(": ")
        return Gone(None, why if taken else f"{why}; check the image and the command of the pod template", taken)
    if reason in ("Error", "Completed", ""):
        return Gone(code, leaving.why if leaving is not None else "", taken, "" if taken else _last_line(ended))
    return Gone(code, f"{reason}: {one_line(ended.get('message', ''))}".removesuffix(": "), taken)


def turned_away(pod: Document) -> bool:
    """Whether a pod's machine has refused it, or could not start a container of it, for a reason of its own."""
    status = _part(pod, "status")
    begun = status.get("containerStatuses") or status.get("initContainerStatuses")
    reason = status.get("reason", "")
    refused_it = status.get("phase") == "Failed" and not begun
    return (refused_it and (reason in _TURNED_AWAY or reason.startswith(_NO_ROOM))) or _machine_starts_none(pod)


def _machine_starts_none(pod: Document) -> bool:
    """Whether a container never began, and its runtime does not name the command: that the image lacks."""
    initial = {one.get("name"): one for one in _part(pod, "spec").get("initContainers") or ()}
    of_init = (
        (one, initial.get(one.get("name"), {})) for one in _part(pod, "status").get("initContainerStatuses") or ()
    )
    for status, container in (*of_init, (_node_status(pod), live_container(pod))):
        ended = (status.get("state") or {}).get("terminated") or {}
        command = container.get("command")
        if ended.get("reason") in _NEVER_BEGAN and command:  # without one it is the image's own, and nobody knows it
            return re.search(_QUOTED.format(re.escape(command[0])), ended.get("message", "")) is None
    return False


def _part(document: Document, name: str) -> Document:
    """Returns a part that each has, unless others have put what they like there."""
    found: Document = document.get(name) or {}
    return found


def _failed_init(pod: Document) -> str:
    """Returns which container failed that had to end well before the node's own began; "" if none did."""
    for status in _part(pod, "status").get("initContainerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            why = one_line(ended.get("message", "")) or ended.get("reason", "")
            said = f"its init container {status.get('name', '')} failed with {ended['exitCode']}: {why}"
            return said.removesuffix(": ")
    return ""


def _node_status(pod: Document) -> Document:
    name = live_container(pod).get("name")
    statuses = _part(pod, "status").get("containerStatuses") or ()
    return next((one for one in statuses if one.get("name") == name), {})


def _memory(pod: Document) -> str:
    limit = ((live_container(pod).get("resources") or {}).get("limits") or {}).get("memory")
    return f" beyond its limit of {limit}" if limit else ""


def condition(status: Document, kind: str, value: str = "True") -> Document | None:
    """Returns a condition of an object's status where it has that value."""
    conditions: Sequence[Document] = status.get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind and one.get("status") == value), None)


def _last(events: Sequence[Document], reasons: set[str]) -> Document | None:
    return next((one for one in reversed(events) if one.get("reason") in reasons), None)


def _by_queue(job: Document) -> str:
    labels = _part(job, "metadata").get("labels") or {}
    queue = next((labels[name] for name in QUEUE_LABELS if name in labels), "")
    return f" by queue {queue}" if queue else ""


def _room(message: str) -> str:
    """Returns what the scheduler says of machines, without what it says of preempting others."""
    first = one_line(message).partition(". ")[0]
    return first.removesuffix(".") or "no machine has room for it"


def _last_line(ended: Document) -> str:
    """Returns the last line of what a container left as its message: of its log, by the policy that nodes have."""
    lines = str(ended.get("message") or "").strip().splitlines()
    return one_line(lines[-1]) if lines else ""


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def one_line(text: str) -> str:
    """Returns a text as one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 1] + "…"
