"""Starts a launcher in a cluster: finds its own pod, and by that its job, and becomes the job's leader."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from elastic_launcher.engines.kubernetes.access.job_key import find_key
from elastic_launcher.engines.kubernetes.access.reviews import lacks
from elastic_launcher.engines.kubernetes.access.rights import Asked, Lack, needs_of, told
from elastic_launcher.engines.kubernetes.leadership.leadership import Leadership
from elastic_launcher.engines.kubernetes.objects.names import (
    POD_VARIABLE,
    STEP_VARIABLE,
    Names,
    Owner,
    job_id_of,
    owner_of,
)
from elastic_launcher.engines.kubernetes.objects.service import Record
from elastic_launcher.engines.kubernetes.objects.template import live_container
from elastic_launcher.kube.api import Api, ApiError, find, items_of
from elastic_launcher.kube.follow import FORBIDDEN
from elastic_launcher.options import ConfigError

PORTS = {"control": 18500, "store": 18501}
"""What the coordinator listens at, in its pod and at the Service."""
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """The surroundings of a launcher in a cluster, before it creates anything.

    Attributes:
        namespace: Where all of the job is.
        pod: Its own pod.
        owner: What everything that it makes belongs to.
        lacking: Which of them it goes on without.
    """

    namespace: str
    pod: Mapping[str, Any]
    owner: Owner
    names: Names
    needs: Sequence[Asked]
    lacking: Sequence[Lack]

    @property
    def account(self) -> str:
        """The launcher's service account."""
        return _account(self.pod)

    @property
    def image(self) -> str:
        """The image that the launcher itself runs in."""
        return str(live_container(self.pod)["image"])


@dataclass(frozen=True, slots=True)
class JobClaim:
    """The claim of a launcher that leads the job.

    Attributes:
        key: The job's key, in hexadecimal digits.
        in_secret: Whether nodes find that in its Secret.
        record: The record of the job's Service when the launcher became the leader.
    """

    context: ClusterContext
    key: str
    in_secret: bool
    record: Record


async def inspect_cluster(api: Api, name: str, hints: tuple[str, str] | None = None) -> ClusterContext:
    """Finds the pod that this process runs in, and by that its job; asks whether it may run that.

    Args:
        api: The cluster.
        name: What people call the job.
        hints: Namespace and name of the ConfigMap with hints, where they are in one.

    Raises:
        ConfigError: If this is no pod of the cluster, or one that may not run a job.
        ApiError: If the cluster refuses something, or can't be reached.
    """
    namespace = api.login.namespace
    pod = await _own_pod(api)
    needs = needs_of(pod, hints)
    lacking = await _check_rights(api, pod, needs)
    return ClusterContext(namespace, pod, owner_of(pod), Names(job_id_of(pod, name)), needs, lacking)


async def claim_job(api: Api, context: ClusterContext) -> JobClaim:
    """Makes this launcher the leader of a job.

    Raises:
        ConfigError: If nodes can't reach it, or know a key that it may not read.
        ApiError: If the cluster refuses something, or can't be reached.
    """
    may = not any(one.asked.need.resource == "secrets" for one in context.lacking)
    key, in_secret = await find_key(api, context.namespace, context.names, context.owner, may)
    record = await Leadership(api, context.namespace, context.names).take(
        context.owner, PORTS, context.pod["metadata"]["name"]
    )
    if ":" in record.address:
        raise ConfigError(
            f"Service {context.names.service} has the address {record.address}; only IPv4 clusters are supported"
        )
    return JobClaim(context, key, in_secret, record)


def own_pod_name(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the name of the pod that this process runs in, as the environment gives it."""
    return environment.get(POD_VARIABLE) or environment.get(STEP_VARIABLE) or socket.gethostname()


async def find_own_pod(api: Api) -> Mapping[str, Any] | None:
    """Returns the pod that this process runs in; None where the cluster has no such pod.

    Raises:
        ApiError: If the cluster refuses to say, or can't be reached.
    """
    namespace, name = api.login.namespace, own_pod_name()
    found = await find(api, f"/api/v1/namespaces/{namespace}/pods/{name}")
    if found is not None:
        return found
    here = await _pods_here(api, namespace, name) if name == socket.gethostname() else []
    return here[0] if len(here) == 1 else None


async def _own_pod(api: Api) -> Mapping[str, Any]:
    namespace, name = api.login.namespace, own_pod_name()
    try:
        found = await find_own_pod(api)
    except ApiError as error:
        if error.status in FORBIDDEN:  # the message names all rights that are missing
            pod = {"metadata": {"name": name, "namespace": namespace, "uid": ""}, "spec": {}}
            await _check_rights(api, pod, needs_of(pod))
        raise
    if found is None:
        raise ConfigError(
            f"--engine kubernetes runs in a pod, and namespace {namespace} has no pod {name}: start the launcher in "
            f"one, or set {POD_VARIABLE} to its pod's name"
        )
    return found


async def _pods_here(api: Api, namespace: str, host: str) -> Sequence[Mapping[str, Any]]:
    """Returns the pods that this may be: a host name of more than 63 characters is cut, and a template may set it."""
    address = _own_address(api.login.server)
    if not address:
        return []
    query = {"fieldSelector": f"status.podIP={address}"}
    pods = items_of(await api.request("GET", f"/api/v1/namespaces/{namespace}/pods", query=query))
    living = [one for one in pods if one["status"].get("phase") not in _FINISHED]  # addresses are used again
    return [one for one in living if one["metadata"]["name"].startswith(host) or one["spec"].get("hostname") == host]


def _own_address(server: str) -> str:
    """Returns by which address of its own this process speaks to a server."""
    where = urlsplit(server)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:  # connected, it sends nothing
        try:
            asking.connect((where.hostname, where.port or 443))
        except OSError:
            return ""  # IPv6, say: no pod is found by that
        return str(asking.getsockname()[0])


async def _check_rights(api: Api, pod: Mapping[str, Any], needs: Sequence[Asked]) -> Sequence[Lack]:
    """Returns which rights the launcher goes on without.

    Raises:
        ConfigError: If it lacks one that it can't do without.
    """
    missing = await lacks(api, needs)
    if fatal := [one for one in missing if one.fatal]:
        raise ConfigError(f"--engine kubernetes: {told(_account(pod), fatal)}")
    return missing


def _account(pod: Mapping[str, Any]) -> str:
    return str(pod["spec"].get("serviceAccountName", "of the launcher"))
