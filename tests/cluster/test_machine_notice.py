"""A machine that says that it will go: its node leaves before anything is deleted, and another takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.objects.names import NODE_LABEL
from tests.support.cluster.stage import LONG, NAME, Stage, staged
from tests.support.losses import assert_same_training, options
from tests.support.manifests import MANIFESTS, objects
from tests.support.places import SCRIPTS
from tests.support.resizes import formed

pytestmark = pytest.mark.machine

TAINT = "ToBeDeletedByClusterAutoscaler"
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchExpressions": [{"key": NODE_LABEL, "operator": "Exists"}]},
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }
}
SCRIPT = SCRIPTS / "train.py"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "machine-notice") as stage:
        (role,) = objects(MANIFESTS / "overlays" / "node-notice", "ClusterRole")
        about = {"metadata": {"name": stage.space}}
        rbac = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            **about,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": stage.space},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": stage.space}],
        }
        stage.kubectl.apply({**role, **about}, binding)
        try:
            yield stage
        finally:
            stage.kubectl("delete", "clusterrole,clusterrolebinding", stage.space)


def test_a_node_leaves_when_its_machine_says_that_it_will_go(stage: Stage) -> None:
    stage.launch("--nodes=1:2", script=SCRIPT, argument=options(stage.folder), template={"affinity": APART})
    first = formed(stage, 2, 0)
    machines = {node: pod["spec"]["nodeName"] for node, pod in stage.nodes().items()}
    stage.kubectl("taint", "nodes", machines[1], f"{TAINT}=now:PreferNoSchedule")
    try:
        notice = stage.events.wait("notice", timeout=LONG)
        after = stage.events.wait("generation_formed", lambda event: 1 in event["left"], LONG)
    finally:
        stage.kubectl("taint", "nodes", machines[1], f"{TAINT}-")
    assert TAINT in notice["source"]
    assert after["generation"] > first["generation"]
    assert stage.events.of("node_lost") == []
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
