"""PersistentVolumes that give restricted pods the host's /usr, the Python environment and this checkout.

So pods of an almost empty image run torch. They are read-only, and of a kind whose files no ``fsGroup`` changes.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LABEL = "elastic-launcher.test/namespace"  # PersistentVolumes have no namespace: this is how they are found and removed


def python_folders(checkout: Path, prefix: str = sys.prefix, base_prefix: str = sys.base_prefix) -> list[Path]:
    """Returns the folders that a Python process needs, none of them within another.

    Args:
        checkout: Where the project's files are.
        prefix: The virtual environment.
        base_prefix: The interpreter that it was made with.
    """
    wanted = {Path("/usr"), Path(prefix), Path(base_prefix), checkout}
    return sorted(path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted))


def claim_name(folder: Path) -> str:
    """Returns the name of the claim by which pods mount a folder: readable, short, and no other folder's."""
    readable = re.sub(r"[^a-z0-9]+", "-", str(folder).lower())[-40:].strip("-")
    return f"{readable}-{hashlib.sha256(str(folder).encode()).hexdigest()[:6]}"


def volumes(namespace: str, folders: Iterable[Path], writable: bool = False) -> list[dict[str, Any]]:
    """Returns a PersistentVolume and its claim for each folder, for the pods of a namespace.

    Args:
        namespace: Where the claims are made.
        folders: Folders of the host, seen alike from every node.
        writable: Whether pods may write, from any node at once.
    """
    objects: list[dict[str, Any]] = []
    for folder in folders:
        name = claim_name(folder)
        common = {"accessModes": ["ReadWriteMany" if writable else "ReadOnlyMany"], "storageClassName": ""}
        objects += [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{namespace}-{name}", "labels": {LABEL: namespace}},
                "spec": {
                    **common,
                    "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(folder), "type": "Directory"},
                    "claimRef": {"namespace": namespace, "name": name},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    **common,
                    "volumeName": f"{namespace}-{name}",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            },
        ]
    return objects


def pod_volumes(folders: Iterable[Path], writable: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns a pod's ``volumes`` and a container's ``volumeMounts`` that show folders at their own paths.

    Args:
        folders: Folders for which ``volumes`` made claims.
        writable: Whether the pod may write.
    """
    claims = {claim_name(folder): folder for folder in folders}
    return (
        [{"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": not writable}} for name in claims],
        [{"name": name, "mountPath": str(folder), "readOnly": not writable} for name, folder in claims.items()],
    )
