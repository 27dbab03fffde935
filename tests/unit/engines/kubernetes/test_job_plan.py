"""What nodes of a cluster are made from, by options, template and the launcher's own pod."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.access.job_key import key_in, key_of, new_secret
from elastic_launcher.engines.kubernetes.job_plan import given_template, make_plan, with_queue
from elastic_launcher.engines.kubernetes.objects.job import JobPlan, node_job
from elastic_launcher.launcher.script_bundle import MOST_BYTES, Code, code_of
from elastic_launcher.options import ConfigError
from tests.support.job_plans import CONTEXT, POD, config_of

KEY = "ab" * 32


def plan(config: JobConfig, in_secret: bool = True) -> JobPlan:
    return make_plan(
        config, given_template(config), CONTEXT, "10.96.0.7", None if in_secret else KEY, environment={"HOME": "/root"}
    )


def container(config: JobConfig, in_secret: bool = True) -> dict[str, Any]:
    job = node_job(plan(config, in_secret), NodeSpec(3, 5, config.nproc_per_node))
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found


def variables(found: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in found["env"] if "value" in one}


def test_a_node_runs_the_agent_in_the_launchers_image_and_finds_the_service() -> None:
    found = container(config_of(nproc_per_node=2, data="/claim/data", orphan_timeout=45))
    assert found["image"] == "registry/step:1"
    assert found["command"] == [sys.executable, "-P", "-m", "elastic_launcher.agent"]
    assert found["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    told = variables(found)
    assert told["ELASTIC_CONTROL"] == "http://10.96.0.7:18500"
    assert (told["ELASTIC_NODE"], told["ELASTIC_FIRST_MEMBER"], told["ELASTIC_ORPHAN_TIMEOUT"]) == ("3", "5", "45")
    assert (told["ELASTIC_DATA"], told["ELASTIC_CHECKPOINT_DIR"]) == ("/claim/data", "/claim")
    assert "ELASTIC_WORK_DIR" not in told


def test_nodes_run_the_launchers_image_and_not_that_of_what_a_webhook_put_before_it() -> None:
    proxied = {
        "metadata": POD["metadata"] | {"annotations": {"kubectl.kubernetes.io/default-container": "main"}},
        "spec": {"containers": [{"name": "proxy", "image": "registry/proxy:1"}, *POD["spec"]["containers"]]},
    }
    assert replace(CONTEXT, pod=proxied).image == "registry/step:1"
    assert replace(CONTEXT, pod=proxied | {"metadata": POD["metadata"]}).image == "registry/proxy:1"


def security(config: JobConfig) -> tuple[Any, Any]:
    """Returns the security contexts of a node's pod and of its container."""
    spec = node_job(plan(config), NodeSpec(1, 1, 1))["spec"]["template"]["spec"]
    return spec.get("securityContext"), spec["containers"][0]["securityContext"]


def test_nodes_are_of_the_launchers_user_and_of_another_one_where_that_is_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 100)
    monkeypatch.setattr(os, "getgroups", lambda: [20, 100])
    of_pod, of_container = security(config_of())
    assert (of_pod, of_container["runAsUser"], of_container["runAsNonRoot"]) == (None, 1000, True)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    of_pod, of_container = security(config_of())
    shared = {"fsGroup": 100, "supplementalGroups": [20, 100]}
    assert (of_pod, of_container["runAsUser"], of_container["runAsNonRoot"]) == (shared, 65532, True)
    assert "runAsUser" not in security(config_of(node_image="registry/train:2"))[1]
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {securityContext: {runAsNonRoot: false, fsGroup: 7}, containers: [{name: main}]}")
    of_pod, of_container = security(config_of(pod_template=str(template)))
    assert of_pod == {"runAsNonRoot": False, "fsGroup": 7, "supplementalGroups": [20, 100]}
    assert "runAsUser" not in of_container


def test_nodes_of_another_user_are_of_the_launchers_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 100)
    monkeypatch.setattr(os, "getgroups", lambda: [20, 100])
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {securityContext: {supplementalGroups: [5, 20], runAsUser: 7}}")
    of_pod, of_container = security(config_of(pod_template=str(template)))
    assert of_pod == {"runAsUser": 7, "supplementalGroups": [5, 20, 100]} and "runAsUser" not in of_container
    monkeypatch.setattr(os, "getuid", lambda: 0)
    given = POD | {"spec": POD["spec"] | {"securityContext": {"fsGroup": 300}}}
    made = make_plan(config_of(), given_template(config_of()), replace(CONTEXT, pod=given))
    assert made.shape.fs_group == 300, "what a step's own volumes are given to"


def test_nodes_are_pulled_with_the_launchers_secrets_unless_the_template_names_some(tmp_path: Path) -> None:
    secrets = [{"name": "registry"}]
    context = replace(CONTEXT, pod=POD | {"spec": POD["spec"] | {"imagePullSecrets": secrets}})

    def pulled_with(config: JobConfig) -> Any:
        made = make_plan(config, given_template(config), context)
        return node_job(made, NodeSpec(1, 1, 1))["spec"]["template"]["spec"].get("imagePullSecrets")

    assert pulled_with(config_of()) == secrets
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {imagePullSecrets: [{name: mine}]}")
    assert pulled_with(config_of(pod_template=str(template))) == [{"name": "mine"}]
    assert "imagePullSecrets" not in node_job(plan(config_of()), NodeSpec(1, 1, 1))["spec"]["template"]["spec"]


def test_another_image_is_run_by_the_python_that_it_has(tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {containers: [{name: main, image: 'registry/train:2'}]}")
    found = container(config_of(pod_template=str(template), gpu_resource="none"))
    assert (found["image"], found["command"][0]) == ("registry/train:2", "python3")
    assert "resources" not in found


def test_the_key_is_in_the_environment_only_where_there_is_no_secret() -> None:
    assert "ELASTIC_KEY" not in variables(container(config_of()))
    job = node_job(plan(config_of(), in_secret=False), NodeSpec(1, 1, 1))
    assert key_in(job) == KEY
    assert key_in(node_job(plan(config_of()), NodeSpec(1, 1, 1))) == ""
    assert key_of(new_secret(CONTEXT.names, CONTEXT.owner, KEY)) == KEY


def test_a_template_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--pod-template /none/pod\.yaml can't be read"):
        container(config_of(pod_template="/none/pod.yaml"))


@pytest.mark.parametrize(
    "text",
    ["spec:\n  containers: [{name: x}]\n", '{"spec": {"containers": [{"name": "x"}]}}'],
)
def test_a_front_gives_the_template_itself(text: str) -> None:
    assert given_template(config_of(pod_template=text))["spec"] == {"containers": [{"name": "x"}]}


def test_a_template_that_a_front_gave_wrong_is_told_without_repeating_it() -> None:
    text = '{"spec": {"containers": {"name": "x"}}}'
    with pytest.raises(ConfigError, match=r"^--pod-template: spec\.containers of the pod template is"):
        given_template(config_of(pod_template=text))


def test_a_template_that_is_none_is_named_with_its_file(tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {containers: {name: x}}")
    with pytest.raises(ConfigError, match=rf"--pod-template {template}: spec\.containers of the pod template is"):
        given_template(config_of(pod_template=str(template)))


def test_a_resource_that_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="--gpu-resource is 'gpu'; it must be DOMAIN/NAME"):
        plan(config_of(gpu_resource="gpu"))


def test_nodes_are_handed_the_script_and_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import b")
    (tmp_path / "b.py").write_text("B = 1")
    (tmp_path / "data.csv").write_text("1,2")
    (tmp_path / "model.yaml").write_text("width: 8")
    (tmp_path / "vocabulary.json").write_text("1" * MOST_BYTES)
    (tmp_path / "notes.txt").write_bytes(b"\xff")
    code = code_of(JobConfig(script="train.py"), tmp_path)
    assert list(code.files.items()) == [("train.py", "import b"), ("b.py", "B = 1"), ("model.yaml", "width: 8")]
    assert code.left_out == ["notes.txt", "vocabulary.json"]
    assert code_of(JobConfig(module="train"), tmp_path) == Code()
    (tmp_path / "b.py").write_text("#" * MOST_BYTES)
    with pytest.raises(ConfigError, match=r"1 \.py files beside it have 1048584 bytes.*give -m MODULE"):
        code_of(JobConfig(script="train.py"), tmp_path)
    with pytest.raises(ConfigError, match="is a folder"):
        code_of(JobConfig(script="."), tmp_path)


@pytest.mark.parametrize(
    ("labels", "match", "queue"),
    [
        ({"kueue.x-k8s.io/queue-name": "gpus"}, {}, "gpus"),
        ({"kai.scheduler/queue": "team-a"}, {}, "team-a"),
        ({"kueue.x-k8s.io/queue-name": "gpus"}, {"queue": "mine"}, "mine"),
        ({}, {}, None),
    ],
)
def test_a_job_is_matched_by_the_queue_of_its_nodes_unless_it_says_another(
    labels: dict[str, str], match: dict[str, str], queue: str | None
) -> None:
    template = json.dumps({"metadata": {"labels": labels}, "spec": {}})
    found = with_queue(config_of(pod_template=template, match={"pipeline": "bert", **match}))
    assert found.match.get("queue") == queue and found.match["pipeline"] == "bert"
