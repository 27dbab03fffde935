"""Access to a job in a cluster through a kubeconfig: its state, its ranks' logs, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import COORDINATOR_LABEL, JOB_LABEL, NODE_LABEL, SCHEME, JobName
from elastic_launcher.engines.kubernetes.objects.service import STOP, Record, read_record
from elastic_launcher.engines.kubernetes.objects.template import live_container
from elastic_launcher.kube.api import MERGE, NOT_FOUND, Api, ApiError, items_of
from elastic_launcher.kube.collection import Change, Collection, Snapshot, changes
from elastic_launcher.kube.login import log_in
from elastic_launcher.options import ConfigError

LOOK_SECONDS = 2.0
"""Between looks at which pods a followed job has."""
_LINE = re.compile(rb"\[local rank (\d+)\] (.*)", re.DOTALL)


class ClusterJob:
    """A job that was found by its Service.

    Args:
        api: The cluster, open for as long as this is used.

    Attributes:
        name: Namespace and id, for messages.
        record: What the Service says.
    """

    def __init__(self, api: Api, service: Mapping[str, Any]) -> None:
        metadata = service["metadata"]
        self._api = api
        self._base = f"/api/v1/namespaces/{metadata['namespace']}"
        self._id: str = metadata["labels"][JOB_LABEL]
        self._service: str = metadata["name"]
        self.name = f"{metadata['namespace']}/{self._id}"
        self.record: Record = read_record(service)

    async def launchers(self) -> list[str]:
        """Returns the pods that a launcher of the job runs in now."""
        pods = await self._pods(f"{COORDINATOR_LABEL}={self._id}")
        return [pod["metadata"]["name"] for pod in pods if _runs(pod)]

    async def ask_to_stop(self) -> None:
        """Has the job saved and ended, by an annotation that its launcher watches."""
        notes = {STOP: f"elastic-launcher stop, by {_user()}"}
        path = f"{self._base}/services/{self._service}"
        await self._api.request("PATCH", path, {"metadata": {"annotations": notes}}, content_type=MERGE)

    async def follow(self) -> AsyncGenerator[Record, None]:
        """Yields what the Service says, now and after each change, until it is gone."""
        collection = Collection(f"{self._base}/services", name=self._service)
        async with contextlib.aclosing(changes(self._api, collection)) as found:
            async for change in found:
                match change:
                    case Snapshot(objects=[]) | Change(deleted=True):
                        return
                    case Snapshot(objects=[service]) | Change(object=service):
                        self.record = read_record(service)
                        yield self.record

    async def save_logs(self, folder: Path, follow: bool) -> list[str]:
        """Writes what the ranks of all nodes that are there have written, to a file for each as in a work directory.

        With ``follow`` it goes on, with nodes that come later too, until neither a node nor a launcher runs. Returns a
        line for each pod whose log can't be read, or not to its end.
        """
        reading: dict[str, asyncio.Task[str]] = {}
        try:
            while True:
                pods = await self._pods(f"{JOB_LABEL}={self._id},{NODE_LABEL}")
                for pod in pods:
                    if _begun(pod) and (name := pod["metadata"]["name"]) not in reading:
                        reading[name] = asyncio.create_task(self._try_log(folder, pod, follow))
                if not follow or not (any(map(_runs, pods)) or await self.launchers()):
                    return [line for line in await asyncio.gather(*reading.values()) if line]
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in reading.values():
                task.cancel()

    async def _try_log(self, folder: Path, pod: Mapping[str, Any], follow: bool) -> str:
        """Writes one pod's log; returns why it can't be read, or not to its end."""
        try:
            await self._save_log(folder, pod, follow)
        except ApiError as error:  # its machine is silent, or it has just been deleted: the others have theirs
            return f"the log of pod {pod['metadata']['name']} can't be read: {error}"
        return ""

    async def _save_log(self, folder: Path, pod: Mapping[str, Any], follow: bool) -> None:
        metadata = pod["metadata"]
        path = f"{self._base}/pods/{metadata['name']}/log"
        node, container = metadata["labels"][NODE_LABEL], live_container(pod)["name"]
        asked = {"container": container, "follow": str(follow).lower()}
        rest = b""
        async for chunk in self._api.stream(path, asked):
            *lines, rest = (rest + chunk).split(b"\n")
            for match in filter(None, map(_LINE.fullmatch, lines)):  # the others are the agent's own
                with open(folder / f"{node}-{int(match[1])}.log", "ab") as file:
                    file.write(match[2] + b"\n")

    async def _pods(self, selector: str) -> list[Mapping[str, Any]]:
        found = await self._api.request("GET", f"{self._base}/pods", query={"labelSelector": selector})
        return items_of(found)


@contextlib.asynccontextmanager
async def cluster_job(wanted: JobName) -> AsyncGenerator[ClusterJob, None]:
    """Finds a job.

    Raises:
        ConfigError: If there is no such job, or more than one.
        ApiError: If the cluster refuses, or can't be reached.
    """
    async with Api(log_in()) as api:
        namespace = wanted.namespace or api.login.namespace
        found = await api.request("GET", f"/api/v1/namespaces/{namespace}/services", query={"labelSelector": JOB_LABEL})
        jobs = {one["metadata"]["labels"][JOB_LABEL]: one for one in items_of(found)}
        names = _matching(jobs, wanted.name)
        if not jobs and wanted.namespace:
            await _check_namespace(api, namespace)
        if len(names) != 1:
            raise ConfigError(_told(wanted, namespace, names, jobs))
        yield ClusterJob(api, jobs[names[0]])


async def _check_namespace(api: Api, name: str) -> None:
    """Warns that a namespace does not exist, since the API lists it as empty."""
    try:
        await api.request("GET", f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.status == NOT_FOUND:  # without the right to ask, the error is about the job
            raise ConfigError(f"there is no namespace {name} at {api.login.server}") from error


def _user() -> str:
    """Returns who runs this process; its number where that has no name, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the second from Python 3.13 on
        return f"user {os.getuid()}"


def _told(wanted: JobName, namespace: str, names: Sequence[str], jobs: Mapping[str, Any]) -> str:
    """Returns why a name means no job, or more than one, and what there is."""
    there = ", ".join(sorted(names or jobs)) or "none"
    what = f"{len(names)} jobs" if names else "no job"
    elsewhere = (
        f"; for another namespace: {SCHEME}NAMESPACE/{wanted.name}" if not names and not wanted.namespace else ""
    )
    return f"namespace {namespace} has {what} of the name {wanted.name}; there: {there}{elsewhere}"


def _matching(jobs: Mapping[str, Mapping[str, Any]], name: str) -> list[str]:
    """Returns the ids of jobs that a name means: the one that it is, else those of that owner, else those it begins."""
    if name in jobs:
        return [name]
    owners = {id: {one["name"] for one in job["metadata"].get("ownerReferences") or ()} for id, job in jobs.items()}
    return [id for id in jobs if name in owners[id]] or [id for id in jobs if id.startswith(name)]


def _runs(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Pending", "Running")


def _begun(pod: Mapping[str, Any]) -> bool:
    containers: list[Mapping[str, Any]] = list(pod["status"].get("containerStatuses") or ())
    return any(one.get("started") or "terminated" in one["state"] for one in containers)
