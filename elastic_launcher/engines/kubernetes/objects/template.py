"""Reads what the user asks of the nodes' pods, from a pod template or from single fields.

Invariant: what is returned is what the user wrote, whole; what can't be a node's pod is refused with its place.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import PREFIX
from elastic_launcher.options import ConfigError

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODE_CONTAINER = "node"
"""The container that a template without any gets."""
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Says which of several containers is meant."""
_KINDS = ("", "Pod", "PodTemplate")

GUARANTEED = "guaranteed"
OVER_QUOTA = "overQuota"
QUOTA_KINDS = (GUARANTEED, OVER_QUOTA)
"""The sections of a template for nodes within the job's guarantee, and for those above it."""
_POD_KEYS = ("metadata", "spec", *QUOTA_KINDS, "apiVersion", "kind", "status")
"""``status`` is there where a pod was exported."""
_POD_TEMPLATE_KEYS = ("template", "metadata", "apiVersion", "kind")

Document = dict[str, Any]

_EACH = ""
"""Stands for every key of an object."""
_NEEDED = ("name", "mountPath")
"""What can't be left out where a form has it."""
_NAMED = {"name": str}
_CONTAINER = _NAMED | {
    "image": str,
    "command": [str],
    "args": [str],
    "env": [_NAMED | {"value": str}],
    "resources": {"limits": {}, "requests": {}},
    "volumeMounts": [_NAMED | {"mountPath": str}],
    "securityContext": {"capabilities": {"add": [str], "drop": [str]}},
}
_OF_A_KIND = {
    "priorityClassName": str,
    "nodeSelector": {_EACH: str},
    "tolerations": [{}],
    "labels": {_EACH: str},
}
_FORM = {
    GUARANTEED: _OF_A_KIND,
    OVER_QUOTA: _OF_A_KIND,
    "metadata": {"labels": {_EACH: str}, "annotations": {_EACH: str}},
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [_NAMED],
        "nodeSelector": {_EACH: str},
        "securityContext": {},
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}},
        "serviceAccountName": str,
    },
}
"""What is read of a template, and what people get wrong by a missing quote; all else is the API server's to judge."""
_MOST_LEVELS = 40
_MOST_VALUES = 100_000
"""No pod comes near either of them; aliases of aliases multiply."""
_WORDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}


@dataclass(frozen=True, slots=True)
class PodFields:
    """The same in single fields, each as the API has it; what is empty is left to the cluster.

    In the Hera front a field may hold Hera's own objects too.

    Attributes:
        image: What the nodes run.
        image_pull_secrets: Names of Secrets.
        env: Variables of the container; none may begin with ``ELASTIC_``.
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
    env: Sequence[Any] = ()
    resources: Any = field(default_factory=dict)
    volumes: Sequence[Any] = ()
    volume_mounts: Sequence[Any] = ()
    tolerations: Sequence[Any] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Any = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""
    scheduler: str = ""
    runtime_class: str = ""
    service_account: str = ""
    pod_security: Any = field(default_factory=dict)
    security: Any = field(default_factory=dict)


def template_of(fields: PodFields) -> Document:
    """Returns the pod template that says what the fields say."""
    container = {
        "name": NODE_CONTAINER,
        "image": fields.image,
        "env": list(fields.env),
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
    except RecursionError:
        raise ConfigError("the pod template is nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # the last three: no such date or number
        raise ConfigError(f"the pod template is not YAML: {' '.join(str(error).split())}") from error
    if len(documents) != 1:
        raise ConfigError(f"the pod template has {len(documents)} documents; it must have one, with metadata and spec")
    return check_template(documents[0])


def check_template(document: Any) -> Document:
    """Returns a pod template's ``metadata`` and ``spec``, and its sections for kinds of nodes where it has them.

    Raises:
        ConfigError: If it is no pod template, or nothing that a node's pod could be made of.
    """
    _check_json(document, "", itertools.count(1))
    found = _object(document, "the top")
    if found.get("kind", "") not in _KINDS:
        raise ConfigError(
            f"the pod template is of kind {found['kind']!r}; it must be a Pod, a PodTemplate, "
            "or metadata and spec alone, as a Job has them under `template`"
        )
    where = "the top"
    if found.get("kind") == "PodTemplate":
        inner = _object(found.get("template"), "template")
        _refuse_unknown(found, _POD_TEMPLATE_KEYS, where)
        found, where = inner, "template"
    template = {"metadata": found.get("metadata") or {}, "spec": _object(found.get("spec"), "spec")}
    _refuse_unknown(found, _POD_KEYS, where)
    template |= {kind: found[kind] for kind in QUOTA_KINDS if found.get(kind) is not None}
    for key, part in template.items():
        _check(part, _FORM[key], key)
    for kind in filter(template.get, QUOTA_KINDS):
        _refuse_unknown(template[kind], tuple(_OF_A_KIND), kind)
        refuse_taken(template[kind].get("labels") or {}, f"{kind}.labels")
    policy = template["spec"].get("restartPolicy") or "Never"
    if policy != "Never":
        raise ConfigError(
            f"spec.restartPolicy of the pod template is {policy!r}; leave it out: nodes are replaced, never restarted"
        )
    node_container(template)
    return copy.deepcopy(template)


def has_kinds(template: Mapping[str, Any]) -> bool:
    """Returns whether a template asks for anything for nodes within the guarantee, or for those above it, alone."""
    return any(template.get(kind) for kind in QUOTA_KINDS)


def template_of_kind(template: Mapping[str, Any], kind: str) -> Document:
    """Returns the template of nodes of one kind: what its section says is added to what all nodes have.

    Node selectors and labels are merged by key, tolerations are appended; where both say something, the section holds.

    Args:
        template: As ``check_template`` returns it.
        kind: `GUARANTEED` or `OVER_QUOTA`.
    """
    section = template.get(kind) or {}
    metadata, spec = dict(template["metadata"]), dict(template["spec"])
    if labels := section.get("labels"):
        metadata["labels"] = (metadata.get("labels") or {}) | labels
    if selector := section.get("nodeSelector"):
        spec["nodeSelector"] = (spec.get("nodeSelector") or {}) | selector
    if tolerations := section.get("tolerations"):
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *tolerations]
    if priority_class := section.get("priorityClassName"):
        spec["priorityClassName"] = priority_class
    return {"metadata": metadata, "spec": spec}


def scheduling(template: Mapping[str, Any]) -> Document:
    """Returns what says which machines nodes can be on, by their kind, as a pod's spec has it.

    Args:
        template: As ``check_template`` returns it.
    """
    return {kind: _scheduling(template_of_kind(template, kind)["spec"]) for kind in QUOTA_KINDS}


def _scheduling(spec: Mapping[str, Any]) -> Document:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    affinity = {"nodeAffinity": {_REQUIRED: required}} if required else None
    return _given({**{key: spec.get(key) for key in ("nodeSelector", "tolerations")}, "affinity": affinity})


def refuse_taken(given: Mapping[str, str], path: str) -> None:
    """Refuses labels or annotations that the launcher sets.

    Raises:
        ConfigError: If there is one, with its path.
    """
    taken = sorted(name for name in given if name.startswith(PREFIX))
    if taken:
        raise ConfigError(f"{path} of the pod template has {taken[0]}, which the launcher sets; leave it out")


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


def live_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns which container of a pod that is there is meant: the default one, or else the first.

    It is named in every node's pod: webhooks put containers of their own before it.
    """
    containers: list[Mapping[str, Any]] = (pod.get("spec") or {}).get("containers") or [{}]
    wanted = ((pod.get("metadata") or {}).get("annotations") or {}).get(DEFAULT_CONTAINER)
    return next((one for one in containers if one.get("name") == wanted), containers[0])


def _given(fields: Mapping[str, Any]) -> Document:
    return {key: value for key, value in fields.items() if value}


def _object(found: Any, path: str) -> Document:
    if found is None:
        raise ConfigError(f"{path} of the pod template is missing; it must be an object")
    _check(found, {}, path)
    return dict(found)


def _refuse_unknown(found: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{path} of the pod template has the unknown key {key!r}; it may have {', '.join(known)}{meant}"
            )


def _check(found: Any, form: Any, path: str) -> None:
    """Refuses what is not of a form; keys of it that are left out, or null, are as good as none."""
    kind: type = str if form is str else type(form)
    fits = isinstance(found, kind)
    if not fits:
        quotes = ": put it in quotes" if kind is str and isinstance(found, int | float) else ""
        raise ConfigError(f"{path} of the pod template is {_shown(found)}; it must be {_WORDS[kind]}{quotes}")
    if isinstance(form, list):
        for index, one in enumerate(found):
            _check(one, form[0], f"{path}[{index}]")
    if isinstance(form, dict):
        for key in _NEEDED:
            if key in form and not found.get(key):
                raise ConfigError(f"{path} of the pod template has no {key}; give it one")
        for key, value in found.items():
            if _EACH in form:
                _check(value, form[_EACH], f"{path}[{key!r}]")
            elif key in form and value is not None:
                _check(value, form[key], f"{path}.{key}")


def _check_json(found: Any, path: str, count: Iterator[int], above: Sequence[Any] = ()) -> None:
    """Refuses YAML that the API can't express: dates, keys that are no texts, cycles."""
    if any(found is one for one in above):
        raise ConfigError(f"{path} of the pod template holds itself; write it out")
    if len(above) > _MOST_LEVELS:
        raise ConfigError("the pod template is nested too deeply")
    if next(count) > _MOST_VALUES:
        raise ConfigError(f"the pod template is too large: over {_MOST_VALUES} values, its aliases written out")
    if isinstance(found, dict):
        for key, value in found.items():
            if not isinstance(key, str):
                raise ConfigError(f"{path or 'the top'} of the pod template has the key {key!r}; put it in quotes")
            _check_json(value, f"{path}.{key}".removeprefix("."), count, (*above, found))
    elif isinstance(found, list):
        for index, one in enumerate(found):
            _check_json(one, f"{path}[{index}]", count, (*above, found))
    elif not isinstance(found, str | int | float | None) or (isinstance(found, float) and not math.isfinite(found)):
        raise ConfigError(f"{path or 'the top'} of the pod template is {found!r}; put it in quotes")


def _shown(found: Any) -> str:
    return "null" if found is None else repr(found)
