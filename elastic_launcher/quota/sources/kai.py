"""The queues of the KAI scheduler as projects, and their limits as bounds.

What others hold of a queue is counted from the pods themselves, by the queue of their PodGroup: the queue's own
``status.allocated`` has the nodes of jobs in it too, and is written some time after a pod has come or gone. KAI takes
a PodGroup's queue from the label of what owns the pod, such as a Deployment, or of the pod itself. A pod that is in no
PodGroup yet, as in the second after it was made, is in the queue of its own label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import floor
from typing import Any

from elastic_launcher.hints.document import MAX_GPUS
from elastic_launcher.kube.collection import Collection
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Capacity, Projects, QuotaError
from elastic_launcher.quota.queues import Queue
from elastic_launcher.quota.rounds.world import Bound
from elastic_launcher.quota.sources.enforcer import Following, Word
from elastic_launcher.quota.sources.machines import Pod
from elastic_launcher.quota.sources.watched import Granted, Watched

OVERLAY = "quota-kai"
"""What grants the reading of both; `elastic_launcher/quota/cluster/rights.py` names it too."""
_WITHOUT_GROUPS = (
    "pods without a queue's label count for no queue, and nodes that KAI does not take back are hinted above its quota"
)
UNLIMITED = -1
PRIORITY = 100
"""Of a queue that has none."""
REFUSED = "NonPreemptibleOverQuota"
"""Why KAI gives a pod no place that it would not take back."""
_KEEPS = ", above which it places only what it may take back,"


@dataclass(frozen=True, slots=True)
class KaiQueue:
    """A queue of KAI; numbers are GPUs, whole ones.

    Attributes:
        name: Its name.
        quota: What it deserves; None for as much as it asks for.
        limit: The most that it may have, with all queues below it; None for no limit.
        weight: Its part of what is over quota.
        priority: What is over quota goes to the highest priority first.
        parent: The queue above it, or None.
    """

    name: str
    quota: int | None = 0
    limit: int | None = 0
    weight: float = 0.0
    priority: int = PRIORITY
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A group of pods that KAI places together, or one by one.

    Attributes:
        namespace: Where it is.
        name: Its name.
        queue: Its queue.
        keeps: Whether KAI takes none of its pods back, and so places them within the queue's quota alone.
    """

    namespace: str
    name: str
    queue: str
    keeps: bool = False


def pod_group_of(shown: Mapping[str, Any]) -> PodGroup | None:
    """Returns a PodGroup as the API shows it (``scheduling.run.ai/v2alpha2``); None if it is in no queue.

    What its priority class makes of it is seen once a pod of it has a place, or is refused one for it.
    """
    metadata, spec, status = shown["metadata"], shown.get("spec") or {}, shown.get("status") or {}
    conditions = status.get("schedulingConditions") or ()
    keeps = (
        spec.get("preemptibility") == "non-preemptible"
        or bool((status.get("resourcesStatus") or {}).get("allocatedNonPreemptible"))
        or any(one.get("reason") == REFUSED for each in conditions for one in each.get("reasons") or ())
    )
    queue = spec.get("queue")
    return PodGroup(metadata["namespace"], metadata["name"], queue, keeps) if queue else None


def queue_of(shown: Mapping[str, Any]) -> KaiQueue:
    """Returns a queue as the API shows it (``scheduling.run.ai/v2``); what is not set there is 0, as KAI has it."""
    spec = shown.get("spec") or {}
    gpu = (spec.get("resources") or {}).get("gpu") or {}
    priority = spec.get("priority")
    return KaiQueue(
        shown["metadata"]["name"],
        _gpus(gpu.get("quota")),
        _gpus(gpu.get("limit")),
        max(0.0, gpu.get("overQuotaWeight") or 0.0),
        PRIORITY if priority is None else priority,
        spec.get("parentQueue") or None,
    )


def _gpus(number: float | None) -> int | None:
    """Returns whole GPUs; KAI counts parts of them too."""
    return None if number == UNLIMITED else max(0, floor(number or 0))


def projects_of(queues: Iterable[KaiQueue]) -> list[Queue]:
    """Returns the queues as projects.

    A queue that deserves as much as it asks for is guaranteed what the queues below it are, or without such queues all
    that its limit allows. Jobs belong to it that name it as their project or their queue.
    """
    by_name = {queue.name: queue for queue in queues}
    below = _children(by_name)

    def guaranteed(queue: KaiQueue, above: frozenset[str]) -> int:
        if queue.quota is not None:
            return queue.quota
        most = MAX_GPUS if queue.limit is None else queue.limit
        children = [child for child in below.get(queue.name, ()) if child not in above]
        if not children:
            return most
        return min(most, sum(guaranteed(by_name[child], above | {child}) for child in children))

    return [
        Queue(
            queue.name,
            guaranteed(queue, frozenset({queue.name})),
            queue.limit,
            queue.weight,
            queue.priority,
            queue.parent,
            ({"project": queue.name}, {"queue": queue.name}),
        )
        for queue in by_name.values()
    ]


def _children(queues: Mapping[str, KaiQueue]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for queue in queues.values():
        if queue.parent is not None:
            found.setdefault(queue.parent, []).append(queue.name)
    return found


def bounds_of(
    queues: Iterable[KaiQueue],
    resource: str,
    projects: Projects,
    jobs: Sequence[Job],
    pods: Sequence[Pod],
    keeping: Set[tuple[str, str]] = frozenset(),
    keep: Set[str] = frozenset(),
) -> list[Bound]:
    """Returns what the limit of each queue leaves to the jobs of its project, and of the projects below that.

    Pods count that have a place, since these are what KAI has allocated. A queue in which KAI places no pods leaves its
    own jobs what their nodes have there. Jobs whose nodes it does not take back have the queue's quota for a limit.

    Args:
        queues: All queues.
        resource: What is counted.
        projects: All projects.
        jobs: Those that count.
        pods: Those of the cluster, each with its queue.
        keeping: The PodGroups of which KAI takes no pods back, by namespace and name.
        keep: The jobs of whose nodes it takes none back.
    """
    by_name = {queue.name: queue for queue in queues}
    spaces = _namespaces(jobs)
    of_queue: dict[str, set[str]] = {name: set() for name in by_name}
    closed = _closed(by_name)
    in_closed: dict[str, set[str]] = {}
    for job in jobs:
        own = _project(projects, job)
        for name in _path(by_name, own):
            of_queue[name].add(job.id)
        if own in closed:
            in_closed.setdefault(own, set()).add(job.id)
    others, placed, others_kept = dict.fromkeys(by_name, 0), dict[str, int](), dict.fromkeys(by_name, 0)
    for pod in pods:
        if not pod.machine:
            continue
        gpus, kept = pod.resources.get(resource, 0), (pod.namespace, pod.pod_group) in keeping
        is_ours = _is_ours(pod, spaces)
        if is_ours:
            placed[pod.job] = placed.get(pod.job, 0) + gpus
        for name in _path(by_name, pod.queue):
            ours = is_ours and pod.job in of_queue[name]
            others[name] += 0 if ours else gpus
            others_kept[name] += gpus if kept and not (ours and pod.job in keep) else 0
    limits = [
        Bound(f"KAI queue {name}", frozenset(of_queue[name]), max(0, queue.limit - others[name]))
        for name, queue in sorted(by_name.items())
        if queue.limit is not None
    ]
    limits += [
        Bound(f"the quota of KAI queue {name}{_KEEPS}", frozenset(there), max(0, queue.quota - others_kept[name]))
        for name, queue in sorted(by_name.items())
        if queue.quota is not None and (there := of_queue[name] & keep)
    ]
    return limits + [
        Bound(f"KAI queue {name}{closed[name]}", frozenset(there), sum(placed.get(job, 0) for job in there))
        for name, there in sorted(in_closed.items())
    ]


def _closed(queues: Mapping[str, KaiQueue]) -> dict[str, str]:
    """Returns the queues in which KAI places no pods, and why, as reasons name it.

    These are all with others below them, and those below one that does not exist.
    """
    found = {above: " itself, which has queues below it," for above in _children(queues) if above in queues}
    for name in queues:
        top = queues[_path(queues, name)[-1]].parent
        if top is not None and top not in queues:
            found[name] = f", below {top}, which does not exist,"
    return found


def _project(projects: Projects, job: Job) -> str:
    try:
        project = projects.project_of(job.match)
    except QuotaError:  # the round refuses the job, and says why
        return ""
    return "" if project is None else project.name


def _namespaces(jobs: Iterable[Job]) -> dict[str, str]:
    return {job.id: job.match.get("namespace", "") for job in jobs}


def _is_ours(pod: Pod, namespaces: Mapping[str, str]) -> bool:
    """Returns whether a pod is a node of a job that counts; one of another namespace only has its labels."""
    return pod.is_node and namespaces.get(pod.job) == pod.namespace


def _path(queues: Mapping[str, KaiQueue], name: str) -> list[str]:
    """Returns a queue and those above it; nothing if there is no such queue."""
    found: list[str] = []
    above: str | None = name
    while above is not None and above in queues and above not in found:
        found.append(above)
        above = queues[above].parent
    return found


class Kai:
    """The queues of KAI, and the PodGroups in them.

    Args:
        following: How the cluster is followed.

    Attributes:
        key: Its key under ``capacity`` in the projects document.
        watched: What is followed.
    """

    key = "kai"

    def __init__(self, following: Following) -> None:
        self._queues = Watched(
            "the queues of KAI",
            Collection("/apis/scheduling.run.ai/v2/queues"),
            lambda one, _: queue_of(one),
            following.lock,
            following.changed,
        )
        self._groups = Granted(
            "the PodGroups of KAI",
            Collection("/apis/scheduling.run.ai/v2alpha2/podgroups"),
            lambda one, _: pod_group_of(one),
            following.lock,
            following.changed,
            overlay=OVERLAY,
        )
        self.watched: Sequence[Watched[Any]] = (self._queues, self._groups)
        self._keep: Set[str] = frozenset()  # jobs whose nodes are known to stay: those that were refused may be gone

    def queues(self, _: Projects) -> list[Queue]:
        """Returns the queues as projects."""
        return projects_of(self._queues.objects.values())

    def marked(self, _: Projects, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Returns the pods, each in the queue of its PodGroup; one that will get no place there is behind a gate."""
        groups = self._pod_groups()
        closed = _closed({queue.name: queue for queue in self._queues.objects.values()})
        found = []
        for pod in pods:
            group = groups.get((pod.namespace, pod.pod_group))
            queue = pod.queue if group is None else group.queue
            gated = pod.gated or (queue in closed and not pod.machine and not pod.is_node)
            found.append(pod if (queue, gated) == (pod.queue, pod.gated) else replace(pod, queue=queue, gated=gated))
        return found

    def word(self, projects: Projects, jobs: Sequence[Job], pods: Sequence[Pod]) -> Word:
        """Returns what the queues' limits leave to jobs."""
        resource = (projects.capacity or Capacity()).resource
        groups = self._pod_groups()
        keeping = {name for name, group in groups.items() if group.keeps}
        spaces = _namespaces(jobs)
        nodes = [(pod, (pod.namespace, pod.pod_group)) for pod in pods if _is_ours(pod, spaces) and not pod.of_kind]
        keep = {pod.job for pod, group in nodes if group in keeping}
        others = {pod.job for pod, group in nodes if pod.machine and group in groups and group not in keeping}
        self._keep = (self._keep - others | keep) & spaces.keys()
        bounds = bounds_of(self._queues.objects.values(), resource, projects, jobs, pods, keeping, self._keep)
        return Word(bounds, remarks=self._groups.remarks(_WITHOUT_GROUPS))

    def _pod_groups(self) -> dict[tuple[str, str], PodGroup]:
        return {(one.namespace, one.name): one for one in self._groups.objects.values()}
