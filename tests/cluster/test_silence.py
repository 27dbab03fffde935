"""Machines that fall silent: a kubelet alone, and one that is cut off or gone with all that ran on it.

It needs the machine. The cluster itself takes its time to see it: peers and the coordinator miss heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster.machine import cluster
from tests.support.cluster import pods
from tests.support.cluster.command import act
from tests.support.cluster.stage import LONG, PLACES, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT, assert_same_model, train_plain
from tests.support.losses import BATCH, SAMPLES, assert_same_training, options
from tests.support.resizes import formed

HEARTBEAT = 10.0
LATE = 10.0
"""Seconds beyond the heartbeat's: as long again, since it counts from the last one, and others have to wait for it."""
ELSEWHERE = 30.0
"""Seconds from the coordinator's decision until the replacement runs: the bound that is documented."""
FIRST, SECOND = 0, 1
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Gives a job of two nodes, one on each machine, whose launcher is on the first."""
    with staged(tmp_path, "silence") as stage:
        fill(stage)
        stage.launch(
            "--nodes=1:2",
            f"--heartbeat-timeout={HEARTBEAT:g}",
            "--orphan-timeout=300",  # who comes back is not to have left by itself
            script=SCRIPT,
            argument=options(stage.folder, pace=0.02),
            launcher={"nodeSelector": {"kubernetes.io/hostname": f"node-{FIRST}"}},
        )
        formed(stage, 2, 0)
        stage.delete("pods", "-l", "role=filler", "--grace-period=1")
        until(lambda: not stage.get("pods", "-l", "role=filler"), "there is room for more", LONG)
        try:
            yield stage
        finally:
            act("node", str(SECOND), "up")  # and Ready


def fill(stage: Stage) -> None:
    """Leaves room for one GPU on each machine."""
    taken = cluster.running(PLACES).gpus - 1
    for node in (FIRST, SECOND):
        name = f"filler-{node}"
        pod = pods.python_pod(stage.space, name, "-c", "import signal; signal.pause()", node=node, gpus=taken)
        pod["metadata"]["labels"] = {"role": "filler"}
        stage.apply(pod)
        pods.wait(stage.kubectl, stage.space, name, "{.status.phase}", ["Running"])


def machine_of(pod: dict[str, Any]) -> str:
    return str(pod["spec"]["nodeName"])


def runs(pod: dict[str, Any]) -> bool:
    """Returns whether a process of a pod runs on any machine, whatever the API knows: all are this one's."""
    mark = f"ELASTIC_POD={pod['metadata']['name']}".encode()

    def has(process: Path) -> bool:
        try:
            return mark in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    return any(has(process) for process in Path("/proc").glob("[0-9]*"))


@pytest.mark.thorough
def test_a_kubelet_that_stops_changes_nothing(stage: Stage) -> None:
    before, formations = stage.uids(), stage.events.of("generation_formed")
    act("node", str(SECOND), "kubelet", "stop")
    try:
        ready = '{.status.conditions[?(@.type=="Ready")].status}'
        stage.kubectl.watch(
            "nodes",
            f"--field-selector=metadata.name=node-{SECOND}",
            line=ready,
            good=lambda seen: seen == "Unknown",
            what="the cluster misses the kubelet",
            seconds=LONG,
        )
        step = stage.events.of("progress")[-1]["step"]
        stage.events.wait("progress", lambda event: event["step"] > step + 20, LONG)
    finally:
        act("node", str(SECOND), "kubelet", "cont")
    assert stage.uids() == before
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
    assert stage.events.of("generation_formed") == formations
    assert [stage.events.of(kind) for kind in ("notice", "node_lost", "node_left")] == [[], [], []]


@pytest.mark.parametrize("loss", ["cut", pytest.param("vanish", marks=pytest.mark.thorough)])
def test_a_machine_that_falls_silent_is_replaced_elsewhere_and_comes_back_to_nothing(stage: Stage, loss: str) -> None:
    before = stage.nodes()
    (lost,) = [node for node, pod in before.items() if machine_of(pod) == f"node-{SECOND}"]
    (kept,) = before.keys() - {lost}
    generation = stage.events.of("generation_formed")[-1]["generation"]
    last = stage.events.all()[-1]["time"]
    act("node", str(SECOND), loss)
    try:
        seen = stage.events.wait("node_lost", timeout=LONG)
        decided = stage.events.wait("node_started", lambda event: event["node"] > max(before), LONG)
        formed(stage, 2, generation)
        assert runs(before[lost]) == (loss == "cut")
    finally:
        act("node", str(SECOND), "mend" if loss == "cut" else "up")
    assert seen["node"] == lost
    assert seen["time"] - last < HEARTBEAT + LATE
    after = stage.nodes()
    assert after[kept]["metadata"]["uid"] == before[kept]["metadata"]["uid"]
    new = after[decided["node"]]
    assert machine_of(new) == f"node-{FIRST}"
    began = new["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    assert datetime.fromisoformat(began).timestamp() - seen["time"] < ELSEWHERE

    number = len(stage.events.of("generation_formed"))
    until(lambda: not runs(before[lost]), "the rank that came back leaves", LONG)
    step = stage.events.of("progress")[-1]["step"]
    stage.events.wait("progress", lambda event: event["step"] > step + 5, LONG)
    assert len(stage.events.of("generation_formed")) == number
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
    assert [event["node"] for event in stage.events.of("node_lost")] == [lost]


@pytest.mark.thorough
def test_the_only_node_is_cut_off_and_another_goes_on_from_its_checkpoint_elsewhere(tmp_path: Path) -> None:
    with staged(tmp_path, "alone") as stage:
        filler = pods.python_pod(
            stage.space,
            "filler",
            "-c",
            "import signal; signal.pause()",
            node=FIRST,
            gpus=cluster.running(PLACES).gpus,
        )
        stage.apply(filler)
        pods.wait(stage.kubectl, stage.space, "filler", "{.status.phase}", ["Running"])
        stage.launch(
            "--nodes=1:1",
            "--silence-timeout=20s",
            "--orphan-timeout=300",
            "--checkpoint-every=5 steps",
            script=SCRIPT,
            argument=options(stage.folder, pace=0.02),
            launcher={"nodeSelector": {"kubernetes.io/hostname": f"node-{FIRST}"}},
        )
        formed(stage, 1, 0)
        stage.delete("pod", "filler", "--grace-period=1")
        (before,) = stage.nodes().values()
        assert machine_of(before) == f"node-{SECOND}"
        stage.events.wait("checkpoint_saved", timeout=LONG)
        act("node", str(SECOND), "cut")
        try:
            lost = stage.events.wait("node_lost", timeout=LONG)
            again = formed(stage, 1, 1)
            (after,) = stage.nodes().values()
        finally:
            act("node", str(SECOND), "mend")
        assert "gave no sign of life for 20 s (--silence-timeout)" in lost["message"]
        assert machine_of(after) == f"node-{FIRST}" and again["first_step"] > 0
        until(lambda: not runs(before), "the rank that came back leaves", LONG)
        (stage.folder / "stop").touch()
        assert stage.wait() == 0
        steps = torch.load(stage.folder / "model.pt")["step"]
        assert_same_model(stage.folder, train_plain(SAMPLES, BATCH, steps))
