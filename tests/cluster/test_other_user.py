"""A launcher that is root without a capability, as Kubeflow's steps are, and nodes of another user, share a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cluster.ranks import send_ranks
from tests.support.cluster.stage import LONG, Stage, staged
from tests.support.cluster.users import NODE, OTHER, ROOT
from tests.support.ledgers import SCRIPT, assert_same_model, train_plain
from tests.support.losses import BATCH, SAMPLES, options
from tests.support.resizes import formed

pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]

FLAGS = ("--nodes=1:1", "--hints=configmap/gpu-hints", "--checkpoint-every=5 steps")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "user", level="baseline") as stage:
        yield stage


def launch(stage: Stage, *flags: str) -> dict[str, Any]:
    """Starts a job of one node, and returns how it began."""
    stage.allow(1)
    argument = options(stage.folder, pace=0.02)
    spec: dict[str, Any] = {"securityContext": ROOT}
    template = {"securityContext": OTHER}
    stage.launch(*FLAGS, *flags, script=SCRIPT, argument=argument, template=template, launcher=spec)
    return formed(stage, 1, 0)


def saved(stage: Stage, after: int) -> int:
    """Waits for a checkpoint of a later step; returns that."""
    return int(stage.events.wait("checkpoint_saved", lambda event: event["step"] > after, LONG)["step"])


def end(stage: Stage) -> None:
    """Has the training end, and looks at its model, and at who owns what."""
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    steps = torch.load(stage.folder / "model.pt")["step"]
    assert_same_model(stage.folder, train_plain(SAMPLES, BATCH, steps))
    assert (stage.work_dir / "job.json").stat().st_uid == 0
    for path in (stage.folder / "checkpoints").rglob("*.safetensors"):
        assert path.stat().st_uid == NODE


def test_it_goes_on_from_what_they_saved_after_a_wait_and_in_another_pod(stage: Stage) -> None:
    launch(stage, "--wait-for-quota=600")
    saved(stage, 0)
    stage.allow(0)
    stage.events.wait("quota_wait", timeout=LONG)
    stage.allow(1)
    after_wait = formed(stage, 1, 1)
    assert after_wait["first_step"] > 0

    last = saved(stage, after_wait["first_step"])
    (node,) = stage.nodes().values()
    (launcher,) = stage.launchers()
    for pod in (launcher, node):  # nobody is left: the next launcher has the checkpoint alone
        stage.delete("pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    retried = formed(stage, 1, after_wait["generation"])
    assert retried["first_step"] >= last
    end(stage)


@pytest.mark.thorough
def test_it_takes_them_over_and_restarts_them_from_the_checkpoint(stage: Stage) -> None:
    launch(stage)
    last = saved(stage, 0)
    (launcher,) = stage.launchers()
    stage.delete("pod", launcher["metadata"]["name"], "--grace-period=0", "--force")
    stage.events.wait("coordinator_adopted", timeout=LONG)
    saved(stage, last)
    before = stage.events.of("generation_formed")[-1]["generation"]
    (node,) = stage.nodes()
    send_ranks(stage, node, "SIGKILL")
    restarted = formed(stage, 1, before)
    assert restarted["first_step"] > 0
    end(stage)


@pytest.mark.thorough
def test_a_folder_that_each_may_only_remove_its_own_from_is_refused_before_training(stage: Stage) -> None:
    checkpoints = stage.folder / "checkpoints"
    checkpoints.mkdir()
    checkpoints.chmod(0o1777)
    stage.allow(1)
    pod = {"securityContext": {**ROOT, "runAsUser": 2000}}
    template = {"securityContext": OTHER}
    script = options(stage.folder)
    stage.launch(*FLAGS, script=SCRIPT, argument=script, template=template, launcher=pod, retries=0)
    assert stage.wait() == 2
    (finished,) = stage.events.of("job_finished")
    assert "the launcher can't read or remove what such a node makes there" in finished["message"]
    assert f"it is of uid {NODE}" in finished["message"]
    assert not stage.events.of("generation_formed")
