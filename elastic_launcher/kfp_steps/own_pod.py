"""In which pod does this step run? Its labels say which run that is, and with its node's name which job."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.identity import RUN_LABEL
from elastic_launcher.engines.kubernetes.settle import POD_VARIABLE
from elastic_launcher.kube.api import NOT_FOUND, Api, ApiError, insist
from elastic_launcher.kube.login import Login, log_in
from elastic_launcher.options import ConfigError

Pod = Mapping[str, Any]
KUBEFLOWS_NAME = "KFP_POD_NAME"
"""In which Kubeflow names the pod; its host name has 63 characters at most, of a name that often has more."""


def own_pod(login: Login | None = None) -> Pod:
    """Returns the pod that this step runs in.

    Args:
        login: The cluster; by default the one that this pod belongs to.

    Raises:
        ConfigError: If this is no pod of a cluster, or the pod can't be read.
    """
    found = login or log_in()
    name = named().get(POD_VARIABLE) or socket.gethostname()
    path = f"/api/v1/namespaces/{found.namespace}/pods/{name}"

    async def read() -> Pod:
        async with Api(found) as api:
            return await insist(lambda: api.request("GET", path))

    try:
        return asyncio.run(read())
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise ConfigError(f"the step's own pod {name} can't be read: {error}") from error
        raise ConfigError(
            f"the step runs in a pod, and namespace {found.namespace} has no pod {name}; on a machine of your own "
            'give engine="local"'
        ) from error


def named(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variable by which a launcher knows the pod that it runs in, where anything names that."""
    name = environment.get(POD_VARIABLE) or environment.get(KUBEFLOWS_NAME)
    return {POD_VARIABLE: name} if name else {}


def run_of(pod: Pod) -> str:
    """Returns the id of the run that a step's pod is of; "" where it says none."""
    return str((pod["metadata"].get("labels") or {}).get(RUN_LABEL, ""))


def image_of(pod: Pod) -> str:
    """Returns what a step's pod runs."""
    containers = pod["spec"]["containers"]
    return str(next((one for one in containers if one["name"] == "main"), containers[0])["image"])
