"""Argo's Workflows as a kind alone: no controller follows them, so what one would do a test does itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elastic_launcher.kube.api import NOT_FOUND, Api, ApiError
from elastic_launcher.kube.login import log_in
from tests.support.cluster.namespaces import PATIENCE

KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WORKFLOW_KIND: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "workflows.argoproj.io"},
    "spec": {
        "group": "argoproj.io",
        "scope": "Namespaced",
        "names": {"kind": "Workflow", "plural": "workflows", "singular": "workflow", "listKind": "WorkflowList"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
_KIND = f"{KINDS}/{WORKFLOW_KIND['metadata']['name']}"
NOT_YET = (404, 429)
"""What the API answers while a kind is being made known, and while its storage is."""
WORKFLOW: dict[str, Any] = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Workflow",
    "metadata": {"name": "train"},
    "spec": {"entrypoint": "main", "templates": [{"name": "main", "container": {"image": "none"}}]},
}


@contextmanager
def workflows_known() -> Iterator[None]:
    """Has a cluster know Workflows meanwhile, unless it does anyway."""
    made = asyncio.run(_make_known())
    try:
        asyncio.run(_wait_until_served())
        yield
    finally:
        if made:
            asyncio.run(_forget())


async def _make_known() -> bool:
    """Returns whether they were not known before; a kind that another test has just deleted is waited for."""
    async with Api(log_in()) as api, asyncio.timeout(PATIENCE):
        while (found := await _find(api)) is not None:
            if "deletionTimestamp" not in found["metadata"]:
                return False
            await asyncio.sleep(0.1)
        await api.request("POST", KINDS, WORKFLOW_KIND)
        return True


async def _find(api: Api) -> dict[str, Any] | None:
    try:
        return await api.request("GET", _KIND)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


async def _wait_until_served() -> None:
    async with Api(log_in()) as api, asyncio.timeout(PATIENCE):
        while True:
            try:
                await api.request("GET", "/apis/argoproj.io/v1alpha1/workflows")
                return
            except ApiError as error:
                if error.status not in NOT_YET:
                    raise
            await asyncio.sleep(0.1)


async def _forget() -> None:
    async with Api(log_in()) as api:
        await api.request("DELETE", _KIND)
