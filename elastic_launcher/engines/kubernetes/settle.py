"""How a launcher settles in a cluster: it finds its own pod, by that its job, and takes the coordinator's seat."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_launcher.engines.kubernetes.identity import Names, Owner, job_id_of, owner_of
from elastic_launcher.engines.kubernetes.key import find_key
from elastic_launcher.engines.kubernetes.reviews import lacks
from elastic_launcher.engines.kubernetes.rights import needs_of, told
from elastic_launcher.engines.kubernetes.seat import Seat
from elastic_launcher.engines.kubernetes.service import Record
from elastic_launcher.engines.kubernetes.template import node_container
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.follow import FORBIDDEN
from elastic_launcher.kube.login import Login
from elastic_launcher.options import ConfigError

PORTS = {"control": 18500, "store": 18501}
"""What the coordinator listens at, in its pod and at the Service."""
POD_VARIABLE = "POD_NAME"
"""Names the launcher's own pod where its host name does not, as with ``hostNetwork``."""
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Settled:
    """What a launcher has in a cluster.

    Attributes:
        namespace: Where all of it is.
        pod: Its own pod.
        owner: What everything that it makes belongs to.
        names: What the job's objects are called.
        key: The job's key, in hexadecimal digits.
        in_secret: Whether nodes find that in its Secret.
        record: What the job's Service said when the seat was taken.
        lacking: Which rights it goes on without, and what that costs; empty where it has all.
    """

    namespace: str
    pod: Mapping[str, Any]
    owner: Owner
    names: Names
    key: str
    in_secret: bool
    record: Record
    lacking: str

    @property
    def image(self) -> str:
        """What the launcher itself runs in."""
        return str(self.pod["spec"]["containers"][node_container(self.pod)]["image"])


async def settle(login: Login, name: str, hints: tuple[str, str] | None = None) -> Settled:
    """Takes the seat of the job that this process's pod stands for.

    Args:
        login: The cluster.
        name: What people call the job.
        hints: Namespace and name of the ConfigMap with hints, where they are in one.

    Raises:
        ConfigError: If this is no pod of the cluster, one that nodes can't reach, or one that may not run a job.
        ApiError: If the cluster refuses something, or can't be reached.
    """
    async with Api(login) as api:
        pod = await _own_pod(api, login.namespace)
        lacking = await _check_rights(api, pod, hints)
        names, owner = Names(job_id_of(pod, name)), owner_of(pod)
        key, in_secret = await find_key(api, login.namespace, names, owner)
        record = await Seat(api, login.namespace, names).take(owner, PORTS, pod["metadata"]["name"])
    if ":" in record.address:
        raise ConfigError(f"Service {names.service} has the address {record.address}; only IPv4 clusters are supported")
    return Settled(login.namespace, pod, owner, names, key, in_secret, record, lacking)


async def _own_pod(api: Api, namespace: str) -> Mapping[str, Any]:
    name = os.environ.get(POD_VARIABLE) or socket.gethostname()
    try:
        return await api.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    except ApiError as error:
        if error.status in FORBIDDEN:  # whatever the pod is: this names all that is missing
            await _check_rights(api, {"metadata": {"name": name, "namespace": namespace, "uid": ""}, "spec": {}}, None)
        if error.status != NOT_FOUND:
            raise
        raise ConfigError(
            f"--engine kubernetes runs in a pod, and namespace {namespace} has no pod {name}: start the launcher in "
            f"one, or set {POD_VARIABLE} to its pod's name"
        ) from error


async def _check_rights(api: Api, pod: Mapping[str, Any], hints: tuple[str, str] | None) -> str:
    """Returns which rights the launcher goes on without.

    Raises:
        ConfigError: If it lacks one that it can't do without.
    """
    account = pod["spec"].get("serviceAccountName", "of the launcher")
    missing = await lacks(api, needs_of(pod, hints))
    if fatal := [one for one in missing if one.fatal]:
        raise ConfigError(f"--engine kubernetes: {told(account, fatal)}")
    return told(account, missing)
