"""Pods under the *restricted* Pod Security Standard, whose Python comes through read-only volumes."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.machine import volumes
from tests.cluster.machine.image import TEST
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.node import REPOSITORY

FOLDERS = volumes.python_folders(REPOSITORY)
UID = 1_000_650_000  # as OpenShift hands them out: no passwd knows it
SETTLES_WITHIN = 180.0  # a pod's start on a busy machine


@contextmanager
def namespace(kubectl: Kubectl, purpose: str, level: str = "restricted") -> Iterator[str]:
    """Makes a namespace that admits pods of one standard, with the volumes of Python in it; removes both at the end."""
    name = f"{purpose}-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": level}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    try:
        kubectl.apply(*volumes.volumes(name, FOLDERS))
        bound = "--for=jsonpath={.status.phase}=Bound"
        kubectl(
            "wait", bound, "persistentvolumeclaims", "--all", f"--namespace={name}", f"--timeout={SETTLES_WITHIN:.0f}s"
        )
        yield name
    finally:
        kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
        kubectl("delete", "persistentvolumes", "-l", f"{volumes.LABEL}={name}", "--wait=false")


def python_pod(
    space: str, name: str, *argv: str, node: int | None = None, gpus: int = 0, writable: Sequence[Path] = ()
) -> dict[str, Any]:
    """Returns a restricted pod that runs this environment's Python.

    Args:
        space: Its namespace.
        name: The pod's name.
        *argv: Python's arguments.
        node: Which node it has to run on; None for any.
        gpus: How many GPUs it asks for.
        writable: Folders that it may write to, of which there are claims.
    """
    shown, mounts = volumes.pod_volumes(FOLDERS)
    written, write_mounts = volumes.pod_volumes(writable, writable=True)
    container = {
        "name": "main",
        "image": TEST,
        "imagePullPolicy": "Never",
        "command": [f"{sys.prefix}/bin/python", *argv],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONPATH", "value": str(REPOSITORY)}],
        "resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts, *write_mounts],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "labels": {"app": name}},
        "spec": {
            "automountServiceAccountToken": False,
            "nodeSelector": {} if node is None else {"kubernetes.io/hostname": f"node-{node}"},
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": UID,
                "runAsGroup": 0,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *shown, *written],
        },
    }


def wait(kubectl: Kubectl, space: str, pod: str, line: str, wanted: Sequence[str]) -> str:
    """Waits until what a JSONPath template says of a pod is one of the wanted lines, and returns it."""
    return kubectl.watch(
        "pods",
        f"--namespace={space}",
        f"--field-selector=metadata.name={pod}",
        line=line,
        good=lambda seen: seen in wanted,
        what=f"pod {space}/{pod}: {line} is one of {', '.join(wanted)}",
        seconds=SETTLES_WITHIN,
    )
