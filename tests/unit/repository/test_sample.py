"""The sample that trains the digits without any pipeline: what it refers to is there, and its pods are restricted."""

from __future__ import annotations

import re
from typing import Any

import yaml

from elastic_launcher.config import JobConfig
from elastic_launcher.engines.kubernetes.objects.job import node_job
from elastic_launcher.engines.kubernetes.objects.template import read_template
from tests.support.manifests import MANIFESTS, documents, generated, objects
from tests.support.places import ROOT
from tests.support.pod_templates import SPEC, plan

SAMPLE = MANIFESTS / "samples" / "digits"
SCRIPT = "digits-script"
"""The ConfigMap with the script, which docs/kubernetes.md has the reader make."""


def launcher() -> dict[str, Any]:
    """Returns what the pod of the sample's launcher is made of."""
    (job,) = objects(SAMPLE, "Job")
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


def node() -> dict[str, Any]:
    """Returns what the pods of its nodes are made of."""
    template = read_template((SAMPLE / "node.yaml").read_text())
    spec: dict[str, Any] = node_job(plan(template), SPEC)["spec"]["template"]["spec"]
    return spec


def volumes(spec: dict[str, Any], kind: str, name: str) -> set[str]:
    """Returns the names of what a pod's volumes of a kind come from."""
    return {one[kind][name] for one in spec["volumes"] if kind in one}


def test_its_volumes_come_from_what_is_made_with_it() -> None:
    (claim,) = objects(SAMPLE, "PersistentVolumeClaim")
    assert volumes(launcher(), "configMap", "name") == {*generated(SAMPLE), SCRIPT}
    for spec in (launcher(), node()):
        assert volumes(spec, "persistentVolumeClaim", "claimName") == {claim["metadata"]["name"]}


def test_nodes_see_the_claim_where_the_launcher_does() -> None:
    places = [
        [one["mountPath"] for one in spec["containers"][0]["volumeMounts"] if one["name"] == "work"]
        for spec in (launcher(), node())
    ]
    assert places == [["/work"], ["/work"]]


def test_it_runs_as_an_account_of_the_plain_overlay() -> None:
    (account,) = objects(MANIFESTS / "overlays" / "plain", "ServiceAccount")
    assert launcher()["serviceAccountName"] == account["metadata"]["name"]


def test_it_follows_the_hints_of_the_overlay_under_a_name_that_they_know() -> None:
    hints = MANIFESTS / "overlays" / "hints"
    (shown,) = objects(hints, "ConfigMap")
    space = documents(hints / "kustomization.yaml")[0]["namespace"]
    command = launcher()["containers"][0]["command"]
    assert f"--hints=configmap/{space}/{shown['metadata']['name']}" in command
    assert "--name=digits" in command and '{"job": "digits"}' in shown["data"]["hints.json"]


def test_the_launchers_own_pod_is_restricted() -> None:
    spec = launcher()
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["initContainers"] + spec["containers"]:
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"] and context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_an_eviction_of_its_launcher_is_not_counted_and_a_failed_script_is_not_tried_again() -> None:
    (job,) = objects(SAMPLE, "Job")
    ignored, failed = job["spec"]["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore" and ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert failed["action"] == "FailJob" and failed["onExitCodes"]["values"] == [1, 2]


def test_its_command_line_is_one_that_can_be_run() -> None:
    command = launcher()["containers"][0]["command"]
    given = dict(flag.removeprefix("--").replace("-", "_").split("=", 1) for flag in command[2 : command.index("--")])
    config = JobConfig.from_texts(given, command[command.index("--") + 1 :])
    assert (config.engine, config.min_nodes, config.max_nodes) == ("kubernetes", 1, 3)
    assert config.orphan_timeout >= 300, "a launcher that is moved may have its image pulled first"


def test_its_launcher_is_named_among_containers_that_webhooks_put_there() -> None:
    (job,) = objects(SAMPLE, "Job")
    named = job["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
    assert named == launcher()["containers"][0]["name"]


def test_the_walk_of_the_quota_page_gives_it_a_number_of_nodes_and_a_name() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "quota.md").read_text(), re.DOTALL)
    (overlay,) = [one for one in map(yaml.safe_load, blocks) if one.get("namespace") == "alice"]
    command = launcher()["containers"][0]["command"]
    (patched,) = overlay["patches"]
    changed = {}
    for one in yaml.safe_load(patched["patch"]):
        before, _, number = one["path"].rpartition("/")
        assert before == "/spec/template/spec/containers/0/command"
        changed[command[int(number)]] = one["value"]
    assert changed == {"--nodes=1:3": "--nodes=2:4", "--name=digits": "--name=bert"}
