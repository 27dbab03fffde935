"""A step of Kubeflow as a pod: what a backend would make of the compiled component, without one.

The command is the compiled one, so KFP's own executor runs the body. What is left out: the installation of packages,
which come through the tests' volumes, and KFP's launcher, which brings artifacts to where the step has them and takes
them from there. The test does both: the step sees folders of the test's there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from elastic_launcher.engines.kubernetes.objects.names import NODE_NAME, RUN_LABEL
from tests.cluster.machine import volumes
from tests.cluster.machine.node import REPOSITORY
from tests.support.cluster import pods
from tests.support.cluster.stage import NAME, Stage

COMPONENT = "elastic_train_distributed"
MOUNTS = ("minio", "s3", "kfp-workspace")
"""Where a step has artifacts, by the kind of their URI, and the pipeline's workspace; folders of the test's."""
_OUTPUTS = {
    "model": "system.Model",
    "metrics": "system.Metrics",
    "timeline": "system.HTML",
    "summary": "system.Markdown",
}


def step_pod(
    stage: Stage, owner: dict[str, Any], root: str, data: dict[str, Any], parameters: dict[str, Any]
) -> dict[str, Any]:
    """Returns the step's pod.

    Args:
        stage: Where it runs; ``task_config`` mounts volumes in it too.
        owner: The Workflow, as the API server has it.
        root: URI of the pipeline's root, below which the step's outputs are.
        data: The artifact that it gets.
        parameters: Those that are not the defaults, and ``task_config`` as a backend hands it over.
    """
    whole = yaml.safe_load((REPOSITORY / "components" / "training" / COMPONENT / "component.yaml").read_text())
    definition = whole["components"][f"comp-{COMPONENT.replace('_', '-')}"]["inputDefinitions"]["parameters"]
    defaults = {name: one["defaultValue"] for name, one in definition.items() if "defaultValue" in one}
    # KFP's API writes the whole numbers among them as such
    values = {name: int(one) if isinstance(one, float) and one.is_integer() else one for name, one in defaults.items()}
    artifacts = {
        name: {"artifacts": [{"name": name, "uri": f"{root}/{name}", "type": {"schemaTitle": title}}]}
        for name, title in _OUTPUTS.items()
    }
    handed = {
        "inputs": {"parameterValues": values | parameters, "artifacts": {"data": {"artifacts": [data]}}},
        "outputs": {"artifacts": artifacts, "outputFile": str(stage.folder / "executor_output.json")},
    }
    (container,) = whole["deploymentSpec"]["executors"].values()
    ir = container["container"]
    command = ir["command"][3:]  # what stands before installs packages, and runs this
    assert command[:2] == ["sh", "-ec"], "KFP compiles the installation otherwise"
    pod = pods.python_pod(stage.space, "step", writable=[stage.folder])
    main = pod["spec"]["containers"][0]
    main["command"] = command
    main["args"] = [json.dumps(handed) if one == "{{$}}" else one for one in ir["args"]]
    main["env"] += [{"name": "PATH", "value": f"{sys.prefix}/bin:/usr/bin:/bin"}]
    main["env"] += [{"name": "KFP_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    task = parameters["task_config"]
    main["env"] += task.get("env", [])
    pod["spec"]["volumes"] += task.get("volumes", [])
    main["volumeMounts"] += task.get("volumeMounts", [])
    seen = {one["mountPath"] for one in main["volumeMounts"]}
    main["volumeMounts"] += [mount(stage.folder, name) for name in MOUNTS if f"/{name}" not in seen]
    pod["spec"] |= {"serviceAccountName": NAME, "automountServiceAccountToken": True}
    controlled = {key: owner[key] for key in ("apiVersion", "kind")} | {"controller": True}
    controlled |= {key: owner["metadata"][key] for key in ("name", "uid")}
    pod["metadata"] |= {
        "labels": {"job-name": NAME, RUN_LABEL: "run-1"},
        "annotations": {NODE_NAME: "train(0).root(0).train(0).executor(0)"},
        "ownerReferences": [controlled],
    }
    return pod


def mount(folder: Path, name: str) -> dict[str, Any]:
    """Returns a mount of a folder within the test's own, by the volume that a stage's pods have."""
    return {"name": volumes.claim_name(folder), "mountPath": f"/{name}", "subPath": name}
