"""Applies the task's configuration, which its author set, to the nodes' pods.

Invariant: all that the task says is in the nodes' pod, and where the pod template says the same thing, the template's
is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from elastic_launcher.engines.kubernetes.job_plan import load_template
from elastic_launcher.engines.kubernetes.objects.names import RUN_LABEL
from elastic_launcher.engines.kubernetes.objects.template import Document, PodFields, node_container, template_of
from elastic_launcher.options import BY_KEY, ConfigError

_MERGED = ("env", "volumes", "volumeMounts", "tolerations")
"""Lists of which both may have members; those of one key are the template's alone."""
_OWN = ("emptyDir", "ephemeral")
"""Volumes that come and go with a pod."""
_KEYS = {"env": "name", "volumes": "name", "volumeMounts": "mountPath"}


class TaskConfig(Protocol):
    """The task's configuration from Kubeflow (``dsl.TaskConfig``); fields that its author left out are empty."""

    affinity: dict[str, Any] | None
    tolerations: list[dict[str, Any]] | None
    node_selector: dict[str, str] | None
    env: list[dict[str, Any]] | None
    volumes: list[dict[str, Any]] | None
    volume_mounts: list[dict[str, Any]] | None
    resources: dict[str, Any] | None


def nodes_template(task: TaskConfig, pod_template: str, run: str = "") -> Document:
    """Returns the pod template of the nodes.

    Args:
        task: What the author set on the task.
        pod_template: File or text of a pod template, or "".
        run: The run's id, for a label; "" for none.

    Raises:
        ConfigError: If the template can't be read, or is none.
    """
    fields = PodFields(
        env=task.env or (),
        resources=task.resources or {},
        volumes=task.volumes or (),
        volume_mounts=task.volume_mounts or (),
        tolerations=task.tolerations or (),
        node_selector=task.node_selector or {},
        affinity=task.affinity or {},
        labels={RUN_LABEL: run} if run else {},
    )
    of_task = template_of(fields)
    if not pod_template:
        return of_task
    template = load_template(pod_template, "pod_template")
    if not template["spec"].get("containers"):
        template["spec"]["containers"] = [{"name": of_task["spec"]["containers"][0]["name"]}]
    container = template["spec"]["containers"][node_container(template)]
    theirs = of_task["spec"].pop("containers")[0]
    labels = template["metadata"].get("labels") or {}
    labels.pop(RUN_LABEL, None)  # of the run that the template was taken from
    _add(template["metadata"], of_task["metadata"])
    _add(template["spec"], of_task["spec"])
    _add(container, {key: value for key, value in theirs.items() if key != "name"})
    return template


def gpus_of(resources: Mapping[str, Any] | None, given: str) -> tuple[str, int | None]:
    """Returns what a GPU is called, and how many a task asks for (``set_accelerator_limit``); None where it does not.

    Args:
        resources: Of the task.
        given: What the author says a GPU is called; the option's default gives way to what the task has.

    Raises:
        ConfigError: If the task asks for another kind than the author says, or for what is no number.
    """
    limits = (resources or {}).get("limits") or {}
    # as cpu, memory and hugepages-2Mi have no domain, and GPUs always have one
    asked = [name for name in limits if "/" in name]
    if not asked:
        return given, None
    if len(asked) > 1 or (given not in asked and given != BY_KEY["gpu_resource"].default):
        raise ConfigError(
            f"gpu_resource is {given!r}, and the task asks for {', '.join(asked)}: give the name of one of them, alone"
        )
    count = str(limits[asked[0]])
    if not count.isdecimal() or int(count) < 1:
        raise ConfigError(f"the task asks for {count!r} {asked[0]}; it must be a whole number, 1 or more, as a str")
    return asked[0], int(count)


def mounts_of(task: TaskConfig, template: Mapping[str, Any]) -> Sequence[str]:
    """Returns where a node sees volumes that the step and the other nodes see as well.

    Those that the pod template alone names are the nodes'; the task's are the step's own pod's too. ``template`` is
    made of both.
    """
    containers = template["spec"].get("containers") or ()
    found = containers[node_container(template)] if containers else {}
    common = [one for one in template["spec"].get("volumes") or () if one in (task.volumes or ())]
    seen = {one["name"] for one in common if not any(kind in one for kind in _OWN)}
    mounts = [one for one in found.get("volumeMounts") or () if one in (task.volume_mounts or ())]
    return [one["mountPath"] for one in mounts if one["name"] in seen]


def _add(template: Document, task: Mapping[str, Any]) -> None:
    """Adds to a part of the template what the task says and the template does not."""
    for key, value in task.items():
        there = template.get(key)
        if not there:
            template[key] = value
        elif key in _MERGED:
            named = {one.get(_KEYS.get(key, "")) for one in there} - {None}
            template[key] = [*there, *(one for one in value if one.get(_KEYS.get(key, "")) not in named)]
        elif isinstance(value, Mapping) and key != "affinity":
            _add(there, value)
