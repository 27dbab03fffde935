"""Counts what a cluster has and who holds it: from machines, pods and reports to the controller's world.

Invariants: a GPU that a pod is bound to, or waits for, counts for one job or one project alone; no machine counts for
more than it has; what a job reports beyond its pods counts for a limited time; the same objects give the same world,
in any order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Autoscale, Capacity, Project, Projects, QuotaError
from elastic_launcher.quota.rounds.world import Seat, World
from elastic_launcher.quota.scheduling import ANYWHERE, Flavor, Scheduling
from elastic_launcher.quota.sources.kinds import Kinds, bounds_above, bounds_of_kinds
from elastic_launcher.quota.sources.machine import Machine
from elastic_launcher.quota.sources.usable import Stock, bounds_by_machines

CLAIM_SECONDS = 60.0
"""For so long a job is believed that reports more GPUs than its pods have: the pods may be about to be made."""
SILENT_SECONDS = 300.0
"""A job without pods whose launcher has not reported for so long is left out; launchers report every 5 s."""

_Usable = Mapping[tuple[Scheduling, ...], tuple[frozenset[str], ...]]
"""The names of machines, by what a job's kinds of nodes ask for, and then by the kind."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod that has not ended, of a job or with an extended resource.

    Attributes:
        namespace: Where it is.
        resources: What it asks for, by extended resource.
        machine: Where it is bound to; "" while it waits for a place.
        job: The id of the job that it is a node or the launcher of; "" for any other pod.
        is_node: Whether it is a node of that job.
        gated: Whether it waits behind a gate, such as that of a queue: it asks the scheduler for nothing yet.
        priority_class: Its priority class; "" for none.
        queue: The queue of KAI that it is in; "" for none.
        of_kueue: Whether it is part of a Workload of Kueue, which counts it where the document names Kueue.
        workload: The name of its Workload of Kueue, where it says that; "" otherwise.
        owners: The uids of itself and of what controls it, and what may control that, such as "JobSet/sweep".
        leaves: Whether it is being deleted.
        over_quota: Whether it is a node above its job's guarantee, where such nodes differ from the others.
        number: The node's number; 0 if it is none.
        pod_group: The name of its PodGroup of KAI; "" for none.
        of_kind: Whether it is a node of a job whose nodes above the guarantee differ from the others.
    """

    namespace: str
    resources: Mapping[str, int]
    machine: str = ""
    job: str = ""
    is_node: bool = False
    gated: bool = False
    priority_class: str = ""
    queue: str = ""
    of_kueue: bool = False
    workload: str = ""
    owners: frozenset[str] = frozenset()
    leaves: bool = False
    over_quota: bool = False
    number: int = 0
    pod_group: str = ""
    of_kind: bool = False


@dataclass(frozen=True, slots=True)
class Service:
    """The Service of a job.

    Attributes:
        namespace: Where it is.
        id: Its name, which is the job's id.
        uid: Its uid.
        created_at: When it was made, in seconds since the epoch.
        job: The last report that could be read; None if there was none.
        refused: Why the newest report can't be used; empty if it can.
        text: The newest report.
    """

    namespace: str
    id: str
    uid: str
    created_at: float
    job: Job | None
    refused: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is known of the cluster.

    Attributes:
        services: Of all jobs.
        pods: Of all jobs, and all others with extended resources.
        machines: All machines.
        stale: Whether some of it could not be read lately.
        flavors: Of Kueue's queues, where the document names Kueue; None if they are not known.
    """

    services: Sequence[Service]
    pods: Sequence[Pod]
    machines: Sequence[Machine]
    stale: bool = False
    flavors: Sequence[Flavor] | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """What the objects of the cluster amount to.

    Attributes:
        world: What a round decides by.
        doubts: Since when each job has reported more than its pods have, in seconds since the epoch, by its id.
        remarks: What an admin should know of it, a line each.
        open: By the name of each machine that counts, whether it takes pods, and not only counts for what is held
            there; None where no machines are counted.
    """

    world: World
    doubts: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    remarks: tuple[str, ...] = ()
    open: Mapping[str, bool] | None = None


def count(cluster: Cluster, projects: Projects, now: float, doubts: Mapping[str, float]) -> Count:
    """Returns what a cluster has, and who holds it.

    Args:
        cluster: What is known of it.
        projects: The projects document.
        now: Seconds since the epoch, by the clock that the reports' times are of.
        doubts: Those of the last count.
    """
    capacity = projects.capacity or Capacity()
    counting = _Counting(projects, capacity.resource, exact=capacity.gpus is None, now=now, doubts=doubts)
    counting.take_services(cluster.services, cluster.pods)
    counting.take_pods(cluster.pods)
    world = World(capacity.gpus or 0, counting.jobs(), counting.rigid(), stale=cluster.stale)
    if capacity.gpus is None:
        world = counting.with_machines(world, cluster.machines, cluster.flavors, capacity.autoscale)
    return Count(world, MappingProxyType(counting.new_doubts), tuple(sorted(counting.remarks)), counting.open)


class _Counting:
    """A count in the making.

    Attributes:
        remarks: Lines for the log.
        new_doubts: See `Count.doubts`.
        open: See `Count.open`.
    """

    def __init__(
        self, projects: Projects, resource: str, *, exact: bool, now: float, doubts: Mapping[str, float]
    ) -> None:
        self.remarks: set[str] = set()
        self.new_doubts: dict[str, float] = {}
        self.open: dict[str, bool] | None = None
        self._projects = projects
        self._resource = resource
        self._by_workloads = projects.capacity is not None and projects.capacity.kueue
        self._by_queues = projects.capacity is not None and projects.capacity.kai
        self._exact = exact  # whether pods are what counts: a number of GPUs may be of jobs that ask for no resource
        self._now = now
        self._doubts = doubts
        self._jobs: dict[tuple[str, str], Job] = {}
        self._pods: dict[tuple[str, str], int] = {}
        self._bound: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._by_projects: dict[str, int] = {}
        self._by_others: dict[str, int] = {}
        self._on: dict[str, dict[str, int]] = {}
        self._above_on: dict[str, dict[str, int]] = {}
        self._seats: dict[str, list[Seat]] = {}
        self._rigid_on: dict[str, int] = {}
        self._owners: dict[tuple[str, str], str | None] = {}

    def take_services(self, services: Iterable[Service], pods: Iterable[Pod]) -> None:
        """Finds the jobs: of two with one id, the one whose Service was there first."""
        alive = {(pod.namespace, pod.job) for pod in pods if pod.job}
        first: dict[str, Service] = {}
        for service in sorted(services, key=lambda one: (one.created_at, one.namespace, one.id)):
            named = f"{service.namespace}/{service.id}"
            if service.refused:
                self.remarks.add(f"{named}: {service.refused}; " + _instead(service.job))
            other = first.setdefault(service.id, service)
            if other is not service:
                self.remarks.add(f"{named}: job {service.id} of namespace {other.namespace} has the same id; ignored")
            elif service.job is not None and self._counts(service, service.job, alive):
                self._take_job(service, service.job)

    def _counts(self, service: Service, job: Job, alive: set[tuple[str, str]]) -> bool:
        if (service.namespace, service.id) in alive:
            return True
        return not job.finished and self._now - job.reported_at <= SILENT_SECONDS

    def _take_job(self, service: Service, job: Job) -> None:
        """Takes a job, with what its owner can't say otherwise: its namespace, its id, and since when it is there."""
        match = {key: name for key, name in job.match.items() if key != "id"} | {"namespace": service.namespace}
        match |= {"id": service.id} if "id" in job.match else {}
        submitted = min(max(job.submitted_at, service.created_at), job.reported_at)
        self._jobs[service.namespace, service.id] = replace(job, id=service.id, match=match, submitted_at=submitted)

    def take_pods(self, pods: Iterable[Pod]) -> None:
        """Counts what pods hold, or wait for."""
        for pod in pods:
            gpus = pod.resources.get(self._resource, 0)
            if not gpus or pod.gated:
                continue
            job = (pod.namespace, pod.job)
            if pod.is_node and job in self._jobs:
                self._pods[job] = self._pods.get(job, 0) + gpus
                _add(self._by_projects, pod.machine, gpus)
                _add(self._on.setdefault(pod.job, {}), pod.machine, gpus)
                if pod.number:
                    self._seats.setdefault(pod.machine, []).append(Seat(pod.job, pod.number, gpus))
                if pod.over_quota:
                    _add(self._above_on.setdefault(pod.job, {}), pod.machine, gpus)
                continue
            _add(self._rigid_on, pod.machine, gpus)
            if pod.of_kueue and self._by_workloads:
                _add(self._by_projects, pod.machine, gpus)
                continue
            owner = self._owner(pod.namespace, pod.queue if self._by_queues else "")
            if owner is None:
                _add(self._by_others, pod.machine, gpus)
            else:
                _add(self._bound if pod.machine else self._waiting, owner, gpus)
                _add(self._by_projects, pod.machine, gpus)

    def _owner(self, namespace: str, queue: str) -> str | None:
        """Returns the project of a namespace's pods in a queue, or in none; None if it is nobody's."""
        key = namespace, queue
        if key not in self._owners:
            try:
                project = self._projects.project_of({"namespace": namespace} | ({"queue": queue} if queue else {}))
            except QuotaError as error:
                self.remarks.add(f"pods with GPUs in namespace {namespace} count for no project: {error}")
                project = None
            self._owners[key] = None if project is None else project.name
        return self._owners[key]

    def with_machines(
        self, world: World, machines: Sequence[Machine], flavors: Sequence[Flavor] | None, autoscale: Autoscale | None
    ) -> World:
        """Returns the world with what machines have, and what they leave to jobs that can't use all of them.

        With Kueue, those machines count that pods can come to with what a flavor of a queue adds; where flavors are not
        known, all do. What is left there, the queues say.

        Args:
            world: The world without.
            machines: All machines.
            flavors: Those of the queues; None if they are not known.
            autoscale: How machines come and go, or None.
        """
        machines = [one for one in machines if one.resources.get(self._resource)]
        jobs = [job for job in world.jobs if not job.finished]
        kinds = self._usable(machines, jobs, flavors)
        unions = {scheduling: frozenset[str]().union(*found) for scheduling, found in kinds.items()}
        every = self._machines_of(machines, Scheduling(), flavors).union(*unions.values())
        capacity = self._of_machines(machines, every)
        self.open = {one.name: one.name in every for one in machines if not one.goes}
        emptied = () if autoscale is None else self._could_be_emptied(machines, every)
        foreign = sum(
            min(self._by_others.get(one.name, 0), one.resources[self._resource])
            for one in machines
            if one.name in every
        )
        world = replace(world, capacity=capacity, machines=emptied, foreign=foreign)
        if self._by_workloads:
            return world
        spare = 0 if autoscale is None else max(0, autoscale.max - capacity)
        usable = {job.id: unions[job.scheduling] for job in jobs}
        stock, two = self._stock(machines, jobs), self._kinds(world, jobs, kinds)
        bounds = bounds_by_machines(stock, jobs, usable, every, spare)
        of_kinds = bounds_of_kinds(stock, jobs, usable, every, two, spare) if two else []
        bounds += bounds_above(of_kinds, jobs, two)
        placed = MappingProxyType({job: one.placed for job, one in two.items()})
        return replace(world, bounds=tuple(bounds), kinds=tuple(of_kinds), placed=placed)

    def _machines_of(
        self, machines: Iterable[Machine], asked: Scheduling, flavors: Sequence[Flavor] | None
    ) -> frozenset[str]:
        """Returns the machines that pods can come to which ask for something."""
        each = [asked]
        if self._by_workloads:
            each = [ANYWHERE] if flavors is None else [one for of in flavors if (one := of.added_to(asked)) is not None]
        return frozenset(
            one.name for one in machines if any(one.takes_pods(self._resource, each_of) for each_of in each)
        )

    def _usable(self, machines: Sequence[Machine], jobs: Iterable[Job], flavors: Sequence[Flavor] | None) -> _Usable:
        """Returns the machines that jobs' pods can come to, by what they ask for and the kind of nodes."""
        found: dict[tuple[Scheduling, ...], tuple[frozenset[str], ...]] = {}
        for job in jobs:
            if job.scheduling not in found:
                found[job.scheduling] = tuple(self._machines_of(machines, kind, flavors) for kind in job.scheduling)
            for why in (one.unclear for one in job.scheduling if one.unclear):
                self.remarks.add(
                    f"{job.match['namespace']}/{job.id}: which machines its pods can use is not clear ({why}): "
                    "what is not clear excludes none"
                )
        return found

    def _kinds(self, world: World, jobs: Iterable[Job], usable: _Usable) -> dict[str, Kinds]:
        """Returns the kinds of nodes of those jobs where these can use different machines."""
        found = {}
        for job in jobs:
            machines = usable[job.scheduling]
            if len(machines) > 1 and (project := self._project_of(job.match)) is not None:
                below = sum(self._projects.named(child).guaranteed for child in self._projects.children(project.name))
                guaranteed = max(0, project.guaranteed - below - world.rigid.get(project.name, 0))
                held, above = self._on.get(job.id, {}), self._above_on.get(job.id, {})
                within = {
                    one: gpus - above.get(one, 0) for one, gpus in held.items() if one and gpus > above.get(one, 0)
                }
                placed_above = {machine: gpus for machine, gpus in above.items() if machine}
                found[job.id] = Kinds(machines[0], machines[-1], within, placed_above, project.name, guaranteed)
        return found

    def _project_of(self, match: Mapping[str, str]) -> Project | None:
        with contextlib.suppress(QuotaError):  # the round refuses the job, and says why
            return self._projects.project_of(match)
        return None

    def _stock(self, machines: Iterable[Machine], jobs: Iterable[Job]) -> Stock:
        gpus = {one.name: one.resources.get(self._resource, 0) for one in machines if not one.goes}
        names = {job.id for job in jobs}
        others = dict(self._rigid_on)
        for job, held in self._on.items():
            if job not in names:  # it has ended, and its pods go
                for machine, count in held.items():
                    _add(others, machine, count)
        of_jobs = {job: on for job, on in self._on.items() if job in names}
        seats = {machine: [one for one in there if one.job in names] for machine, there in self._seats.items()}
        return Stock(gpus, others, of_jobs, seats)

    def _of_machines(self, machines: Iterable[Machine], every: frozenset[str]) -> int:
        """Returns what projects may hold together.

        A machine that takes no new pods counts for what projects hold there, as long as they do; one that will be taken
        away counts for nothing.
        """
        total = 0
        for machine in machines:
            there = machine.resources.get(self._resource, 0)
            if machine.goes:
                continue
            if machine.name in every:
                total += max(0, there - self._by_others.get(machine.name, 0))
            else:
                total += min(there, self._by_projects.get(machine.name, 0))
        return total

    def _could_be_emptied(self, machines: Iterable[Machine], every: frozenset[str]) -> tuple[int, ...]:
        """Returns the GPUs of each machine that takes pods, where elastic jobs alone hold GPUs."""
        sizes = (
            machine.resources.get(self._resource, 0)
            for machine in machines
            if machine.name in every and machine.name not in self._rigid_on
        )
        return tuple(sorted(size for size in sizes if size))

    def jobs(self) -> tuple[Job, ...]:
        """Returns the jobs with what they hold: what they report, or what their pods have if that is more."""
        return tuple(replace(job, held=self._held(key, job)) for key, job in sorted(self._jobs.items()))

    def _held(self, key: tuple[str, str], job: Job) -> int:
        pods = self._pods.get(key, 0)
        claimed = min(job.held, job.maximum)
        if not self._exact or claimed <= pods:
            return max(pods, claimed)
        since = self.new_doubts[job.id] = min(self._doubts.get(job.id, self._now), self._now)
        if self._now - since <= CLAIM_SECONDS:
            return claimed
        self.remarks.add(f"{'/'.join(key)}: it reports more {self._resource} than its pods ask for; the pods count")
        return pods

    def rigid(self) -> Mapping[str, int]:
        """Returns what other pods hold by project, and what they wait for within its guarantee."""
        found = {}
        for name in sorted({*self._bound, *self._waiting}):
            bound, waiting = self._bound.get(name, 0), self._waiting.get(name, 0)
            found[name] = bound + min(waiting, max(0, self._projects.named(name).guaranteed - bound))
        return MappingProxyType({name: gpus for name, gpus in found.items() if gpus})


def _add(counts: dict[str, int], name: str, gpus: int) -> None:
    counts[name] = counts.get(name, 0) + gpus


def _instead(job: Job | None) -> str:
    return "it gets no hints until it reports well" if job is None else "its last good report holds"
