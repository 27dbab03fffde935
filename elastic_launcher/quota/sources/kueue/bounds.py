"""Counts what Kueue's queues and cohorts leave to the jobs, and what they guarantee.

All is summed from Workloads: a ClusterQueue's status lags them by up to a second.

A job may count on what Kueue would admit if all jobs of the controller gave way, for the controller is who makes them
give way: so a bound is what the tree leaves beside the Workloads of others. Where a cohort's queues have lending
limits, or Workloads of others wait to borrow, that is more than all can have at once. There a queue is bound by what it
has and what is free now, too.

Invariants: the bounds do not depend on the order of the objects; a queue is left at least what it owns and Kueue would
take back for it; Workloads of others that wait for what their queue owns count as if they had it, so that jobs make
room for them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.rounds.world import Bound
from elastic_launcher.quota.sources.kueue.kueue import QUEUE, Kueue
from elastic_launcher.quota.sources.kueue.objects import DEFAULT_QUEUE, LOWER_PRIORITY, NEVER, Workload
from elastic_launcher.quota.sources.kueue.tree import NO_QUOTA, FlavorTree, downwards
from elastic_launcher.quota.sources.machines import Pod

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Leave:
    """What Kueue leaves to the jobs.

    Attributes:
        bounds: What each queue and each cohort leaves to its jobs.
        taken: What the Workloads of others have, or will get for they wait for what their queue owns, by namespace and
            LocalQueue; without what Kueue would take from them for jobs.
        leaving: What pods have beyond what their Workloads count for, as those of a Workload that was evicted, by the
            name of the machine.
    """

    bounds: tuple[Bound, ...]
    taken: Mapping[tuple[str, str], int]
    leaving: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def leave(kueue: Kueue, jobs: Iterable[Job], pods: Iterable[Pod] = ()) -> Leave:
    """Returns what Kueue leaves to jobs.

    Args:
        kueue: Kueue's objects.
        jobs: The jobs, with the namespace in their match; one's LocalQueue is that of its Workloads, or else the one
            that it reports, or else the namespace's default.
        pods: Those that have not ended.
    """
    return _Counting(kueue, {(job.match.get("namespace", ""), job.id): job for job in jobs}).leave(pods)


@dataclass(slots=True)
class _Usage:
    """What one queue has by flavor: its jobs' Workloads, those of others, and those of others that wait for it.

    Attributes:
        own: Of jobs.
        others: Of others.
        taken: Of others by flavor, and then by namespace and LocalQueue; those that wait are in it.
        reserved: The others' Workloads with a reservation: flavor, GPUs and priority.
    """

    own: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    taken: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict)
    reserved: list[tuple[str, int, int]] = field(default_factory=list)

    def take(self, flavor: str, gpus: int, whose: tuple[str, str]) -> None:
        """Counts GPUs of others."""
        _add(self.others, flavor, gpus)
        _add(self.taken.setdefault(flavor, {}), whose, gpus)


class _Counting:
    def __init__(self, kueue: Kueue, jobs: Mapping[tuple[str, str], Job]) -> None:
        self._kueue = kueue
        self._named = jobs
        self._counted: dict[tuple[str, str], int] = {}  # what others have, by the namespace and name of their Workload
        self._usage = {node: _Usage() for node in kueue.parents if node.startswith(QUEUE)}
        self._gone = _Usage()  # of queues that are gone, or no longer have the resource
        self._back: dict[tuple[str, str], int] = {}  # what was counted already
        self._lacks: dict[tuple[str, str], int] = {}
        self._priorities: dict[str, int] = {}
        self._coveted: set[str] = set()  # the roots under which Workloads of others wait to borrow
        local: dict[tuple[str, str], str] = {}
        waiting = []
        for one in sorted(kueue.workloads, key=lambda one: (one.namespace, one.name)):
            job = jobs.get((one.namespace, job_of_node(one.owner)))
            if job is not None:
                local[one.namespace, job.id] = one.local_queue
                self._take_own(one)
            elif one.queue:
                self._take_other(one)
            else:
                waiting.append(one)
        self._take_waiting(waiting)
        self._jobs: dict[str, list[Job]] = {}
        for (namespace, name), job in sorted(jobs.items()):
            local_queue = local.get((namespace, name)) or job.match.get("queue") or DEFAULT_QUEUE
            queue = kueue.queue_of(namespace, local_queue)
            if queue:
                self._jobs.setdefault(QUEUE + queue, []).append(job)
        self._use = {queue: sum(job.maximum for job in those) for queue, those in self._jobs.items()}

    def _take_own(self, workload: Workload) -> None:
        for flavor, gpus in self._gpus(workload):
            if QUEUE + workload.queue in self._usage:
                _add(self._usage[QUEUE + workload.queue].own, flavor, gpus)
        queue = QUEUE + self._kueue.queue_of(workload.namespace, workload.local_queue)
        self._priorities[queue] = min(workload.priority, self._priorities.get(queue, workload.priority))

    def _gpus(self, workload: Workload) -> list[tuple[str, int]]:
        return [
            (flavor, gpus) for (resource, flavor), gpus in workload.reserved.items() if resource == self._kueue.resource
        ]

    def _take_other(self, workload: Workload) -> None:
        usage = self._usage.get(QUEUE + workload.queue, self._gone)
        for flavor, gpus in self._gpus(workload):
            usage.take(flavor, gpus, (workload.namespace, workload.local_queue))
            _add(self._counted, (workload.namespace, workload.name), gpus)
            usage.reserved.append((flavor, gpus, workload.priority))

    def _take_waiting(self, workloads: Sequence[Workload]) -> None:
        """Counts those Workloads of others that are whole within what their queue owns and nobody of it uses.

        The others wait to borrow.
        """
        empty = self._kueue.trees()
        for one in sorted(workloads, key=lambda one: (-one.priority, one.created, one.namespace, one.name)):
            asks = one.asks.get(self._kueue.resource, 0)
            local = self._kueue.local_queues.get((one.namespace, one.local_queue))
            name = self._kueue.queue_of(one.namespace, one.local_queue)
            if not asks or not one.active or local is None or local.stopped:
                continue
            if not name or self._kueue.queues[name].stopped:
                continue
            usage = self._usage[QUEUE + name]
            for flavor, quotas in sorted(self._kueue.quotas.items()):
                if asks <= quotas.get(QUEUE + name, NO_QUOTA).nominal - usage.others.get(flavor, 0):
                    usage.take(flavor, asks, (one.namespace, one.local_queue))
                    _add(self._counted, (one.namespace, one.name), asks)
                    break
            else:
                if any(tree.available(QUEUE + name) >= asks for tree in empty.values()):
                    self._coveted.add(self._kueue.root(QUEUE + name))

    def leave(self, pods: Iterable[Pod]) -> Leave:
        """Returns the outcome."""
        others = self._kueue.trees({node: usage.others for node, usage in self._usage.items()})
        both = self._kueue.trees({node: _sum(usage.own, usage.others) for node, usage in self._usage.items()})
        bounds = []
        for node in downwards(self._kueue.children):
            jobs = frozenset(job.id for queue in self._kueue.below(node) for job in self._jobs.get(queue, ()))
            if jobs and node.startswith(QUEUE) and self._kueue.queues[node.removeprefix(QUEUE)].stopped:
                bounds.append(Bound(node, jobs, sum(self._usage[node].own.values())))  # it admits nothing now
            elif jobs and node.startswith(QUEUE):
                bounds.append(Bound(node, jobs, self._of_queue(node, others, both)))
            elif jobs:
                bounds.append(Bound(node, jobs, self._of_cohort(node, others, both)))
        return Leave(tuple(bounds), self._taken(), self._leaving(pods))

    def _of_queue(self, node: str, others: Mapping[str, FlavorTree], both: Mapping[str, FlavorTree]) -> int:
        return sum(max(0, self._of_flavor(node, flavor, others[flavor], both[flavor])) for flavor in others)

    def _of_flavor(self, node: str, flavor: str, others: FlavorTree, both: FlavorTree) -> int:
        """Returns what a queue's jobs may have of a flavor.

        That is what is free, or what the queue owns where Kueue takes that back. Source of the rule: a queue whose
        quota is lent out must ask for it, or Kueue never begins to take it back. Until it has, nobody else grows: what
        is free goes to whom Kueue takes back for. Where Workloads of others wait to borrow, what a job gives up goes to
        them, and to no other job.
        """
        free, own = others.available(node), self._usage[node].own.get(flavor, 0)
        root, owned = self._kueue.root(node), self._owned(node, flavor, others)
        missing = self._missing(root, flavor, others, both)
        if missing or root in self._coveted or self._lends(node, flavor):
            free = min(free, own if missing else own + both.available(node))
        if missing or root in self._coveted:
            return max(free, owned) if self._reclaims(node, flavor) else free
        return max(free, owned)

    def _reclaims(self, node: str, flavor: str) -> bool:
        """Returns whether a queue gets what it owns though others take what comes free."""
        every = self._kueue.queues[node.removeprefix(QUEUE)].reclaims not in (NEVER, LOWER_PRIORITY)
        return every or self._taken_back(node, flavor) > 0

    def _owned(self, node: str, flavor: str, others: FlavorTree) -> int:
        """Returns what a queue's jobs may have of what it owns: what they have, what is free, what is taken back."""
        owned = self._kueue.quotas[flavor].get(node, NO_QUOTA).nominal - self._usage[node].others.get(flavor, 0)
        has = self._usage[node].own.get(flavor, 0)
        return max(0, min(owned, max(has, others.available(node) + self._taken_back(node, flavor))))

    def _of_cohort(self, node: str, others: Mapping[str, FlavorTree], both: Mapping[str, FlavorTree]) -> int:
        """Returns what the jobs of a cohort may have together: what is free, and what Kueue takes back for them."""
        gpus = 0
        for flavor, tree in others.items():
            safe = sum(
                min(self._usage[queue].own.get(flavor, 0), self._owned(queue, flavor, tree))
                for queue in self._kueue.below(node)
            )
            gpus += max(safe, tree.room(node, self._use) + self._missing(node, flavor, tree, both[flavor]))
        return gpus

    def _missing(self, node: str, flavor: str, others: FlavorTree, both: FlavorTree) -> int:
        """Returns how much Kueue is to take back for the jobs below a node.

        It takes nothing back for a queue that has what it owns, and nothing while something is free for those that
        lack it: what another queue does not lend is not.
        """
        if (node, flavor) in self._lacks:
            return self._lacks[node, flavor]
        most, lacks = 0, dict[str, int]()
        for queue in self._kueue.below(node):
            back = self._taken_back(queue, flavor) if queue in self._jobs else 0
            if back:
                most = max(most, back)
                asked = self._asked(queue, self._owned(queue, flavor, others))
                lacks[queue] = max(0, asked - self._usage[queue].own.get(flavor, 0))
        lacking = sum(lacks.values())
        self._lacks[node, flavor] = min(most, max(0, lacking - both.room(node, lacks))) if lacking else 0
        return self._lacks[node, flavor]

    def _asked(self, node: str, owned: int) -> int:
        """Returns how much of what their queue owns the jobs of a queue can use."""
        return min(owned, sum(job.maximum for job in self._jobs[node] if job.minimum <= owned))

    def _lends(self, node: str, flavor: str) -> bool:
        """Returns whether a lending limit is set anywhere in a node's tree."""
        root = self._kueue.root(node)
        return any(
            quota.lending is not None and self._kueue.root(other) == root
            for other, quota in self._kueue.quotas[flavor].items()
        )

    def _taken_back(self, node: str, flavor: str) -> int:
        """Returns what Kueue would take for a queue from Workloads of others that borrow."""
        reclaims = self._kueue.queues[node.removeprefix(QUEUE)].reclaims
        if reclaims == NEVER:
            return 0
        if (node, flavor) in self._back:
            return self._back[node, flavor]
        below = self._priorities.get(node, 0) if reclaims == LOWER_PRIORITY else None
        root = self._kueue.root(node)
        self._back[node, flavor] = sum(
            self._borrowed(other, flavor, below)
            for other in self._usage
            if other != node and self._kueue.root(other) == root
        )
        return self._back[node, flavor]

    def _borrowed(self, node: str, flavor: str, below: int | None = None) -> int:
        """Returns what others have in a queue beyond its own quota, of priorities below a number."""
        usage = self._usage[node]
        beyond = usage.others.get(flavor, 0) - self._kueue.quotas[flavor].get(node, NO_QUOTA).nominal
        movable = sum(
            gpus for at, gpus, priority in usage.reserved if at == flavor and (below is None or priority < below)
        )
        return max(0, min(beyond, movable))

    def _taken(self) -> Mapping[tuple[str, str], int]:
        """Returns what others have, less what Kueue would take from them for jobs."""
        found: dict[tuple[str, str], int] = {}
        for taken in self._gone.taken.values():
            for whose, gpus in taken.items():
                _add(found, whose, gpus)
        for node, usage in self._usage.items():
            for flavor, taken in usage.taken.items():
                back = self._borrowed(node, flavor) if self._would_take(node) else 0
                for whose, gpus in sorted(taken.items()):
                    less = min(gpus, back)
                    back -= less
                    _add(found, whose, gpus - less)
        return MappingProxyType({whose: gpus for whose, gpus in found.items() if gpus})

    def _leaving(self, pods: Iterable[Pod]) -> Mapping[str, int]:
        """Returns what pods of others still have: Kueue gives their quota to others before they have ended.

        Of a Workload's pods, those that are being deleted are the first to count for nothing any more.
        """
        counted = dict(self._counted)
        found: dict[str, int] = {}
        for pod in sorted(pods, key=lambda pod: (pod.leaves, pod.machine)):
            if not pod.of_kueue or not pod.machine or (pod.is_node and (pod.namespace, pod.job) in self._named):
                continue
            gpus, workload = pod.resources.get(self._kueue.resource, 0), self._kueue.workload_of(pod)
            if workload is not None:
                name = workload.namespace, workload.name
                covered = min(gpus, counted.get(name, 0))
                _add(counted, name, -covered)
                _add(found, pod.machine, gpus - covered)
            elif pod.leaves:
                _add(found, pod.machine, gpus)
        return MappingProxyType({machine: gpus for machine, gpus in found.items() if gpus})

    def _would_take(self, node: str) -> bool:
        """Returns whether a queue of the same tree has jobs for which Kueue would take from a queue."""
        root = self._kueue.root(node)
        return any(
            other != node
            and self._kueue.root(other) == root
            and self._kueue.queues[other.removeprefix(QUEUE)].reclaims != NEVER
            for other in self._jobs
        )


def job_of_node(name: str) -> str:
    """Returns the id of the job that a Job may be a node of, by the Job's name; "" for no such name."""
    job, _, node = name.rpartition("-")
    return job if node.isdecimal() else ""


def _add(counts: dict[T, int], name: T, gpus: int) -> None:
    counts[name] = counts.get(name, 0) + gpus


def _sum(some: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: some.get(name, 0) + others.get(name, 0) for name in {*some, *others}}
