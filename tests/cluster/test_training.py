"""A training follows its hints through the sizes that they allow: all that it computes is what it would be anyhow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.objects.names import NODE_LABEL
from tests.cluster.machine import cluster
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.node import REPOSITORY
from tests.support.cluster import digits, pods
from tests.support.cluster.stage import HINTS, LONG, PLACES, staged
from tests.support.launches import EventFollower, until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(900),  # a minute for each of several pods that import torch on a busy machine
]

PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start


@pytest.fixture
def kubectl() -> Kubectl:
    return Kubectl(PLACES, cluster.running(PLACES).programs)


@pytest.fixture
def quota(kubectl: Kubectl) -> Iterator[str]:
    """Gives a namespace of the admins."""
    with pods.namespace(kubectl, "quota") as name:
        yield name


def allow(quota: str, gpus: int) -> None:
    """Edits the hints as `docs/kubernetes.md` does."""
    entry = ("--match", "job=digits", "--allowed", str(gpus))
    command = (sys.executable, "-m", "elastic_launcher", "hints", "set", f"configmap/{quota}/{HINTS}", *entry)
    subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "KUBECONFIG": str(PLACES.kubeconfig)}, check=True)


def node_pods(kubectl: Kubectl, space: str) -> list[str]:
    return kubectl("get", "pods", "-l", NODE_LABEL, f"--namespace={space}", "-o", "name").split()


def test_the_digits_are_trained_by_the_sample_through_edits_in_another_namespace(
    kubectl: Kubectl, quota: str, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(0o777)
    for epoch in digits.HELD:
        (work / digits.HOLD.format(epoch)).touch()
    events = EventFollower(work / "job" / "events.jsonl")
    with pods.namespace(kubectl, "digits") as space:
        kubectl.apply(*digits.overlay("plain", space, space), *digits.overlay("hints", quota, space))
        kubectl.apply(*digits.sample(space, quota, work))
        events.wait("generation_formed", timeout=LONG)
        allow(quota, 3)
        events.wait("node_warm", lambda event: event["node"] == 3, LONG)
        events.wait("node_warm", lambda event: event["node"] == 2, LONG)
        (work / digits.HOLD.format(digits.HELD[0])).unlink()
        events.wait("generation_formed", lambda event: event["world_size"] == 3, LONG)
        assert len(node_pods(kubectl, space)) == 3
        allow(quota, 2)
        events.wait("hint_applied", lambda event: event["target_nodes"] == 2, LONG)
        (work / digits.HOLD.format(digits.HELD[1])).unlink()
        events.wait("generation_formed", lambda event: event["world_size"] == 2, LONG)
        kubectl("wait", "--for=condition=complete", "job/digits", f"--namespace={space}", f"--timeout={LONG:.0f}s")
        until(lambda: not node_pods(kubectl, space), "no node is left", LONG)
        log = kubectl("logs", "job/digits", f"--namespace={space}", "--tail=-1")
    sizes = [event["world_size"] for event in events.of("generation_formed")]
    assert sizes in ([1, 3, 2], [1, 2, 3, 2]), "of two that join, one may be up earlier"
    (finished,) = events.of("job_finished")
    assert (finished["exit_code"], finished["samples"]) == (0, digits.EPOCHS * digits.IMAGES), finished
    assert f"epoch {digits.EPOCHS} of {digits.EPOCHS}: " in log
    assert (work / "digits.pt2").stat().st_size > 0


@pytest.mark.thorough
def test_two_ranks_a_pod_train_the_same_model_through_growth_and_shrinking(tmp_path: Path) -> None:
    with staged(tmp_path, "training") as stage:
        stage.allow(2)
        hints = f"--hints=configmap/{HINTS}"
        stage.launch("--nodes=1:2", "--nproc-per-node=2", hints, script=SCRIPT, argument=options(tmp_path, pace=PACE))
        first = formed(stage, 2, 0, LONG)
        kept = stage.uids()
        stage.allow(4)
        second = formed(stage, 4, first["generation"], LONG)
        asked = [
            pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in stage.nodes().values()
        ]
        stage.allow(2)
        formed(stage, 2, second["generation"], LONG)
        assert kept.items() <= stage.uids().items()
        (tmp_path / "stop").touch()
        assert stage.wait() == 0
    assert asked == ["2", "2"]
    assert_same_training(tmp_path, stage)
