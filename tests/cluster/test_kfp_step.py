"""Kubeflow's step whose nodes are pods: data and model really travel, by each way that there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import certifi
import pytest
import torch

from tests.cluster.machine import volumes
from tests.cluster.machine.places import HOST_ADDRESS
from tests.support.cluster.kfp_step import MOUNTS, mount, step_pod
from tests.support.cluster.stage import LONG, Stage, staged
from tests.support.cluster.users import OTHER, ROOT
from tests.support.cluster.workflow_kind import WORKFLOW, workflows_known
from tests.support.launches import until
from tests.support.object_store import BUCKET, object_store

pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]

SCRIPT = """
import io, os
import fsspec, torch
from obstore.fsspec import register
import elastic_launcher.torch as elastic

register("s3")
os.umask(0o077)
job = elastic.init(global_batch_size=8, max_batch_per_gpu=4)
with fsspec.open(os.environ["ELASTIC_DATA"]) as file:
    x = torch.load(file, weights_only=True)
model = torch.nn.Linear(4, 1, dtype=torch.float64)
model, optimizer = job.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
loader = job.dataloader(torch.utils.data.TensorDataset(x), shuffle=True, seed=7)
for epoch in job.epochs(3):
    for (rows,) in loader:
        job.backward(((model(rows).squeeze(-1) - rows.sum(1)) ** 2).mean())
        optimizer.step(); optimizer.zero_grad()
if job.is_main:
    whole = io.BytesIO()  # obstore does not copy what torch.save hands it in pieces
    torch.save(model.state_dict(), whole)
    with fsspec.open(os.environ["ELASTIC_OUTPUT"], "wb") as file:
        file.write(whole.getvalue())
"""
STEPS = 30
KEPT = "/elsewhere"
"""Where nodes alone have a volume."""


@dataclass(frozen=True)
class Way:
    """How data and model travel.

    Attributes:
        root: URI of the pipeline's root.
        mounted: What is mounted on the task.
        parameters: Of the component.
        in_workspace: Whether the data is in the pipeline's workspace already.
        lies: Where, in the test's folder, the step has what lies under the root.
        by_nodes: Whether nodes have a volume of their own, for checkpoints.
    """

    root: str
    mounted: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    in_workspace: bool = False
    lies: str = "minio/mlpipeline/v2"
    by_nodes: bool = False


KUBEFLOWS = "minio://mlpipeline/v2"
STORE = f"s3://{BUCKET}/v2"
ON_NODES = {"checkpoint_dir": f"{KEPT}/checkpoints"}
WAYS = {
    "workspace": Way(KUBEFLOWS, "/kfp-workspace", {"shared_dir": "/kfp-workspace/digits"}, in_workspace=True),
    "claim": Way(KUBEFLOWS, "/work", {"shared_dir": "/work/digits"}),
    "url": Way(KUBEFLOWS, parameters={"shared_dir": f"s3://{BUCKET}/digits"}),
    "own-uri": Way(STORE, parameters={"checkpoint_dir": f"s3://{BUCKET}/digits"}, lies=f"s3/{BUCKET}/v2"),
}


@pytest.fixture(scope="module", autouse=True)
def workflow_kind() -> Iterator[None]:
    with workflows_known():
        yield


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with prepared(tmp_path, "restricted") as stage:
        yield stage


@contextmanager
def prepared(tmp_path: Path, level: str) -> Iterator[Stage]:
    """Gives a namespace of a Pod Security Standard in which a Workflow runs a step."""
    for name in (*MOUNTS, "work", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    with staged(tmp_path, "kfp", level) as stage:
        stage.apply(WORKFLOW)
        yield stage


def begin(stage: Stage, way: Way, env: dict[str, str], by_root: bool = False) -> tuple[Path, Path]:
    """Starts the step; returns where its data is, and where it has what lies under the pipeline's root.

    Args:
        stage: Where.
        way: How data and model travel.
        env: Variables of the step and its nodes.
        by_root: Whether the step is root, without a capability, and its nodes are not.
    """
    (owner,) = stage.get("workflows")
    place = stage.folder / way.lies
    data = {"name": "data", "uri": f"{way.root}/data", "type": {"schemaTitle": "system.Dataset"}}
    kept = place / "data"
    if way.in_workspace:
        data["metadata"] = {"_kfp_workspace": True}
        kept = stage.folder / "kfp-workspace" / ".artifacts" / way.lies / "data"
    for folder in (place, kept.parent):
        folder.mkdir(parents=True, exist_ok=True)
    torch.save(torch.randn(80, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64), kept)
    for path in stage.folder.rglob("*"):  # as KFP's launcher, which is root in the step
        path.chmod(0o777)
    task: dict[str, Any] = {"env": [{"name": name, "value": value} for name, value in env.items()]}
    if way.mounted:
        claim = {"claimName": volumes.claim_name(stage.folder)}
        task["volumes"] = [{"name": "shared", "persistentVolumeClaim": claim}]
        task["volumeMounts"] = [{"name": "shared", "mountPath": way.mounted, "subPath": way.mounted.strip("/")}]
    node = stage.node_spec()
    if way.by_nodes:
        node["containers"][0]["volumeMounts"].append(mount(stage.folder, KEPT.strip("/")))
    given = {"script": SCRIPT, "min_nodes": 2, "pod_template": json.dumps({"spec": node}), "task_config": task}
    if by_root:
        node["securityContext"] = OTHER
        given["pod_template"] = json.dumps({"spec": node})
    pod = step_pod(stage, owner, way.root, data, given | way.parameters)
    if by_root:
        pod["spec"]["securityContext"] = ROOT
    stage.apply(pod)
    return kept, place


@pytest.mark.parametrize(
    "name",
    [name if name in ("claim", "url") else pytest.param(name, marks=pytest.mark.thorough) for name in WAYS],
)
def test_data_and_model_travel(stage: Stage, name: str) -> None:
    way = WAYS[name]
    with object_store(stage.folder / "buckets", HOST_ADDRESS) as store:
        (store.bucket / "v2").mkdir()
        env = store.environment | {"SSL_CERT_FILE": certifi.where()}
        data, place = begin(stage, way, env if "s3://" in json.dumps([way.root, way.parameters]) else {})
        if way.root == STORE:  # KFP's launcher had it from there
            (store.bucket / "v2" / "data").write_bytes(data.read_bytes())
        assert stage.wait() == 0
        found = json.loads((stage.folder / "executor_output.json").read_text())
        assert found["parameterValues"]["steps"] == STEPS
        assert found["parameterValues"]["world_size_final"] == 2
        model = (store.bucket / "v2" if way.root == STORE else place) / "model"
        assert_as_one_process(model, data, stage.folder / "alone")
    until(lambda: not stage.nodes(), "no node is left", LONG)


@pytest.mark.thorough
def test_they_travel_between_a_root_step_and_nodes_of_another_user(tmp_path: Path) -> None:
    with prepared(tmp_path, "baseline") as stage:
        data, place = begin(stage, WAYS["claim"], {}, by_root=True)
        assert stage.wait() == 0
        (made,) = (stage.folder / "work" / "digits").glob("*/model")
        assert made.stat().st_uid == OTHER["runAsUser"] and (place / "model").stat().st_uid == 0
        assert_as_one_process(place / "model", data, stage.folder / "alone")


def assert_as_one_process(model: Path, data: Path, alone: Path) -> None:
    """Loads the model as a next step would, and compares it with that of a plain run."""
    env = os.environ | {"ELASTIC_DATA": str(data), "ELASTIC_OUTPUT": str(alone)}
    subprocess.run([sys.executable, "-c", SCRIPT], env=env, check=True, cwd=alone.parent)
    made, wanted = (torch.load(path, weights_only=True) for path in (model, alone))
    assert made.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(made[name], value, rtol=1e-9, atol=1e-9)


def test_data_that_has_no_way_ends_the_step_before_a_pod_is_made(stage: Stage) -> None:
    begin(stage, Way(KUBEFLOWS, parameters=ON_NODES, by_nodes=True), {})
    assert stage.wait() == 1
    assert f"nodes have no way to {KUBEFLOWS}/" in stage.log()
    assert "(exit code 2)" in stage.log()
    assert not stage.get("jobs")
