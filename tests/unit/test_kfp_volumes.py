"""The volumes by which things travel, in a compiled pipeline: a claim on either component, a pipeline's workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl, kubernetes

from elastic_launcher.kfp import elastic_train, elastic_train_distributed
from elastic_launcher.lint import lint


def compiled(pipeline: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a pipeline, and what of it is Kubernetes' alone."""
    path = folder / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    document, platform = yaml.safe_load_all(path.read_text())
    return document, platform["platforms"]["kubernetes"]


def test_the_pipelines_workspace_may_be_the_folder_by_which_things_travel(tmp_path: Path) -> None:
    @dsl.pipeline(name="p", pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
    def pipeline():  # type: ignore[no-untyped-def]
        elastic_train_distributed(script="train.py", shared_dir=dsl.WORKSPACE_PATH_PLACEHOLDER + "/digits")

    document, kubernetes = compiled(pipeline, tmp_path)
    (task,) = document["root"]["dag"]["tasks"].values()
    given = task["inputs"]["parameters"]["shared_dir"]["runtimeValue"]["constant"]
    assert given == "{{$.workspace_path}}/digits", "the backend's word for where the workspace is mounted"
    assert kubernetes["pipelineConfig"]["workspace"]["size"] == "1Gi"


@pytest.mark.parametrize(
    ("component", "folder"), [(elastic_train, "work_dir"), (elastic_train_distributed, "shared_dir")]
)
def test_a_claim_is_mounted_on_the_steps_pod(component: Any, folder: str, tmp_path: Path) -> None:
    @dsl.pipeline(name="p")
    def pipeline():  # type: ignore[no-untyped-def]
        training = component(script="train.py", **{folder: "/work/digits"})
        kubernetes.mount_pvc(training, pvc_name="work", mount_path="/work")

    document, platform = compiled(pipeline, tmp_path)
    (executor,) = document["deploymentSpec"]["executors"]
    (mount,) = platform["deploymentSpec"]["executors"][executor]["pvcMount"]
    assert mount["mountPath"] == "/work"
    assert mount["pvcNameParameter"] == {"runtimeValue": {"constant": "work"}}
    assert lint({"pipeline.yaml": (tmp_path / "pipeline.yaml").read_text()}) == []


def test_a_claim_is_handed_to_the_nodes_pods_too(tmp_path: Path) -> None:
    @dsl.pipeline(name="p")
    def pipeline():  # type: ignore[no-untyped-def]
        training = elastic_train_distributed(script="train.py", shared_dir="/work/digits")
        kubernetes.mount_pvc(training, pvc_name="work", mount_path="/work")

    document, _ = compiled(pipeline, tmp_path)
    (step,) = document["components"].values()
    assert {"field": "KUBERNETES_VOLUMES", "applyToTask": True} in step["taskConfigPassthroughs"]
