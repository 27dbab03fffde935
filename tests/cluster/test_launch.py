"""The launcher in a pod, its nodes in others: a job from its start to its end, and through the loss of its launcher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from tests.support.cluster import pods
from tests.support.cluster.stage import Stage, staged
from tests.support.launches import until

pytestmark = pytest.mark.machine

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


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "launch") as stage:
        stage.launch("--nodes=2:2", script=SCRIPT, argument=f"{tmp_path}/finish")
        stage.events.wait("generation_formed", timeout=pods.SETTLES_WITHIN)
        yield stage


def test_a_job_trains_in_pods_that_see_none_of_the_launchers_files_and_leaves_none(stage: Stage) -> None:
    assert sorted(stage.nodes()) == [1, 2]
    (service,) = stage.get("services", "-l", JOB_LABEL)
    until(lambda: stage.status()["nodes"], "the status tells of nodes", pods.SETTLES_WITHIN)
    (stage.folder / "finish").touch()
    assert stage.wait() == 0
    assert "trained on 2 ranks" in stage.log()
    assert service["spec"]["clusterIP"] in stage.log()
    until(lambda: not stage.nodes(), "the nodes are gone", pods.SETTLES_WITHIN)


def test_a_launcher_that_is_killed_comes_back_to_the_same_pods(stage: Stage) -> None:
    before = stage.uids()
    (first,) = stage.launchers()
    stage.delete("pod", first["metadata"]["name"], "--grace-period=0", "--force")
    stage.events.wait("coordinator_adopted", timeout=pods.SETTLES_WITHIN)
    assert stage.uids() == before
    (stage.folder / "finish").touch()
    assert stage.wait() == 0
    assert len(stage.events.of("job_started")) == 1
