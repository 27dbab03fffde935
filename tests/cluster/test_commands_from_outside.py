"""``status``, ``logs`` and ``stop`` of a job, from a machine that has a kubeconfig and none of the job's files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from tests.support.cluster.stage import LONG, NAME, Stage, staged
from tests.support.launches import until

pytestmark = pytest.mark.machine

SCRIPT = """
import torch
import elastic_launcher.torch as elastic

job = elastic.init(global_batch_size=8, max_batch_per_gpu=8)
model = torch.nn.Linear(2, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
loader = job.dataloader(torch.utils.data.TensorDataset(torch.ones(80, 2), torch.ones(80, 1)), shuffle=True)
print("rank", job.rank, "begins", flush=True)
for epoch in job.epochs(1_000_000):
    for x, y in loader:
        job.backward(((model(x) - y) ** 2).mean())
        optimizer.step()
        optimizer.zero_grad()
        if job.step == 5:
            print("step", job.step, "of rank", job.rank, flush=True)
            job.log({"quality": 0.5})
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "outside") as stage:
        yield stage


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = (sys.executable, "-m", "elastic_launcher", *arguments)
    return subprocess.run(line, capture_output=True, text=True, timeout=LONG)


def test_a_job_is_seen_read_and_stopped_from_outside(stage: Stage) -> None:
    job = f"job/{stage.space}/{NAME}"
    missing = command("status", job)
    assert (missing.returncode, missing.stderr) == (
        2,
        f"elastic-launcher: namespace {stage.space} has no job of the name {NAME}; there: none\n",
    )
    stage.launch("--nodes=2:2", script=SCRIPT, argument="", retries=0)
    stage.events.wait("progress", lambda event: event["step"] > 5, LONG)
    until(lambda: stage.status().get("estimatedRemainingSeconds"), "the status tells how long it takes", LONG)

    told = json.loads(command("status", job, "--json").stdout)
    assert (told["state"], told["world_size"], told["generation"]) == ("running", 2, 1)
    assert (told["progressPercentage"], told["metrics"]["quality"]) == (0, 0.5)
    assert told["estimatedRemainingSeconds"] > 0
    shown = command("status", job).stdout
    assert "state:               running" in shown
    assert "world size:          2 ranks" in shown
    assert f"ago by job {stage.space}/" in shown

    (service,) = stage.get("services", "-l", JOB_LABEL)
    by_id = f"job/{stage.space}/{service['metadata']['name']}"
    of_one = command("logs", by_id, "--rank", "1").stdout.splitlines()
    assert "[rank 1] step 5 of rank 1" in of_one
    assert all(line.startswith("[rank 1] ") for line in of_one)
    both = command("logs", by_id).stdout.splitlines()
    assert {"[rank 0] step 5 of rank 0", "[rank 1] step 5 of rank 1"} <= set(both)

    never = command("logs", by_id, "--rank", "9")
    assert (never.returncode, never.stdout) == (2, "")
    assert "was rank 9: they had ranks 0, 1" in never.stderr

    line = (sys.executable, "-m", "elastic_launcher", "logs", by_id, "--follow")
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as followed:
        assert followed.stdout is not None
        begun = followed.stdout.readline()  # so it follows before the job ends
        stopped = command("stop", job)
        rest = followed.stdout.read()  # to its end: it ends when the pods do
    assert followed.returncode == 0
    assert {"[rank 0] step 5 of rank 0", "[rank 1] step 5 of rank 1"} <= {begun.rstrip(), *rest.splitlines()}
    assert stopped.returncode == 0, stopped.stderr
    assert "elastic-launcher stop, by " in stopped.stdout
    assert stage.wait() == 75
    assert stage.events.of("checkpoint_saved")[-1]["step"] == stage.events.of("job_finished")[-1]["steps"]
    again = command("stop", job)
    assert again.returncode == 2
    assert "is not running" in again.stderr
    assert json.loads(command("status", job, "--json").stdout)["state"] == "stopped"
