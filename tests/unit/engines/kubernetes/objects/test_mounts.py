"""What is certain of a place in a node's pod before there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.engines.kubernetes.job_plan import given_template, make_plan
from elastic_launcher.engines.kubernetes.objects.job import JobPlan
from elastic_launcher.engines.kubernetes.objects.mounts import trouble_at
from elastic_launcher.engines.kubernetes.objects.pod import node_pod
from elastic_launcher.options import ConfigError
from tests.support.job_plans import CONTEXT, config_of
from tests.support.pod_templates import SHAPE, template

CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "work"}}


def trouble(path: str, *mounts: dict[str, Any], **volumes: dict[str, Any]) -> str:
    named = [{"name": name, **volume} for name, volume in volumes.items()]
    return trouble_at(path, node_pod(template({"volumeMounts": list(mounts)}, volumes=named), SHAPE, {}, {}))


def plan(config: JobConfig) -> JobPlan:
    return make_plan(config, given_template(config), CONTEXT)


def at(path: str, name: str = "work", **more: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **more}


@pytest.mark.parametrize("path", ["/work", "/work/", "/work/a/checkpoints", "/work/../work/a"])
def test_a_claim_is_taken_for_good(path: str) -> None:
    assert trouble(path, at("/work/"), work=CLAIM) == ""


@pytest.mark.parametrize("volume", [{"hostPath": {"path": "/nfs"}}, {"nfs": {}}, {"csi": {"driver": "gcsfuse"}}])
def test_what_may_be_seen_by_all_is_left_to_the_nodes(volume: dict[str, Any]) -> None:
    assert trouble("/work/a", at("/work"), work=volume) == ""
    assert trouble("/elsewhere", at("/work"), work=volume) == "", "a webhook may mount it"
    assert trouble("/workshop", at("/work"), work={"emptyDir": {}}) == ""


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ({"emptyDir": {}}, "is of the kind emptyDir: each pod has its own"),
        ({"ephemeral": {"volumeClaimTemplate": {}}}, "is of the kind ephemeral: each pod has its own"),
        ({"configMap": {"name": "x"}}, "is of the kind configMap, to which nobody can write"),
        ({"persistentVolumeClaim": {"claimName": "x", "readOnly": True}}, "is read-only"),
    ],
)
def test_what_each_pod_has_for_itself_or_can_not_write_is_refused(volume: dict[str, Any], said: str) -> None:
    assert f"volume work of the nodes' pods, mounted at /work, {said}" in trouble("/work/a", at("/work"), work=volume)


def test_the_innermost_mount_counts() -> None:
    outer, inner = at("/work"), at("/work/scratch", "own")
    assert trouble("/work/a", outer, inner, work=CLAIM, own={"emptyDir": {}}) == ""
    assert "own" in trouble("/work/scratch/a", outer, inner, work=CLAIM, own={"emptyDir": {}})
    assert "is read-only" in trouble("/work/a", at("/work", readOnly=True), work=CLAIM)


def test_our_own_writable_places_are_each_pods_own() -> None:
    assert "mounted at /tmp, is of the kind emptyDir" in trouble("/tmp/checkpoints")


def test_such_a_place_is_named_before_a_node_is_made(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    volume = "volumes: [{name: work, emptyDir: {}}]"
    file.write_text(f"spec: {{containers: [{{name: n, volumeMounts: [{{name: work, mountPath: /claim}}]}}], {volume}}}")
    with pytest.raises(ConfigError, match=r"^--checkpoint-dir is /claim: volume work .*; launcher and nodes need one"):
        plan(config_of(pod_template=str(file)))


def test_a_model_that_would_go_with_its_pod_is_refused_likewise() -> None:
    with pytest.raises(ConfigError, match=r"^--output is /tmp/model\.pt: volume .* is of the kind emptyDir"):
        plan(config_of(output="/tmp/model.pt"))
    assert plan(config_of(output="s3://bucket/tmp/model.pt"))
