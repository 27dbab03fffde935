"""Follows Kueue's objects: its queues are projects, and bound the jobs that are in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from elastic_launcher.kube.api import NOT_FOUND, Api, ApiError
from elastic_launcher.kube.collection import Collection, Trouble, changes
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Capacity, Projects
from elastic_launcher.quota.queues import Queue
from elastic_launcher.quota.scheduling import ANYWHERE, Flavor
from elastic_launcher.quota.sources.enforcer import Following, Word
from elastic_launcher.quota.sources.kueue.bounds import leave
from elastic_launcher.quota.sources.kueue.kueue import Kueue
from elastic_launcher.quota.sources.kueue.objects import (
    GROUP,
    ClusterQueue,
    Cohort,
    LocalQueue,
    Refused,
    Workload,
    cluster_queue_of,
    cohort_of,
    flavor_of,
    local_queue_of,
    workload_of,
)
from elastic_launcher.quota.sources.kueue.projects import queues_of
from elastic_launcher.quota.sources.machines import Pod
from elastic_launcher.quota.sources.watched import Granted, Watched

T = TypeVar("T")
VERSIONS = ("v1beta2", "v1beta1")
"""The newest first; Kueue before 0.15 has the last one alone."""
LOOK_SECONDS = 10.0
"""Between looks for a Kueue that is not there, or can't be reached."""
OVERLAY = "quota-kueue"
"""What grants the reading of them; `elastic_launcher/quota/cluster/rights.py` names it too."""
_WITHOUT_FLAVORS = "machines count whatever their taints and labels are"


class KueueSource:
    """Kueue's queues.

    Args:
        following: How the cluster is followed.

    Attributes:
        key: Its key under ``capacity`` in the projects document.
        watched: What is followed.
    """

    key = "kueue"

    def __init__(self, following: Following) -> None:
        self._queues = _Watched[ClusterQueue]("clusterqueues", cluster_queue_of, following)
        self._cohorts = _Watched[Cohort]("cohorts", cohort_of, following)
        self._local_queues = _Watched[LocalQueue]("localqueues", local_queue_of, following)
        self._workloads = _Watched[Workload]("workloads", workload_of, following)
        self._flavors = _Granted[Flavor]("resourceflavors", flavor_of, following)
        counted: Sequence[Watched[Any]] = (self._queues, self._cohorts, self._local_queues, self._workloads)
        self.watched: Sequence[Watched[Any]] = (*counted, self._flavors)

    def queues(self, document: Projects) -> list[Queue]:
        """Returns the queues and cohorts that have the resource, as projects."""
        return queues_of(self._kueue(document))

    def flavors(self, projects: Projects) -> list[Flavor] | None:
        """Returns the flavors of the resource, or None where they may not be read.

        One that is not there excludes no machine.
        """
        if self._flavors.forbidden is not None:
            return None
        known = {one.name: one for one in self._flavors.good()}
        return [known.get(name, Flavor(name, ANYWHERE)) for name in sorted(self._kueue(projects).quotas)]

    def marked(self, projects: Projects, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Returns the pods, with all marked that are part of a Workload: older versions of Kueue label few of them."""
        kueue = self._kueue(projects)
        return [pod if pod.of_kueue or kueue.workload_of(pod) is None else replace(pod, of_kueue=True) for pod in pods]

    def word(self, projects: Projects, jobs: Sequence[Job], pods: Sequence[Pod]) -> Word:
        """Returns what the queues and cohorts leave to their jobs, and what Workloads and pods of others have."""
        kueue = self._kueue(projects)
        left = leave(kueue, jobs, pods)
        followed = (self._queues, self._cohorts, self._local_queues, self._workloads)
        refused = [f"{why}; nothing grows until it can be used" for watched in followed for why in watched.refused()]
        circles = [f"Cohort {name} is its own ancestor; nothing grows until it is not" for name in kueue.circles]
        remarks = self._flavors.remarks(_WITHOUT_FLAVORS)
        return Word(left.bounds, left.taken, (*refused, *circles), left.leaving, remarks)

    def _kueue(self, projects: Projects) -> Kueue:
        local_queues = self._local_queues.good()
        return Kueue(
            (projects.capacity or Capacity()).resource,
            {one.name: one for one in self._queues.good()},
            {one.name: one for one in self._cohorts.good()},
            {(one.namespace, one.name): one for one in local_queues},
            self._workloads.good(),
        )


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """What is kept of one object.

    Attributes:
        good: The newest state that can be used; None if there was none.
        refused: Why the state that it has now can't be; None if it can.
    """

    good: T | None
    refused: Refused | None = None


class _Watched(Watched[Kept[T]]):
    """One of Kueue's collections, in the newest version that the cluster has.

    Args:
        resource: Its name in the API.
        parse: Makes what is kept of an object; None is not kept.
        following: How the cluster is followed.
    """

    def __init__(
        self, resource: str, parse: Callable[[Mapping[str, Any]], T | Refused | None], following: Following
    ) -> None:
        self._resource = resource
        super().__init__(
            f"Kueue's {resource}",
            Collection(""),
            lambda one, before: _kept(parse(one), before),
            following.lock,
            following.changed,
            overlay=OVERLAY,
        )

    def good(self) -> list[T]:
        """Returns the objects, as they were last where they can't be used now."""
        return [one.good for one in self.objects.values() if one.good is not None]

    def refused(self) -> list[str]:
        """Returns why objects can't be used."""
        return [one.refused.why for one in self.objects.values() if one.refused is not None]

    async def follow(self, api: Api) -> None:
        """Follows it until it is cancelled; a Kueue that is not there yet is waited for.

        Once its version is no longer served, as after an upgrade of Kueue, another one is looked for. A version that is
        said to be served, and does not have the collection, is tried again later.
        """
        last = ""
        while True:
            try:
                path = f"/apis/{GROUP}/{await _version(api)}/{self._resource}"
            except ApiError as error:
                self._tell(Trouble(error))
                await asyncio.sleep(LOOK_SECONDS)
                continue
            if path == last:
                await asyncio.sleep(LOOK_SECONDS)
            last = path
            async with aclosing(changes(api, Collection(path))) as found:
                async for change in found:
                    self._tell(change)
                    if isinstance(change, Trouble) and change.error.status == NOT_FOUND:
                        break


def _kept(read: T | Refused | None, before: Kept[T] | None) -> Kept[T] | None:
    if isinstance(read, Refused):
        return Kept(before.good if before is not None else None, read)
    return None if read is None else Kept(read)


class _Granted(Granted[Kept[T]], _Watched[T]):
    """One that does not stop the controller where it may not be read."""


async def _version(api: Api) -> str:
    """Returns the newest version of Kueue's API that is served and known here.

    Raises:
        ApiError: If there is none, or the cluster can't be asked.
    """
    try:
        found = await api.request("GET", f"/apis/{GROUP}")
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        found = {}
    served = {one.get("version") for one in found.get("versions") or ()}
    for version in VERSIONS:
        if version in served:
            return version
    what = f"the cluster has no {GROUP} in {' or '.join(VERSIONS)}: install Kueue, or take kueue out of capacity"
    raise ApiError(0, "NoKueue", what)
