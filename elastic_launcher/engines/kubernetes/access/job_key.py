"""The job's key in a cluster, which outlives the coordinator: running nodes know no other.

It is in a Secret. Where the role may not have one, as in a stock step of Kubeflow, it is in the nodes' environment, and
whoever may read their Jobs may read it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL, Names, Owner
from elastic_launcher.engines.kubernetes.objects.pod import KEY_NAME
from elastic_launcher.kube.api import CONFLICT, Api, ApiError, find, items_of
from elastic_launcher.options import ConfigError
from elastic_launcher.variables import KEY

KEY_BYTES = 32


async def find_key(api: Api, namespace: str, names: Names, owner: Owner, may: bool) -> tuple[str, bool]:
    """Returns the job's key in hexadecimal digits, made if there is none, and whether it is in its Secret.

    It is kept in one, which belongs to ``owner``, where the launcher has the rights (``may``).

    Raises:
        ConfigError: If nodes know a key that the launcher may not read, or the Secret holds none.
        ApiError: If the cluster can't be asked.
    """
    query = {"labelSelector": names.selector}
    jobs = items_of(await api.request("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs", query=query))
    in_jobs = next((key for job in jobs if (key := key_in(job))), "")  # what is running knows no other
    key = in_jobs or secrets.token_hex(KEY_BYTES)
    if may:
        path = f"/api/v1/namespaces/{namespace}/secrets"
        found = key_of(await _find_or_make(api, path, names, owner, key))
        if not (in_jobs or found):
            raise ConfigError(
                f"--engine kubernetes: Secret {names.secret} holds no key of this job: delete it, and a new one is made"
            )
        return (in_jobs, False) if in_jobs not in ("", found) else (found, True)
    if not in_jobs and any(mounts_key(names, job) for job in jobs):
        raise ConfigError(
            f"--engine kubernetes: nodes of this job run, their key is in Secret {names.secret}, and the launcher may "
            "not read it: grant it `get` and `create` on secrets, or delete the nodes' Jobs"
        )
    return key, False


async def _find_or_make(api: Api, path: str, names: Names, owner: Owner, key: str) -> Mapping[str, Any]:
    found = await find(api, f"{path}/{names.secret}")
    if found is not None:
        return found
    try:
        return await api.request("POST", path, new_secret(names, owner, key))
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
    """Returns the key that a Secret holds; empty where there is none, as in one that others have put there."""
    try:
        return _digits(base64.b64decode((secret.get("data") or {}).get(KEY_NAME, ""), validate=True).decode())
    except ValueError:
        return ""


def key_in(job: Mapping[str, Any]) -> str:
    """Returns the key in the environment of a node's Job; empty where there is none."""
    variables = (one for container in _pod_of(job).get("containers") or () for one in container.get("env") or ())
    return _digits(next((one.get("value", "") for one in variables if one.get("name") == KEY), ""))


def mounts_key(names: Names, job: Mapping[str, Any]) -> bool:
    """Returns whether a node's Job takes the key from its Secret."""
    volumes = _pod_of(job).get("volumes") or ()
    return any((one.get("secret") or {}).get("secretName") == names.secret for one in volumes)


def _digits(text: str) -> str:
    """Returns a text of hexadecimal digits; empty where it is none."""
    try:
        return bytes.fromhex(text).hex()
    except ValueError:
        return ""


def _pod_of(job: Mapping[str, Any]) -> Mapping[str, Any]:
    return ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
