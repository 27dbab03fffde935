"""Volumes of ``elastic_train_distributed`` in a compiled pipeline: on the step's pod, and handed to the nodes'."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl

from elastic_launcher.kfp import elastic_train_distributed

README = Path(__file__).parents[2] / "components" / "training" / "elastic_train_distributed" / "README.md"
TRAINS = "exec-elastic-train-distributed"


def compiled(pipeline: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a pipeline, and what of it is Kubernetes' alone."""
    path = folder / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    document, platform = yaml.safe_load_all(path.read_text())
    return document, platform["platforms"]["kubernetes"]


def test_the_readmes_claim_is_mounted_on_the_step_and_handed_to_the_nodes(tmp_path: Path) -> None:
    pytest.importorskip("kfp.kubernetes", reason="kfp-kubernetes needs a later kfp than the one that is tried here")
    (code,) = [one for one in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "mount_pvc" in one]
    found: dict[str, Any] = {"SCRIPT": "train.py"}
    exec(code, found)
    document, kubernetes = compiled(found["train"], tmp_path)
    (mount,) = kubernetes["deploymentSpec"]["executors"][TRAINS]["pvcMount"]
    assert (mount["constant"], mount["mountPath"]) == ("work", "/work")
    (component,) = [one for one in document["components"].values() if one.get("executorLabel") == TRAINS]
    assert {"field": "KUBERNETES_VOLUMES", "applyToTask": True} in component["taskConfigPassthroughs"]


def test_the_pipelines_workspace_may_be_the_folder_by_which_things_travel(tmp_path: Path) -> None:
    @dsl.pipeline(name="p", pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
    def pipeline():  # type: ignore[no-untyped-def]
        elastic_train_distributed(script="train.py", shared_dir=dsl.WORKSPACE_PATH_PLACEHOLDER + "/digits")

    document, kubernetes = compiled(pipeline, tmp_path)
    (task,) = document["root"]["dag"]["tasks"].values()
    given = task["inputs"]["parameters"]["shared_dir"]["runtimeValue"]["constant"]
    assert given == "{{$.workspace_path}}/digits", "the backend's word for where the workspace is mounted"
    assert kubernetes["pipelineConfig"]["workspace"]["size"] == "1Gi"
