"""Pods that launchers run in."""

from __future__ import annotations

from typing import Any


def pod(account: str, owner: str = "Job") -> dict[str, Any]:
    """Returns the pod of a launcher.

    Args:
        account: Its service account.
        owner: The kind of what controls it.
    """
    reference = {"apiVersion": "v1", "kind": owner, "name": "o", "uid": "u", "controller": True}
    return {
        "metadata": {"name": "p", "namespace": "training", "uid": "p", "ownerReferences": [reference]},
        "spec": {"serviceAccountName": account},
    }
