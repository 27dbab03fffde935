"""Builds the pod of a node, from the user's template and what a node needs besides.

Invariant: everything of the template is in the pod, lists in their order; where ours can't be added to it the template
is refused, with the reason. What the template says nothing of is made as *restricted* Pod Security wants it.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_launcher import variables
from elastic_launcher.engines.kubernetes.objects.template import (
    DEFAULT_CONTAINER,
    NODE_CONTAINER,
    Document,
    node_container,
    refuse_taken,
)
from elastic_launcher.kube.expansion import literal
from elastic_launcher.options import ConfigError

KEY_FOLDER = "/var/run/secrets/elastic-launcher"
KEY_NAME = "key"
"""The Secret's entry, and the file's name."""
HOME = "/home/elastic"
TMP = "/tmp"
SHM = "/dev/shm"
_VOLUME = "elastic-launcher-"
WRITABLE = {
    "HOME": HOME,  # where torch, Triton and Hugging Face have their caches
    "TMPDIR": TMP,
    "USER": "elastic",  # torch.compile asks who it is, and a uid of the cluster's choice has no name
    "LOGNAME": "elastic",
}
_NO_SIDECAR = "sidecar.istio.io/inject"
_NO_LINKERD = "linkerd.io/inject"


@dataclass(frozen=True, slots=True)
class Shape:
    """The settings of all nodes' pods besides the template.

    Attributes:
        image: Their image where the template names none.
        command: Starts the agent.
        key: The job's key as a text, or None where it is in a Secret.
        key_secret: Name of the Secret that the key is in.
        gpus: GPUs of each node; 0 for none.
        resource: What the cluster calls a GPU: ``nvidia.com/gpu``, ``amd.com/gpu``, a MIG slice.
        shm_size: Size of ``/dev/shm``, which data loaders and NCCL share memory by.
        grace_seconds: From a node's notice until its end.
        run_as_user: A uid other than root; None for the image's, or one of the cluster's choice.
        fs_group: The group that volumes are given to; None to leave them as they are.
        launcher: The launcher's uid.
        groups: The launcher's groups: nodes of another uid are of them too, and share what both write by them.
        pull_secrets: What images are pulled with, as a pod's spec has it.
    """

    image: str
    command: Sequence[str]
    environment: Mapping[str, str]
    key: str | None = None
    key_secret: str = ""
    gpus: int = 0
    resource: str = "nvidia.com/gpu"
    shm_size: str = "1Gi"
    grace_seconds: int = 30
    run_as_user: int | None = None
    fs_group: int | None = None
    launcher: int | None = None
    groups: Sequence[int] = ()
    pull_secrets: Sequence[Mapping[str, Any]] = ()


def node_pod(
    template: Mapping[str, Any], shape: Shape, labels: Mapping[str, str], environment: Mapping[str, str]
) -> Document:
    """Returns the pod template of one node, from what ``template_of_kind`` has returned and what all nodes have.

    Raises:
        ConfigError: If the template takes what is ours, or names no image where there is no other.
    """
    pod = copy.deepcopy({"metadata": template["metadata"], "spec": template["spec"]})
    metadata, spec = pod["metadata"], pod["spec"]
    for key in ("labels", "annotations"):
        metadata[key] = dict(metadata.get(key) or {})
        refuse_taken(metadata[key], f"metadata.{key}")
        metadata[key].setdefault(_NO_SIDECAR, "false")  # a mesh's proxy outlives the node, and rewrites its connections
    metadata["labels"] |= labels
    spec["restartPolicy"] = "Never"
    _fill(spec, "terminationGracePeriodSeconds", shape.grace_seconds)
    if shape.pull_secrets and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [dict(one) for one in shape.pull_secrets]
    if shape.fs_group is not None:
        spec["securityContext"] = {"fsGroup": shape.fs_group} | _without_nulls(spec.get("securityContext") or {})
    _fill(spec, "enableServiceLinks", False)  # seven variables for each Service of the namespace
    if not spec.get("serviceAccountName") and not spec.get("serviceAccount"):
        _fill(spec, "automountServiceAccountToken", False)
    spec["containers"] = spec.get("containers") or [{"name": NODE_CONTAINER}]
    container = spec["containers"][node_container(pod)]
    # webhooks may put a container of theirs first
    metadata["annotations"].setdefault(DEFAULT_CONTAINER, container["name"])
    metadata["annotations"].setdefault(_NO_LINKERD, "disabled")
    _complete(container, shape, environment)
    _add_volumes(spec, container, shape)
    container["securityContext"] = _secured(
        container.get("securityContext") or {}, spec.get("securityContext") or {}, shape.run_as_user
    )
    if shape.groups and user_of(pod) != shape.launcher:
        context = spec.get("securityContext") or {}
        given = context.get("supplementalGroups") or []
        added = [group for group in shape.groups if group not in given]
        spec["securityContext"] = context | {"supplementalGroups": [*given, *added]}
    return pod


def user_of(pod: Mapping[str, Any]) -> int | None:
    """Returns the uid of a node; None where its image, or the cluster, says which."""
    container = pod["spec"]["containers"][node_container(pod)]
    said = (pod["spec"].get("securityContext") or {}) | (container.get("securityContext") or {})
    user: int | None = said.get("runAsUser")
    return user


def _fill(part: Document, key: str, value: object) -> None:
    """Sets what the user says nothing of: null, as an empty line of YAML is, says nothing to the API either."""
    if part.get(key) is None:
        part[key] = value


def _without_nulls(part: Document) -> Document:
    return {key: value for key, value in part.items() if value is not None}


def _complete(container: Document, shape: Shape, environment: Mapping[str, str]) -> None:
    """Adds the command, the environment and the configuration to the node's container."""
    if not container.get("image"):
        if not shape.image:
            raise ConfigError(f"no image is known for the nodes: name one in container {container['name']!r}")
        container["image"] = shape.image
    if container.get("command"):  # the user's wrapper: it gets the agent's command as its arguments
        container["args"] = [*(container.get("args") or ()), *shape.command]
    elif container.get("args"):
        raise ConfigError(
            f"container {container['name']!r} of the pod template has args and no command; leave args out, or give a "
            "command that runs what follows them, such as `sh -c 'exec \"$@\"' --`"
        )
    else:
        container["command"] = list(shape.command)
    container["env"] = _variables(container.get("env") or [], shape, environment)
    _fill(container, "terminationMessagePolicy", "FallbackToLogsOnError")
    if shape.gpus:
        container["resources"] = _with_gpus(container.get("resources") or {}, shape.resource, shape.gpus)


def _variables(given: Sequence[Document], shape: Shape, environment: Mapping[str, str]) -> list[Document]:
    names = {one["name"] for one in given}
    taken = sorted(name for name in names if name.startswith(variables.PREFIX))
    if taken:
        raise ConfigError(
            f"the pod template sets {taken[0]}: the launcher sets all of {variables.PREFIX}*; leave it out"
        )
    key = {variables.KEY_FILE: f"{KEY_FOLDER}/{KEY_NAME}"} if shape.key is None else {variables.KEY: shape.key}
    ours: dict[str, str] = {**WRITABLE, **shape.environment, **environment, **key}
    return [
        *given,
        *({"name": name, "value": literal(value)} for name, value in ours.items() if name not in names),
        {"name": variables.POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]


def _with_gpus(resources: Document, resource: str, gpus: int) -> Document:
    for kind in ("limits", "requests"):
        given = (resources.get(kind) or {}).get(resource)
        if given is not None and str(given) != str(gpus):
            raise ConfigError(
                f"the pod template has {given} {resource} in {kind}, and a node is to have {gpus}; leave it out there"
            )
    return resources | {"limits": {resource: str(gpus), **(resources.get("limits") or {})}}


def _add_volumes(spec: Document, container: Document, shape: Shape) -> None:
    """Adds the places that are written to, and the key, except where the user has something mounted."""
    spec["volumes"] = list(spec.get("volumes") or ())
    container["volumeMounts"] = list(container.get("volumeMounts") or ())
    taken = sorted(one["name"] for one in spec["volumes"] if one["name"].startswith(_VOLUME))
    if taken:
        raise ConfigError(f"volume {taken[0]} of the pod template has a name of the launcher's; give it another")
    used = {posixpath.normpath(one["mountPath"]) for one in container["volumeMounts"]}
    scratch = f"{_VOLUME}scratch"
    ours: list[tuple[Document, Sequence[Document]]] = [
        (
            {"name": scratch, "emptyDir": {}},
            [
                {"name": scratch, "mountPath": TMP, "subPath": "tmp"},
                {"name": scratch, "mountPath": HOME, "subPath": "home"},
            ],
        ),
        (
            {"name": f"{_VOLUME}shm", "emptyDir": {"medium": "Memory", "sizeLimit": shape.shm_size}},
            [{"name": f"{_VOLUME}shm", "mountPath": SHM}],
        ),
    ]
    if shape.key is None:
        secret = {"secretName": shape.key_secret, "items": [{"key": KEY_NAME, "path": KEY_NAME}]}
        mount = {"name": f"{_VOLUME}key", "mountPath": KEY_FOLDER, "readOnly": True}
        ours.append(({"name": f"{_VOLUME}key", "secret": secret}, [mount]))
    for volume, mounts in ours:
        missing = [one for one in mounts if one["mountPath"] not in used]
        if missing:
            spec["volumes"].append(volume)
            container["volumeMounts"] += missing


def _secured(given: Document, of_pod: Document, run_as_user: int | None) -> Document:
    """Returns the container's security context, restricted in all that the user says nothing of."""
    given = _without_nulls(given)
    context = copy.deepcopy(given)
    said = _without_nulls(of_pod) | given
    if run_as_user is not None and "runAsUser" not in said and said.get("runAsNonRoot", True):
        context["runAsUser"] = run_as_user
    if "runAsNonRoot" not in said and said.get("runAsUser") != 0:
        context["runAsNonRoot"] = True
    if "seccompProfile" not in said:
        context["seccompProfile"] = {"type": "RuntimeDefault"}
    context.setdefault("readOnlyRootFilesystem", True)
    if given.get("privileged"):
        return context  # the API refuses it together with what follows
    capabilities = _without_nulls(given.get("capabilities") or {})
    context["capabilities"] = {"drop": ["ALL"]} | capabilities
    if not {"SYS_ADMIN", "CAP_SYS_ADMIN"} & {*(capabilities.get("add") or ())}:
        context.setdefault("allowPrivilegeEscalation", False)
    return context
