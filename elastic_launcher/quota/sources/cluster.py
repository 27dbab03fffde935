"""The jobs, pods and machines of a cluster, followed by watches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from elastic_launcher.kube.api import NOT_FOUND, Api, ApiError
from elastic_launcher.kube.collection import Collection
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.queues import with_queues
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.sources.enforcer import Enforcer, Following, with_words
from elastic_launcher.quota.sources.kai import Kai
from elastic_launcher.quota.sources.kueue.source import KueueSource
from elastic_launcher.quota.sources.machines import Cluster, Pod, Service, count
from elastic_launcher.quota.sources.objects import machine_of, pod_of, service_of
from elastic_launcher.quota.sources.resource_quotas import ResourceQuotas
from elastic_launcher.quota.sources.watched import Watched

UNENDED = "status.phase!=Succeeded,status.phase!=Failed"
"""Of pods: a cluster keeps thousands of others."""


class ClusterSource:
    """Follows a cluster, and those other enforcers in it that the projects document names.

    Args:
        namespaces: Those whose jobs count; none for all.
        say: Takes a line for the log.
        clock: Seconds since the epoch.
        changed: Called after each change that a round depends on.
    """

    def __init__(
        self,
        namespaces: Sequence[str],
        say: Callable[[str], None],
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._doubts: Mapping[str, float] = {}
        self._said: set[str] = set()
        self._odd: frozenset[str] = frozenset()
        self._loop: asyncio.AbstractEventLoop | None = None
        following = Following(namespaces, self._lock, changed)
        self._kueue = KueueSource(following)
        self._enforcers: tuple[Enforcer, ...] = (ResourceQuotas(following), Kai(following), self._kueue)
        self._wanted = {enforcer.key: asyncio.Event() for enforcer in self._enforcers}
        places = [f"/api/v1/namespaces/{name}/services" for name in namespaces] or ["/api/v1/services"]
        self._services = [
            Watched(
                "the Services of jobs" + (f" in namespace {path.split('/')[4]}" if namespaces else ""),
                Collection(path, selector=JOB_LABEL),
                lambda one, before: service_of(one, before, clock()),
                self._lock,
                changed,
                _gist_of_service,
            )
            for path in places
        ]
        self._pods = Watched(
            "the cluster's pods",
            Collection("/api/v1/pods", fields=UNENDED),
            lambda one, _: pod_of(one),
            self._lock,
            changed,
        )
        self._machines = Watched(
            "the cluster's machines",
            Collection("/api/v1/nodes"),
            lambda one, _: machine_of(one),
            self._lock,
            changed,
        )

    async def run(self, api: Api) -> None:
        """Follows the cluster until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            followed: list[Watched[Any]] = [*self._services, self._pods, self._machines]
            for watched in followed:
                group.create_task(watched.follow(api))
            for enforcer in self._enforcers:
                group.create_task(self._follow_once_wanted(enforcer, api))

    async def _follow_once_wanted(self, enforcer: Enforcer, api: Api) -> None:
        """Follows an enforcer from the moment on when the projects document names it."""
        await self._wanted[enforcer.key].wait()
        async with asyncio.TaskGroup() as group:
            for watched in enforcer.watched:
                group.create_task(watched.follow(api))

    def _named_by(self, projects: Projects) -> list[Enforcer]:
        """Returns the enforcers that the document names, which are followed from now on."""
        keys = () if projects.capacity is None else projects.capacity.others
        found = [enforcer for enforcer in self._enforcers if enforcer.key in keys]
        for enforcer in found:
            wanted = self._wanted[enforcer.key]
            if self._loop is None or wanted.is_set():
                wanted.set()
            else:
                self._loop.call_soon_threadsafe(wanted.set)
        return found

    def projects(self, document: Projects) -> Projects:
        """Returns the projects of the document, with the queues that are projects too.

        Raises:
            OSError: If nothing is known yet of queues that the document counts on.
            QuotaError: If the parents make a circle.
        """
        if document.capacity is None or not document.capacity.gives_projects:
            self._odd = frozenset()
            return document
        enforcers = self._named_by(document)
        with self._lock:
            _refuse_unread(watched for enforcer in enforcers for watched in enforcer.watched)
            queues = [queue for enforcer in enforcers for queue in enforcer.queues(document)]
        projects = with_queues(document, queues)
        self._odd = frozenset(projects.warnings)
        return projects

    def world(self, projects: Projects) -> World:
        """Returns what is there.

        Args:
            projects: All of them, as `projects` returns them.

        Raises:
            OSError: If nothing is known yet.
        """
        enforcers = self._named_by(projects)
        with self._lock:
            needed: list[Watched[Any]] = [*self._services, self._pods]
            if projects.capacity is None or projects.capacity.gpus is None:
                needed.append(self._machines)
            needed += [watched for enforcer in enforcers for watched in enforcer.watched]
            _refuse_unread(needed)
            troubles = {one.what: one.error for one in needed if one.error is not None}
            pods: Sequence[Pod] = list(self._pods.objects.values())
            for enforcer in enforcers:
                pods = enforcer.marked(projects, pods)
            cluster = Cluster(
                [one for watched in self._services for one in watched.objects.values()],
                pods,
                list(self._machines.objects.values()),
                stale=bool(troubles),
                flavors=self._kueue.flavors(projects) if self._kueue in enforcers else None,
            )
            found = count(cluster, projects, self._clock(), self._doubts)
            words = [enforcer.word(projects, found.world.jobs, cluster.pods) for enforcer in enforcers]
        self._doubts = found.doubts
        refused = [line for word in words for line in word.refused]
        remarks = [line for word in words for line in word.remarks]
        self._tell({*self._odd, *found.remarks, *remarks, *refused, *map(partial(_unreadable, troubles), troubles)})
        return with_words(found.world, projects, words, found.open)

    def service(self, job: str) -> Service | None:
        """Returns the Service of a job; None if it is gone."""
        with self._lock:
            found = [one for watched in self._services for one in watched.objects.values() if one.id == job]
        return min(found, key=lambda one: one.created_at, default=None)

    def _tell(self, lines: set[str]) -> None:
        """Says what was not said in the last round."""
        for line in sorted(lines - self._said):
            self._say(line)
        self._said = lines


def _refuse_unread(needed: Iterable[Watched[Any]]) -> None:
    for one in needed:
        if not one.read:
            raise OSError(f"{one.what} can't be read{f': {_why(one.error)}' if one.error else ' yet'}")


def _why(error: ApiError) -> str:
    return "the API server knows no such objects; is it installed?" if error.status == NOT_FOUND else str(error)


def _unreadable(troubles: Mapping[str, ApiError], what: str) -> str:
    return f"{what} can't be read ({_why(troubles[what])}): what was known stays, and nothing grows until they can"


def _gist_of_service(one: Service) -> object:
    """Returns what a round must not wait for: times, speeds and steps alone change with each report."""
    return one.namespace, one.id, one.refused, one.job and _gist_of_job(one.job)


def _gist_of_job(job: Job) -> Job:
    trains = None if job.training_since is None else 0.0
    return replace(
        job,
        reported_at=0.0,
        service=0.0,
        speeds={},
        goodput={},
        steps_left=None,
        start_seconds=None,
        training_since=trains,
    )
