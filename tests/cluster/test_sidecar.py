"""A node whose template has a sidecar that never ends: it trains, and is gone when its own container has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import pods
from tests.support.cluster.stage import LONG, Stage, staged
from tests.support.launches import until
from tests.support.pod_templates import contains

pytestmark = [pytest.mark.machine, pytest.mark.thorough, pytest.mark.timeout(900)]

SCRIPT = """
import torch
import elastic_launcher.torch as elastic

job = elastic.init(global_batch_size=8, max_batch_per_gpu=8)
model = torch.nn.Linear(2, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
loader = job.dataloader(torch.utils.data.TensorDataset(torch.ones(80, 2), torch.ones(80, 1)))
for epoch in job.epochs(2):
    for x, y in loader:
        job.backward(((model(x) - y) ** 2).mean())
        optimizer.step()
        optimizer.zero_grad()
"""
SIDECAR = {
    "name": "sidecar",
    "image": "localhost/pause:1",
    "imagePullPolicy": "Never",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "sidecar") as stage:
        yield stage


def test_a_sidecar_that_never_ends_stays_in_the_pod_and_holds_nothing_up(stage: Stage) -> None:
    main = pods.python_pod(stage.space, "node", writable=[stage.folder])["spec"]["containers"][0]
    env = [one for one in main["env"] if one["name"] == "PYTHONPATH"]
    node = {key: main[key] for key in ("name", "image", "imagePullPolicy", "volumeMounts")} | {"env": env}
    more = {"shareProcessNamespace": True, "terminationGracePeriodSeconds": 45}
    template = {"containers": [node, SIDECAR], **more}
    stage.launch("--nodes=1:1", script=SCRIPT, argument="", template=template)
    (pod,) = until(lambda: list(stage.nodes().values()), "the node has a pod", LONG)
    assert contains(pod["spec"], more) and contains(pod["spec"]["containers"][1], SIDECAR)
    assert stage.wait() == 0
    until(lambda: not stage.nodes(), "the node is gone", LONG)
