"""What did the user ask of the nodes' pods? Read from a pod template, or made of single fields.

The law: what is returned is what the user wrote, whole; what can't be a node's pod is refused with its place.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic_launcher.options import ConfigError

NODE_CONTAINER = "node"
"""The container that a template without any gets."""
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Says which of several containers is meant."""
_KINDS = ("", "Pod", "PodTemplate")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodFields:
    """The same in single fields, each as the API has it; what is empty is left to the cluster.

    Attributes:
        image: What the nodes run.
        image_pull_secrets: Names of Secrets.
        resources: Requests and limits of the container.
        volumes: Volumes of the pod.
        volume_mounts: Where the container sees them.
        tolerations: Taints of machines that are put up with.
        node_selector: Labels that machines must have.
        affinity: Which machines are wanted.
        labels: Of the pod.
        annotations: Of the pod.
        priority_class: Name of a PriorityClass.
        scheduler: Name of the scheduler.
        runtime_class: Name of a RuntimeClass.
        service_account: Name of a ServiceAccount; the pods have no token without one.
        pod_security: Security context of the pod.
        security: Security context of the container.
    """

    image: str = ""
    image_pull_secrets: Sequence[str] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    volumes: Sequence[Mapping[str, Any]] = ()
    volume_mounts: Sequence[Mapping[str, Any]] = ()
    tolerations: Sequence[Mapping[str, Any]] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""
    scheduler: str = ""
    runtime_class: str = ""
    service_account: str = ""
    pod_security: Mapping[str, Any] = field(default_factory=dict)
    security: Mapping[str, Any] = field(default_factory=dict)


def template_of(fields: PodFields) -> Document:
    """Returns the pod template that says what the fields say."""
    container = {
        "name": NODE_CONTAINER,
        "image": fields.image,
        "resources": dict(fields.resources),
        "volumeMounts": list(fields.volume_mounts),
        "securityContext": dict(fields.security),
    }
    spec = {
        "containers": [_given(container)],
        "imagePullSecrets": [{"name": name} for name in fields.image_pull_secrets],
        "volumes": list(fields.volumes),
        "tolerations": list(fields.tolerations),
        "nodeSelector": dict(fields.node_selector),
        "affinity": dict(fields.affinity),
        "priorityClassName": fields.priority_class,
        "schedulerName": fields.scheduler,
        "runtimeClassName": fields.runtime_class,
        "serviceAccountName": fields.service_account,
        "securityContext": dict(fields.pod_security),
    }
    metadata = {"labels": dict(fields.labels), "annotations": dict(fields.annotations)}
    return copy.deepcopy({"metadata": _given(metadata), "spec": _given(spec)})


def read_template(text: str) -> Document:
    """Reads a pod template: ``metadata`` and ``spec`` as in a Job, a Pod, or a PodTemplate.

    Raises:
        ConfigError: If it is none.
    """
    import yaml

    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise ConfigError(f"the pod template is not YAML: {' '.join(str(error).split())}") from error
    if len(documents) != 1:
        raise ConfigError(f"the pod template has {len(documents)} documents; it must have one, with metadata and spec")
    return check_template(documents[0])


def check_template(document: Any) -> Document:
    """Returns a pod template's ``metadata`` and ``spec``.

    Raises:
        ConfigError: If it is no pod template, or nothing that a node's pod could be made of.
    """
    found = _object(document, "the top")
    if found.get("kind", "") not in _KINDS:
        raise ConfigError(
            f"the pod template is of kind {found['kind']!r}; it must be a Pod, a PodTemplate, "
            "or metadata and spec alone, as a Job has them under `template`"
        )
    if found.get("kind") == "PodTemplate":
        found = _object(found.get("template"), "template")
    metadata = _object(found.get("metadata") or {}, "metadata")
    spec = _object(found.get("spec"), "spec")
    for key in ("labels", "annotations"):
        _texts(metadata.get(key) or {}, f"metadata.{key}")
    policy = spec.get("restartPolicy", "Never")
    if policy != "Never":
        raise ConfigError(
            f"spec.restartPolicy of the pod template is {policy!r}; leave it out: nodes are replaced, never restarted"
        )
    for key in ("containers", "initContainers", "volumes"):
        for index, one in enumerate(_objects(spec, key)):
            if not isinstance(one.get("name"), str) or not one["name"]:
                raise ConfigError(f"spec.{key}[{index}] of the pod template has no name; give it one")
    template = {"metadata": dict(metadata), "spec": dict(spec)}
    node_container(template)
    return copy.deepcopy(template)


def node_container(template: Mapping[str, Any]) -> int:
    """Returns which container of a template is the node: the default one, or else the first.

    Raises:
        ConfigError: If the default one is not there.
    """
    names = [one["name"] for one in template["spec"].get("containers") or ()]
    wanted = (template["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER)
    if wanted is None:
        return 0
    if wanted not in names:
        known = ", ".join(names) or "none"
        raise ConfigError(f"{DEFAULT_CONTAINER} of the pod template is {wanted!r}; the template has {known}")
    return names.index(wanted)


def _given(fields: Mapping[str, Any]) -> Document:
    return {key: value for key, value in fields.items() if value}


def _object(found: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        what = "missing" if found is None else f"{found!r}"
        raise ConfigError(f"{path} of the pod template is {what}; it must be an object")
    return found


def _objects(spec: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = spec.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"spec.{key} of the pod template is {found!r}; it must be a list")
    return [_object(one, f"spec.{key}[{index}]") for index, one in enumerate(found)]


def _texts(found: Any, path: str) -> None:
    for key, value in _object(found, path).items():
        if not isinstance(value, str):
            raise ConfigError(f"{path}[{key!r}] of the pod template is {value!r}; it must be a text: put it in quotes")
