"""Namespaces of the cluster that KUBECONFIG names, for one test each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from elastic_launcher.engines.kubernetes.objects.names import Owner
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.login import log_in

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
PATIENCE = 120.0
LAUNCHER = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
    "restartPolicy": "Never",
    "nodeSelector": {"no-machine": "has-this"},  # what it would run does not matter
    "containers": [
        {
            "name": "main",
            "image": "localhost/none:1",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}
"""A pod of which only the object matters."""


@contextlib.asynccontextmanager
async def space(purpose: str) -> AsyncIterator[tuple[Api, str]]:
    """Gives the cluster and a namespace of it that admits restricted pods only; removes that at the end."""
    async with Api(log_in()) as api:
        wanted = {"metadata": {"generateName": f"{purpose}-", "labels": RESTRICTED}}
        name = (await api.request("POST", "/api/v1/namespaces", wanted))["metadata"]["name"]
        try:
            async with asyncio.timeout(PATIENCE):
                while not await is_there(api, f"/api/v1/namespaces/{name}/serviceaccounts/default"):
                    await asyncio.sleep(0.05)  # pods are refused before
            yield api, name
        finally:
            await api.request("DELETE", f"/api/v1/namespaces/{name}")


async def is_there(api: Api, path: str) -> bool:
    """Returns whether there is an object at a path."""
    try:
        await api.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


async def make_owner(api: Api, space: str) -> Owner:
    """Makes an object that Jobs may belong to."""
    found = await api.request("POST", f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "owner"}})
    return Owner("v1", "ConfigMap", "owner", found["metadata"]["uid"])
