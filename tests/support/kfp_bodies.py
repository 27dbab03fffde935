"""What a component's body is handed inside a step: parameters, artifacts, a pod; and a step whose run is replaced."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kfp import dsl

from elastic_launcher import kfp as front
from elastic_launcher.config import JobConfig
from elastic_launcher.kfp_steps import own_pod, training
from elastic_launcher.pipeline_step import StepFailed, Trained

ARTIFACTS = {
    "model": dsl.Model,
    "metrics": dsl.Metrics,
    "timeline": dsl.HTML,
    "summary": dsl.Markdown,
}
NOTHING: dict[str, Any] = dict.fromkeys(
    ("affinity", "tolerations", "node_selector", "env", "volumes", "volume_mounts", "resources")
)
NUMBERS = {
    "world_size_final": 2,
    "resizes_total": 3,
    "goodput": 0.9,
    "samples_per_second": 55.5,
    "steps": 120,
    "samples": 7680,
    "duration_seconds": 138.4,
    "gpu_seconds": 276.8,
    "pause_seconds": 0.9,
    "nodes_lost": 1,
}
"""What a run of a :class:`Step` has measured."""


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


def claim(folder: Path) -> dict[str, Any]:
    """Returns the fields of a task with a claim mounted at a folder, which is made."""
    folder.mkdir()
    return {
        "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": "work"}}],
        "volume_mounts": [{"name": "work", "mountPath": str(folder)}],
    }


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


class Step:
    """A step whose run only notes what it was asked, and leaves a model where it was told.

    Attributes:
        asked: What the run was asked.
        fails: How it ends, if not well.
        left: The run's folder.
        writes: What the script leaves beside its model, by suffix.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder = folder
        self.asked: dict[str, Any] = {}
        self.fails: StepFailed | None = None
        self.left = Path("/jobs/1")
        self.writes = {"": "weights"}
        self.pod = pod()
        monkeypatch.setattr(training, "train", self._train)
        monkeypatch.setattr(own_pod, "own_pod", lambda: self.pod)
        monkeypatch.setattr(training, "gpus", lambda: ["0", "1", "2"])

    def _train(self, **asked: Any) -> Trained:
        self.asked = asked
        if self.fails is not None:
            raise self.fails
        for suffix, text in self.writes.items():
            Path(asked["options"]["output"] + suffix).write_text(text)
        return Trained(str(self.left), dict(NUMBERS), "<html>timeline</html>", "# summary")

    def run(self, name: str, **parameters: Any) -> tuple[Any, ...]:
        self.given = given(name, self.folder, **{"script": "train.py", **parameters})
        return training.train_step(self.given)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.asked["options"])

    @property
    def config(self) -> JobConfig:
        """What the launcher makes of the options."""
        texts = {key: value for key, value in self.options.items() if value not in (None, "", False)}
        return JobConfig.from_texts(texts, ["train.py"])
