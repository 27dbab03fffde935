"""The job's key in a cluster: it outlives the coordinator, since the nodes that a new one finds know no other.

It is in a Secret. Where the role may not have one, as in a stock step of Kubeflow, it is in the nodes' environment, and
whoever may read their Jobs may read it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.identity import JOB_LABEL, Names, Owner
from elastic_launcher.engines.kubernetes.pod import KEY_NAME, KEY_VARIABLE
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.follow import FORBIDDEN

KEY_BYTES = 32
NOT_FOUND, CONFLICT = 404, 409


async def find_key(api: Api, namespace: str, names: Names, owner: Owner) -> tuple[str, bool]:
    """Returns the job's key in hexadecimal digits, made if there is none, and whether it is in its Secret.

    Raises:
        ApiError: If the cluster can't be asked.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets"
    try:
        return key_of(await _find_or_make(api, path, names, owner)), True
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
    query = {"labelSelector": names.selector}
    jobs = await api.request("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs", query=query)
    known = (key for job in jobs["items"] if (key := key_in(job)))
    return next(known, secrets.token_hex(KEY_BYTES)), False


async def _find_or_make(api: Api, path: str, names: Names, owner: Owner) -> Mapping[str, Any]:
    try:
        return await api.request("GET", f"{path}/{names.secret}")
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
    try:
        return await api.request("POST", path, new_secret(names, owner, secrets.token_hex(KEY_BYTES)))
    except ApiError as error:
        if error.status != CONFLICT:
            raise
    return await api.request("GET", f"{path}/{names.secret}")  # another coordinator was faster


def new_secret(names: Names, owner: Owner, key: str) -> dict[str, Any]:
    """Returns the Secret of a job's key, given in hexadecimal digits."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.secret,
            "labels": {JOB_LABEL: names.job_id},
            "ownerReferences": [owner.reference()],
        },
        "immutable": True,
        "data": {KEY_NAME: base64.b64encode(key.encode()).decode()},
    }


def key_of(secret: Mapping[str, Any]) -> str:
    """Returns the key that a Secret holds."""
    return base64.b64decode(secret["data"][KEY_NAME]).decode()


def key_in(job: Mapping[str, Any]) -> str:
    """Returns the key in the environment of a node's Job; empty where there is none."""
    containers = job["spec"]["template"]["spec"]["containers"]
    variables = (one for container in containers for one in container.get("env") or ())
    return next((one["value"] for one in variables if one["name"] == KEY_VARIABLE), "")
