"""What a component's body is handed inside a step: parameters with their defaults, artifacts in a folder, a pod."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kfp import dsl

from elastic_launcher import kfp as front

ARTIFACTS = {
    "model": dsl.Model,
    "metrics": dsl.Metrics,
    "classification": dsl.ClassificationMetrics,
    "timeline": dsl.HTML,
    "summary": dsl.Markdown,
}
NOTHING: dict[str, Any] = dict.fromkeys(
    ("affinity", "tolerations", "node_selector", "env", "volumes", "volume_mounts", "resources")
)


def given(name: str, folder: Path, **parameters: Any) -> dict[str, Any]:
    """Returns all that a body of ours gets.

    Args:
        name: The component.
        folder: Where the step's artifacts are.
        parameters: Those that are not the defaults.
    """
    spec = getattr(front, name).component_spec
    found = {key: one.default for key, one in spec.inputs.items()}
    for key in set(ARTIFACTS) & set(spec.outputs or {}):
        found[key] = ARTIFACTS[key](name=key, uri=str(folder / key))
    if "task_config" in found:
        found["task_config"] = task()
    return found | parameters


def task(**fields: Any) -> Any:
    """Returns a ``TaskConfig``, empty but for some fields, as Kubeflow hands it over."""
    return SimpleNamespace(**{**NOTHING, **fields})


def pod(node_name: str = "p(0).root(0).train(0).executor(0)", image: str = "ml/train:1", run: str = "run-1") -> Any:
    """Returns the pod of a step, as the backend makes it."""
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "p", "uid": "wf-1", "controller": True}
    return {
        "metadata": {
            "name": "p-system-container-impl-1",
            "uid": node_name,
            "labels": {"pipeline/runid": run},
            "annotations": {
                "workflows.argoproj.io/node-name": node_name,
                "kubectl.kubernetes.io/default-container": "main",
            },
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "wait", "image": "argoexec"}, {"name": "main", "image": image}]},
    }
