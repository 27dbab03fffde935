"""The jobs, pods and machines of a cluster, followed by watches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.collection import Change, Collection, Snapshot, Trouble, changes
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.sources.machines import Cluster, Machine, Pod, Service, count
from elastic_launcher.quota.sources.objects import machine_of, pod_of, service_of

T = TypeVar("T")
UNENDED = "status.phase!=Succeeded,status.phase!=Failed"
"""Of pods: a cluster keeps thousands of others."""


class Watched(Generic[T]):
    """What is known of a collection.

    Args:
        what: The name of it in messages.
        collection: Which.
        parse: Makes what is kept of an object, and of what was kept of it before; None is not kept.
        gist: Returns that of it by which a change is one that matters.
        lock: Held while it changes.
        changed: Called after a change that matters.

    Attributes:
        objects: What is kept, by the objects' uids.
        read: Whether it was ever read.
        error: Why it can't be read; None if it can.
    """

    def __init__(
        self,
        what: str,
        collection: Collection,
        parse: Callable[[Mapping[str, Any], T | None], T | None],
        gist: Callable[[T], object],
        lock: threading.Lock,
        changed: Callable[[], None],
    ) -> None:
        self.what = what
        self.objects: dict[str, T] = {}
        self.read = False
        self.error: ApiError | None = None
        self._collection = collection
        self._parse = parse
        self._gist = gist
        self._lock = lock
        self._changed = changed

    async def follow(self, api: Api) -> None:
        """Follows it until it is cancelled."""
        async with aclosing(changes(api, self._collection)) as found:
            async for change in found:
                with self._lock:
                    matters = self._take(change)
                if matters:
                    self._changed()

    def _take(self, change: Snapshot | Change | Trouble) -> bool:
        """Takes a change; returns whether it matters."""
        if isinstance(change, Trouble):
            news = self.error is None
            self.error = self.error or change.error  # the first one, so that it is said once
            return news
        news = not self.read or self.error is not None
        self.read, self.error = True, None
        if isinstance(change, Snapshot):
            before, self.objects = self.objects, {}
            for one in change.objects:
                self._put(one, before.get(one["metadata"]["uid"]))
            return news or self._gists(before) != self._gists(self.objects)
        uid = change.object["metadata"]["uid"]
        old = self.objects.pop(uid, None)
        if not change.deleted:
            self._put(change.object, old)
        new = self.objects.get(uid)
        return news or (old and self._gist(old)) != (new and self._gist(new))

    def _put(self, one: Mapping[str, Any], before: T | None) -> None:
        kept = self._parse(one, before)
        if kept is not None:
            self.objects[one["metadata"]["uid"]] = kept

    def _gists(self, objects: Mapping[str, T]) -> dict[str, object]:
        return {uid: self._gist(one) for uid, one in objects.items()}


class ClusterSource:
    """Follows a cluster.

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
        places = [f"/api/v1/namespaces/{name}/services" for name in namespaces] or ["/api/v1/services"]
        self._services = [
            Watched(
                "the Services of jobs" + (f" in namespace {path.split('/')[4]}" if namespaces else ""),
                Collection(path, selector=JOB_LABEL),
                lambda one, before: service_of(one, before, clock()),
                _gist_of_service,
                self._lock,
                changed,
            )
            for path in places
        ]
        self._pods = Watched(
            "the cluster's pods",
            Collection("/api/v1/pods", fields=UNENDED),
            lambda one, _: pod_of(one),
            _whole,
            self._lock,
            changed,
        )
        self._machines = Watched(
            "the cluster's machines",
            Collection("/api/v1/nodes"),
            lambda one, _: machine_of(one),
            _whole,
            self._lock,
            changed,
        )

    async def run(self, api: Api) -> None:
        """Follows the cluster until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            followed: list[Watched[Any]] = [*self._services, self._pods, self._machines]
            for watched in followed:
                group.create_task(watched.follow(api))

    def world(self, projects: Projects) -> World:
        """Returns what is there.

        Raises:
            OSError: If nothing is known yet.
        """
        with self._lock:
            needed: list[Watched[Any]] = [*self._services, self._pods]
            if projects.capacity is None or projects.capacity.gpus is None:
                needed.append(self._machines)
            unread = [one for one in needed if not one.read]
            troubles = {one.what: one.error for one in needed if one.error is not None}
            cluster = Cluster(
                [one for watched in self._services for one in watched.objects.values()],
                list(self._pods.objects.values()),
                list(self._machines.objects.values()),
                stale=bool(troubles),
            )
        if unread:
            one = unread[0]
            raise OSError(f"{one.what} can't be read{f': {one.error}' if one.error else ' yet'}")
        found = count(cluster, projects, self._clock(), self._doubts)
        self._doubts = found.doubts
        self._tell({*found.remarks, *map(partial(_unreadable, troubles), troubles)})
        return found.world

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


def _unreadable(troubles: Mapping[str, ApiError], what: str) -> str:
    return f"{what} can't be read ({troubles[what]}): what was known stays, and nothing grows until they can"


def _whole(one: Machine | Pod) -> object:
    return one


def _gist_of_service(one: Service) -> object:
    """Returns what a round must not wait for: times, speeds and steps alone change with each report."""
    return one.namespace, one.id, one.refused, one.job and _gist_of_job(one.job)


def _gist_of_job(job: Job) -> Job:
    trains = None if job.training_since is None else 0.0
    return replace(
        job, reported_at=0.0, service=0.0, speeds={}, steps_left=None, start_seconds=None, training_since=trains
    )
