"""What lies in ``manifests/``: all of it is reached, and its Roles hold what the code says that it needs."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.access.rights import (
    BASE,
    HINTS,
    MACHINES,
    MACHINES_OF_ALL,
    QUEUES,
    WORKFLOW,
    Need,
    needs_of,
    overlay_of,
)
from elastic_launcher.engines.kubernetes.leadership.bootstrap import PORTS
from elastic_launcher.engines.kubernetes.objects.names import COORDINATOR_LABEL, JOB_LABEL
from elastic_launcher.hints.reference import Reference
from elastic_launcher.quota.cluster import rights as controller
from elastic_launcher.quota.projects_document import parse_projects
from elastic_launcher.quota.sources.kai import OVERLAY as OVERLAY_FOR_KAI
from elastic_launcher.quota.sources.kueue.source import OVERLAY as OVERLAY_FOR_KUEUE
from tests.support.launcher_pods import pod
from tests.support.manifests import KUSTOMIZATION, MANIFESTS, OVERLAYS, documents, files, generated, objects, rights

ROLES = ("Role", "ClusterRole")
BINDINGS = ("RoleBinding", "ClusterRoleBinding")
ARGO_EXECUTOR = "elastic-launcher-argo-executor"
STOCK_PIPELINE_RUNNER = {
    *itertools.product([""], ["pods", "services"], ["create", "delete", "get", "list", "patch", "watch"]),
    *itertools.product(["batch"], ["jobs"], ["create", "delete", "get", "list", "patch", "watch"]),
    *itertools.product(["argoproj.io"], ["workflows"], ["create", "get", "list", "patch", "update", "watch"]),
    *itertools.product([""], ["configmaps"], ["get", "list", "watch"]),
    ("", "secrets", "get"),
}
"""Of what Kubeflow Pipelines 2.x grants its steps, that which matters here."""
GRANTED = {
    "plain": BASE,
    "argo": (*BASE, WORKFLOW),
    "kubeflow-multiuser": (*BASE, WORKFLOW),
    "hints": (HINTS,),
    "node-notice": (MACHINES,),
    "kueue": (QUEUES,),
    "quota-controller": (*controller.CLUSTER_WIDE, *controller.OWN),
    "quota-kai": (*controller.CLUSTER_WIDE, *controller.OWN, *controller.KAI),
    "quota-kueue": (*controller.CLUSTER_WIDE, *controller.OWN, *controller.KUEUE),
}
CONTROLLER = MANIFESTS / "overlays" / controller.OVERLAY
CONTROLLER_LABEL = "elastic-launcher/quota-controller"


def needed(*needs: Need) -> set[tuple[str, str, str]]:
    """Returns needs as single rights."""
    return {(need.group, need.resource, verb) for need in needs for verb in need.verbs}


def ours(overlay: str) -> set[tuple[str, str, str]]:
    """Returns what an overlay grants to the launcher itself."""
    roles = objects(MANIFESTS / "overlays" / overlay, *ROLES)
    return rights([one for one in roles if one["metadata"]["name"] != ARGO_EXECUTOR])


@pytest.mark.parametrize(("overlay", "needs"), GRANTED.items(), ids=GRANTED)
def test_an_overlay_grants_what_the_code_needs_and_no_more(overlay: str, needs: tuple[Need, ...]) -> None:
    assert ours(overlay) == needed(*needs)


def test_the_stock_pipeline_runner_gets_what_it_lacks_and_no_more() -> None:
    assert ours("kubeflow-standalone") == needed(*BASE, WORKFLOW) - STOCK_PIPELINE_RUNNER


def test_every_overlay_that_a_message_names_is_there() -> None:
    asked = needs_of(pod("elastic-launcher", "Workflow"), hints=("quota", "gpu-hints"))
    asked.append(MACHINES_OF_ALL)
    accounts = ("elastic-launcher", "pipeline-runner", "default-editor")
    named = (
        {QUEUES.overlay, controller.OVERLAY, OVERLAY_FOR_KAI, OVERLAY_FOR_KUEUE}
        | {one.overlay for one in asked}
        | {overlay_of(pod(account)) for account in accounts}
    )
    assert named <= {path.name for path in OVERLAYS}


def test_only_reads_and_events_are_granted_for_all_of_the_cluster() -> None:
    roles = {path.name: objects(path, "ClusterRole") for path in OVERLAYS if objects(path, "ClusterRoleBinding")}
    assert {overlay: rights(granted) for overlay, granted in roles.items()} == {
        "node-notice": needed(MACHINES),
        controller.OVERLAY: needed(*controller.CLUSTER_WIDE),
        OVERLAY_FOR_KAI: needed(*controller.CLUSTER_WIDE, *controller.KAI),
        OVERLAY_FOR_KUEUE: needed(*controller.CLUSTER_WIDE, *controller.KUEUE),
    }
    granted = needed(MACHINES, *controller.CLUSTER_WIDE, *controller.KAI, *controller.KUEUE)
    assert {verb for *_, verb in granted} == {"list", "watch", "create"}
    assert controller.EVENTS.verbs == ("create",)


def test_the_controller_is_granted_its_own_objects_by_name() -> None:
    (role,) = [one for one in objects(CONTROLLER, "Role") if one["metadata"]["name"] == "elastic-launcher-quota"]
    named = {
        (rule["resources"][0], name): set(rule["verbs"])
        for rule in role["rules"]
        for name in rule.get("resourceNames", ())
    }
    projects, hints = Reference("", "gpu-projects"), Reference("", "gpu-hints")
    asked = [one for one in controller.needs_of(hints, projects, ()) if one.name]
    assert named == {(one.need.resource, one.name): set(one.need.verbs) for one in asked}
    assert {verb for rule in role["rules"] if "resourceNames" not in rule for verb in rule["verbs"]} == {"create"}


def test_the_controller_serves_the_objects_that_it_is_granted() -> None:
    (deployment,) = objects(CONTROLLER, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"][-2:] == ["--hints=configmap/gpu-hints", "configmap/gpu-projects"]
    (path,) = generated(CONTROLLER)["gpu-projects"]
    assert path.name == "projects.yaml", "the key that is read"
    assert not parse_projects(path.read_bytes()).warnings
    assert not objects(CONTROLLER, "ConfigMap"), "applying it again must not overwrite the hints"


def test_prometheus_finds_the_controller_where_it_answers() -> None:
    (deployment,) = objects(CONTROLLER, "Deployment")
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    assert f"--metrics-port={port['containerPort']}" in container["command"]
    monitoring = MANIFESTS / "overlays" / "quota-monitoring"
    (monitor,), (policy,) = objects(monitoring, "PodMonitor"), objects(monitoring, "NetworkPolicy")
    assert [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] == [port["name"]]
    assert [one["port"] for one in policy["spec"]["ingress"][0]["ports"]] == [port["name"]]
    assert CONTROLLER_LABEL in template["metadata"]["labels"]
    spaces = [documents(folder / KUSTOMIZATION)[0]["namespace"] for folder in (CONTROLLER, monitoring)]
    assert spaces == ["quota", "quota"]


def test_the_page_has_each_alert() -> None:
    (alerts,) = objects(MANIFESTS / "overlays" / "quota-monitoring", "PrometheusRule")
    names = [rule["alert"] for group in alerts["spec"]["groups"] for rule in group["rules"]]
    page = (MANIFESTS.parent / "docs" / "quota.md").read_text()
    assert re.findall(r"^\| `(Elastic\w+)` \|", page, re.MULTILINE) == names


def test_the_overlay_for_kai_replaces_the_projects_document_with_its_queues() -> None:
    (path,) = generated(MANIFESTS / "overlays" / OVERLAY_FOR_KAI)["gpu-projects"]
    capacity = parse_projects(path.read_bytes()).capacity
    assert capacity is not None and capacity.others == ("kai",)


def test_the_overlay_for_kueue_replaces_the_projects_document_with_its_queues() -> None:
    (path,) = generated(MANIFESTS / "overlays" / OVERLAY_FOR_KUEUE)["gpu-projects"]
    capacity = parse_projects(path.read_bytes()).capacity
    assert capacity is not None and capacity.others == ("kueue",)
    assert {need.overlay for need in controller.KUEUE} == {OVERLAY_FOR_KUEUE}


def test_launchers_may_read_the_hints_and_nobody_but_the_controller_may_write_them() -> None:
    for overlay in OVERLAYS:
        roles = [one for one in objects(overlay, *ROLES) if one["metadata"]["name"] != "elastic-launcher-quota"]
        writes = {(resource, verb) for _, resource, verb in rights(roles) if verb not in ("get", "list", "watch")}
        assert "configmaps" not in {resource for resource, _ in writes}, overlay.name


def test_the_hints_are_granted_by_name() -> None:
    hints = MANIFESTS / "overlays" / "hints"
    (role,), (shown,) = objects(hints, "Role"), objects(hints, "ConfigMap")
    assert [rule["resourceNames"] for rule in role["rules"]] == [[shown["metadata"]["name"]]]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_a_binding_names_a_role_and_accounts(overlay: Path) -> None:
    roles = {(one["kind"], one["metadata"]["name"]) for one in objects(overlay, *ROLES)}
    own = {one["metadata"]["name"] for one in objects(overlay, "ServiceAccount")}
    for binding in objects(overlay, *BINDINGS):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        for subject in binding["subjects"]:
            assert subject["kind"] == "ServiceAccount"
            # kustomize says where an overlay's own account is, also where another kustomization moves that
            assert ("namespace" in subject) == (subject["name"] not in own)


def test_every_file_is_reached() -> None:
    there = {path for path in MANIFESTS.rglob("*") if path.is_file() and path.name != KUSTOMIZATION}
    there -= {*(MANIFESTS / "argo" / "examples").iterdir()}  # which are created one by one
    folders = [path.parent for path in MANIFESTS.rglob(KUSTOMIZATION)]
    reached = {file for folder in folders for file in files(folder)}
    reached |= {file for folder in folders for made in generated(folder).values() for file in made}
    assert reached == there


def test_every_object_says_what_it_is() -> None:
    for path in MANIFESTS.rglob(KUSTOMIZATION):
        for one in [*documents(path), *objects(path.parent)]:
            assert one["apiVersion"] and one["kind"], path
            assert one["kind"] == "Kustomization" or one["metadata"]["name"], path


def test_policies_and_budgets_select_by_our_labels() -> None:
    selectors = {
        expression["key"]
        for path in MANIFESTS.rglob(KUSTOMIZATION)
        for one in objects(path.parent, "NetworkPolicy", "PodDisruptionBudget", "PodMonitor")
        for expression in (one["spec"].get("podSelector") or one["spec"]["selector"])["matchExpressions"]
    }
    assert selectors == {JOB_LABEL, COORDINATOR_LABEL, CONTROLLER_LABEL}


def test_nodes_come_to_a_coordinator_where_it_listens() -> None:
    (policy,) = [
        one
        for one in objects(MANIFESTS / "network-policy", "NetworkPolicy")
        if one["metadata"]["name"] == "elastic-launcher-coordinators"
    ]
    assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == list(PORTS.values())


def test_the_document_has_each_right_with_what_it_is_for() -> None:
    text = (MANIFESTS.parent / "docs" / "kubernetes.md").read_text()
    launchers = (*BASE, WORKFLOW, HINTS, MACHINES, QUEUES)
    for need in (*launchers, *controller.CLUSTER_WIDE, *controller.OWN, *controller.KAI, *controller.KUEUE):
        verbs = ", ".join(f"`{verb}`" for verb in need.verbs)
        without = need.without or "the job can't run"
        assert f"| `{need.resource}` | {verbs} | {need.purpose} | {without} |\n" in text


def test_the_document_has_each_overlay() -> None:
    text = (MANIFESTS.parent / "docs" / "kubernetes.md").read_text()
    for overlay in OVERLAYS:
        assert f"| `overlays/{overlay.name}` |" in text
