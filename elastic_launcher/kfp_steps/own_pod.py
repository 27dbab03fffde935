"""Finds the pod in which this step runs; its labels name the run, and with its node's name the job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.leadership.bootstrap import find_own_pod, own_pod_name
from elastic_launcher.engines.kubernetes.objects.names import RUN_LABEL, STEP_VARIABLE
from elastic_launcher.engines.kubernetes.objects.template import live_container
from elastic_launcher.kube.api import Api, ApiError, insist
from elastic_launcher.kube.login import Login, log_in
from elastic_launcher.options import ConfigError

Pod = Mapping[str, Any]


def is_step(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a backend runs this process as a step: a backend sets the pod's name, and ``kfp.local`` has no pods."""
    return STEP_VARIABLE in environment


def own_pod(login: Login | None = None) -> Pod:
    """Returns the pod that this step runs in.

    Raises:
        ConfigError: If this is no pod of a cluster, or the pod may not be read.
        ApiError: If the cluster can't be reached.
    """
    cluster = login or log_in()

    async def find() -> Pod | None:
        async with Api(cluster) as api:
            return await insist(lambda: find_own_pod(api))

    try:
        found = asyncio.run(find())
    except ApiError as error:
        if error.away:
            raise
        raise ConfigError(f"the step's own pod {own_pod_name()} can't be read: {error}") from error
    if found is None:
        raise ConfigError(
            f"the step runs in a pod, and namespace {cluster.namespace} has no pod {own_pod_name()}; on a machine of "
            'your own give engine="local"'
        )
    return found


def run_of(pod: Pod) -> str:
    """Returns the id of the run that a step's pod is of; "" where it says none."""
    return str((pod["metadata"].get("labels") or {}).get(RUN_LABEL, ""))


def image_of(pod: Pod) -> str:
    """Returns what a step's pod runs."""
    return str(live_container(pod)["image"])
