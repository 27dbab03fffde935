"""What an author sets on a task is in the nodes' pod, whole, and the pod template holds where both say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.objects.template import check_template
from elastic_launcher.kfp_steps.task_config import gpus_of, mounts_of, nodes_template
from elastic_launcher.options import ConfigError
from tests.support.kfp_bodies import task

# as a real backend handed it over
SEEN: dict[str, Any] = {
    "tolerations": [{"effect": "NoSchedule", "key": "gpu", "operator": "Exists"}],
    "node_selector": {"kubernetes.io/os": "linux"},
    "env": [
        {"name": "MYENV", "value": "v1"},
        {"name": "FROMCM", "valueFrom": {"configMapKeyRef": {"key": "k", "name": "lab-cm", "optional": False}}},
    ],
    "volumes": [{"name": "lab-pvc", "persistentVolumeClaim": {"claimName": "lab-pvc"}}],
    "volume_mounts": [{"mountPath": "/data", "name": "lab-pvc"}],
    "resources": {
        "limits": {"cpu": "500m", "memory": "400Mi", "nvidia.com/gpu": "2"},
        "requests": {"cpu": "50m", "memory": "64Mi"},
    },
}
TEMPLATE = """
metadata: {labels: {kueue.x-k8s.io/queue-name: team-a}}
spec:
  priorityClassName: low
  nodeSelector: {zone: a, kubernetes.io/os: other}
  containers:
  - name: main
    image: ml/train:1
    env: [{name: MYENV, value: of the template}]
    resources: {limits: {memory: 8Gi}}
  volumes: [{name: scratch, emptyDir: {}}]
"""


def test_all_that_the_task_says_is_in_the_nodes_pod() -> None:
    template = check_template(nodes_template(task(**SEEN), "", run="run-1"))
    spec = template["spec"]
    (container,) = spec["containers"]
    assert (spec["tolerations"], spec["nodeSelector"], spec["volumes"]) == tuple(
        SEEN[key] for key in ("tolerations", "node_selector", "volumes")
    )
    assert (container["env"], container["volumeMounts"], container["resources"]) == tuple(
        SEEN[key] for key in ("env", "volume_mounts", "resources")
    )
    assert template["metadata"]["labels"] == {"pipeline/runid": "run-1"}


def test_a_template_from_another_run_has_the_label_of_this_one() -> None:
    exported = "{metadata: {labels: {pipeline/runid: old, team: nlp}}, spec: {priorityClassName: low}}"
    labels = nodes_template(task(), exported, run="run-1")["metadata"]["labels"]
    assert labels == {"pipeline/runid": "run-1", "team": "nlp"}


def test_sections_for_kinds_of_nodes_reach_the_nodes() -> None:
    lent = {"priorityClassName": "spot", "tolerations": [{"key": "spot", "operator": "Exists"}]}
    template = nodes_template(task(**SEEN), f"{TEMPLATE}overQuota: {json.dumps(lent)}")
    assert check_template(template)["overQuota"] == lent


def test_an_empty_task_says_nothing() -> None:
    assert nodes_template(task(), "") == {"metadata": {}, "spec": {"containers": [{"name": "node"}]}}
    assert nodes_template(task(env=[], resources={}), "") == nodes_template(task(), "")


@pytest.mark.parametrize("as_file", [True, False])
def test_the_template_holds_where_both_say_the_same(as_file: bool, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(TEMPLATE)
    spec = nodes_template(task(**SEEN), str(tmp_path / "pod.yaml") if as_file else TEMPLATE)["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "ml/train:1"
    assert [one.get("value") for one in container["env"]] == ["of the template", None]
    assert container["resources"]["limits"] == {"memory": "8Gi", "cpu": "500m", "nvidia.com/gpu": "2"}
    assert spec["nodeSelector"] == {"zone": "a", "kubernetes.io/os": "other"}
    assert [one["name"] for one in spec["volumes"]] == ["scratch", "lab-pvc"]
    assert spec["priorityClassName"] == "low"


@pytest.mark.parametrize("containers", ["", "containers:", "containers: []"])
def test_a_template_without_containers_has_what_the_task_says(containers: str) -> None:
    spec = nodes_template(task(**SEEN), f"spec:\n  priorityClassName: low\n  {containers}\n")["spec"]
    assert [one["resources"] for one in spec["containers"]] == [SEEN["resources"]]


def test_tolerations_of_both_are_kept() -> None:
    template = json.dumps({"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}})
    assert [one["key"] for one in nodes_template(task(**SEEN), template)["spec"]["tolerations"]] == ["spot", "gpu"]


def test_a_template_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="pod_template nowhere.yaml can't be read"):
        nodes_template(task(), "nowhere.yaml")
    with pytest.raises(ConfigError, match="pod_template: spec of the pod template is missing"):
        nodes_template(task(), "{metadata: {}}")


@pytest.mark.parametrize(
    ("limits", "given", "found"),
    [
        ({"nvidia.com/gpu": "2", "memory": "8Gi"}, "nvidia.com/gpu", ("nvidia.com/gpu", 2)),
        ({"amd.com/gpu": "4"}, "nvidia.com/gpu", ("amd.com/gpu", 4)),
        ({"cpu": "1"}, "nvidia.com/gpu", ("nvidia.com/gpu", None)),
        ({}, "none", ("none", None)),
    ],
)
def test_gpus_are_what_the_task_asks_for(limits: dict[str, str], given: str, found: tuple[str, int | None]) -> None:
    assert gpus_of({"limits": limits}, given) == found
    assert gpus_of(None, given) == (given, None)


@pytest.mark.parametrize(
    ("limits", "given", "told"),
    [
        ({"amd.com/gpu": "4"}, "intel.com/gpu", "gpu_resource is 'intel.com/gpu', and the task asks for amd.com/gpu"),
        ({"amd.com/gpu": "4"}, "none", "gpu_resource is 'none'"),
        ({"a/x": "1", "b/y": "1"}, "nvidia.com/gpu", "a/x, b/y: give the name of one of them"),
        ({"nvidia.com/gpu": ""}, "nvidia.com/gpu", "asks for '' nvidia.com/gpu"),
    ],
)
def test_gpus_that_can_not_be_are_refused(limits: dict[str, str], given: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        gpus_of({"limits": limits}, given)


def test_mounts_are_those_that_the_step_and_others_see() -> None:
    own = {"volumes": [{"name": "own", "emptyDir": {}}], "volume_mounts": [{"name": "own", "mountPath": "/tmp/x"}]}
    assert mounts_of(task(**SEEN), nodes_template(task(**SEEN), "")) == ["/data"]
    assert mounts_of(task(**own), nodes_template(task(**own), "")) == []


@pytest.mark.parametrize(
    "theirs",
    [
        {"volumes": SEEN["volumes"], "mounts": SEEN["volume_mounts"], "task": {}},
        {"volumes": [{"name": "lab-pvc", "nfs": {}}], "mounts": [], "task": SEEN},
        {"volumes": [{"name": "x", "nfs": {}}], "mounts": [{"name": "x", "mountPath": "/data"}], "task": SEEN},
    ],
)
def test_what_the_template_alone_mounts_is_not_the_steps(theirs: dict[str, Any]) -> None:
    container = {"name": "node", "volumeMounts": theirs["mounts"]}
    template = json.dumps({"spec": {"volumes": theirs["volumes"], "containers": [container]}})
    said = task(**theirs["task"])
    assert mounts_of(said, nodes_template(said, template)) == []
