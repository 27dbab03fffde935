"""The launcher in a pod, its nodes in others: a job from its start to its end, and through the loss of its launcher."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.identity import JOB_LABEL, NODE_LABEL
from elastic_launcher.engines.kubernetes.service import STATUS
from elastic_launcher.events import Event, read_events
from tests.cluster import pods
from tests.cluster.machine import cluster, volumes
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.places import Places
from tests.manifests import MANIFESTS, objects
from tests.support import until

PLACES = Places.default()
RULES = objects(MANIFESTS / "overlays" / "plain", "Role")[0]["rules"]
SCRIPT = """
import os, sys
import torch
import elastic_launcher.torch as elastic

job = elastic.init(global_batch_size=8, max_batch_per_gpu=8)
model = torch.nn.Linear(2, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
loader = job.dataloader(torch.utils.data.TensorDataset(torch.ones(80, 2), torch.ones(80, 1)), shuffle=True)
for epoch in job.epochs(1_000_000):
    for x, y in loader:
        job.backward(((model(x) - y) ** 2).mean())
        optimizer.step()
        optimizer.zero_grad()
        if os.path.exists(sys.argv[1]):
            job.stop("the test is done")
if job.is_main:
    print("trained on", job.world_size, "ranks", flush=True)
"""


@dataclass
class Launched:
    """A launcher's Job.

    Attributes:
        kubectl: The cluster.
        space: Its namespace.
        shared: The folder that all its pods see.
    """

    kubectl: Kubectl
    space: str
    shared: Path

    def get(self, *what: str) -> list[dict[str, Any]]:
        found = json.loads(self.kubectl("get", *what, f"--namespace={self.space}", "-o", "json"))
        return list(found["items"])

    def nodes(self) -> dict[str, str]:
        """Returns the uids of the nodes' pods, by node."""
        found = self.get("pods", "-l", NODE_LABEL)
        return {pod["metadata"]["labels"][NODE_LABEL]: pod["metadata"]["uid"] for pod in found}

    def launchers(self) -> list[dict[str, Any]]:
        return self.get("pods", "-l", "job-name=launcher")

    def log(self) -> str:
        return self.kubectl("logs", "job/launcher", f"--namespace={self.space}", "--tail=-1")

    def events(self, kind: str) -> list[Event]:
        path = self.shared / "job" / "events.jsonl"
        return [event for event in read_events(path) if event.kind == kind] if path.exists() else []

    def await_event(self, kind: str) -> None:
        until(lambda: bool(self.events(kind)), f"an event of kind {kind}", pods.SETTLES_WITHIN)

    def finish(self) -> None:
        """Has the training end, and waits until the launcher has ended."""
        (self.shared / "finish").touch()
        phases = ("Succeeded", "Failed")
        until(
            lambda: any(pod["status"]["phase"] in phases for pod in self.launchers()),
            "the launcher's end",
            pods.SETTLES_WITHIN,
        )


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    kubectl = Kubectl(PLACES, cluster.running(PLACES).programs)
    tmp_path.chmod(0o777)  # pods have users of their own
    with pods.namespace(kubectl, "launch") as space:
        kubectl.apply(*volumes.volumes(space, [tmp_path], writable=True))
        node = pods.python_pod(space, "node", writable=[tmp_path])
        for name in ("command", "resources", "securityContext"):
            del node["spec"]["containers"][0][name]  # the launcher's own
        node["spec"]["containers"][0]["env"] = [
            one for one in node["spec"]["containers"][0]["env"] if one["name"] == "PYTHONPATH"
        ]
        template = json.dumps(
            {"spec": {key: node["spec"][key] for key in ("containers", "volumes", "securityContext")}}
        )
        argv = [
            *("-P", "-m", "elastic_launcher", "run", "--engine", "kubernetes", "--pod-template", "/code/pod.yaml"),
            *("--nodes", "2:2", "--work-dir", f"{tmp_path}/job", "--checkpoint-dir", f"{tmp_path}/checkpoints"),
            *("--", "/code/train.py", f"{tmp_path}/finish"),
        ]
        pod = pods.python_pod(space, "launcher", *argv, writable=[tmp_path])
        pod["spec"] |= {"serviceAccountName": "launcher", "automountServiceAccountToken": True}
        pod["spec"]["volumes"].append({"name": "code", "configMap": {"name": "code"}})
        pod["spec"]["containers"][0]["volumeMounts"].append({"name": "code", "mountPath": "/code"})
        about = {"namespace": space, "name": "launcher"}
        rbac = "rbac.authorization.k8s.io"
        kubectl.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about},
            {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": about, "rules": RULES},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding",
                "metadata": about,
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "launcher"},
                "subjects": [{"kind": "ServiceAccount", "name": "launcher", "namespace": space}],
            },
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"namespace": space, "name": "code"},
                "data": {"train.py": textwrap.dedent(SCRIPT), "pod.yaml": template},
            },
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": about,
                "spec": {"backoffLimit": 3, "template": {"spec": pod["spec"]}},
            },
        )
        yield Launched(kubectl, space, tmp_path)


def test_a_job_trains_in_pods_that_see_none_of_the_launchers_files_and_leaves_none(launched: Launched) -> None:
    launched.await_event("generation_formed")
    assert sorted(launched.nodes()) == ["1", "2"]
    (service,) = launched.get("services", "-l", JOB_LABEL)
    until(
        lambda: json.loads(launched.get("services", "-l", JOB_LABEL)[0]["metadata"]["annotations"][STATUS])["nodes"],
        "the status tells of nodes",
        pods.SETTLES_WITHIN,
    )
    launched.finish()
    assert "trained on 2 ranks" in launched.log()
    assert service["spec"]["clusterIP"] in launched.log()
    assert launched.events("job_finished")[0]["exit_code"] == 0
    until(lambda: not launched.nodes(), "the nodes are gone", pods.SETTLES_WITHIN)


def test_a_launcher_that_is_killed_comes_back_to_the_same_pods(launched: Launched) -> None:
    launched.await_event("generation_formed")
    before = launched.nodes()
    (first,) = launched.launchers()
    name = first["metadata"]["name"]
    launched.kubectl("delete", "pod", name, f"--namespace={launched.space}", "--grace-period=0", "--force")
    launched.await_event("coordinator_adopted")
    assert launched.nodes() == before
    launched.finish()
    assert launched.events("job_finished")[0]["exit_code"] == 0
    assert len(launched.events("job_started")) == 1
