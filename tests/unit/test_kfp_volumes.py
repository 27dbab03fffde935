"""A pipeline's workspace as the folder of ``elastic_train_distributed``, in a compiled pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from kfp import compiler, dsl

from elastic_launcher.kfp import elastic_train_distributed


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
