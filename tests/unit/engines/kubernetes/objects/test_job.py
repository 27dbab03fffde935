"""A node's Job: the user's template whole, and what a node needs besides."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.objects.job import node_job, node_of, spec_of
from elastic_launcher.engines.kubernetes.objects.names import Names, owner_of
from elastic_launcher.engines.kubernetes.objects.template import live_container
from elastic_launcher.options import ConfigError
from tests.support.expansion import expanded
from tests.support.pod_templates import ALL_OF_A_POD, SHAPE, SPEC, TEMPLATES, contains, plan, template

OURS = ("/tmp", "/home/elastic", "/dev/shm", "/var/run/secrets/elastic-launcher")


def pod(given: dict[str, Any], shape: Any = SHAPE) -> dict[str, Any]:
    found: dict[str, Any] = node_job(plan(given, shape), SPEC)["spec"]["template"]
    return found


def container(given: dict[str, Any], shape: Any = SHAPE) -> dict[str, Any]:
    found: dict[str, Any] = pod(given, shape)["spec"]["containers"][0]
    return found


def mounts(containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(containers[0].get("volumeMounts", []))


@example(ALL_OF_A_POD)
@given(TEMPLATES)
def test_nothing_that_the_user_set_is_taken_away(given: dict[str, Any]) -> None:
    before = copy.deepcopy(given)
    result = pod(given)
    assert given == before
    assert contains(result, before)


@given(TEMPLATES)
def test_what_the_cluster_refuses_together_stands_together_only_where_the_user_wrote_it(given: dict[str, Any]) -> None:
    users = (given["spec"].get("containers") or [{}])[0].get("securityContext", {})
    spec = pod(given)["spec"]
    context = spec["containers"][0]["securityContext"]
    if users.get("privileged") or "SYS_ADMIN" in users.get("capabilities", {}).get("add", ()):
        assert context.get("allowPrivilegeEscalation") == users.get("allowPrivilegeEscalation")
    if (spec.get("securityContext", {}) | context).get("runAsUser") == 0:
        assert context.get("runAsNonRoot") == users.get("runAsNonRoot")


@given(TEMPLATES)
def test_ours_is_mounted_only_where_nothing_of_the_users_is(given: dict[str, Any]) -> None:
    users = [one["mountPath"].rstrip("/") for one in mounts(given["spec"].get("containers") or [{}])]
    all_ = [one["mountPath"].rstrip("/") for one in mounts(pod(given)["spec"]["containers"])]
    assert sorted(all_) == sorted(users + [path for path in OURS if path not in users])


@given(TEMPLATES)
def test_a_silent_machine_is_avoided_beside_what_the_user_prefers(given: dict[str, Any]) -> None:
    rooms = [{"weight": 1, "preference": {"matchExpressions": [{"key": "room", "operator": "Exists"}]}}]
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    given = copy.deepcopy(given)
    given["spec"].setdefault("affinity", {})["nodeAffinity"] = {preferred: rooms}
    spec = node_job(plan(given), SPEC, ["node-1", "node-2"])["spec"]["template"]["spec"]
    assert contains(spec, given["spec"])
    *users, ours = spec["affinity"]["nodeAffinity"][preferred]
    assert users == rooms
    fields = ours["preference"]["matchFields"]
    assert [(one["key"], one["operator"], one["values"]) for one in fields] == [
        ("metadata.name", "NotIn", ["node-1"]),
        ("metadata.name", "NotIn", ["node-2"]),
    ]


@given(TEMPLATES)
def test_what_a_job_was_made_for_can_be_read_back(given: dict[str, Any]) -> None:
    for spec in (SPEC, NodeSpec(70, 140, 8, respawn=True)):
        assert spec_of(node_job(plan(given), spec)) == spec


OWNED = {
    "priorityClassName": "owned",
    "nodeSelector": {"machine": "on-demand"},
    "labels": {"kueue.x-k8s.io/priority-class": "owned"},
}
SPOT = {"nodeSelector": {"machine": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}
KINDS = template(
    nodeSelector={"zone": "a", "machine": "any"}, tolerations=[{"key": "gpu"}], priorityClassName="training"
) | {"metadata": {"labels": {"team": "vision"}}, "guaranteed": OWNED, "overQuota": SPOT}


def test_a_node_within_the_guarantee_differs_from_one_above_it_by_its_section() -> None:
    within, above = (node_job(plan(KINDS), replace(SPEC, over_quota=over_quota)) for over_quota in (False, True))
    first, second = (one["spec"]["template"]["spec"] for one in (within, above))
    chosen = ("priorityClassName", "nodeSelector", "tolerations")
    assert {key: first.pop(key) for key in chosen} == {
        "priorityClassName": "owned",
        "nodeSelector": {"zone": "a", "machine": "on-demand"},
        "tolerations": [{"key": "gpu"}],
    }
    assert {key: second.pop(key) for key in chosen} == {
        "priorityClassName": "training",
        "nodeSelector": {"zone": "a", "machine": "spot"},
        "tolerations": [{"key": "gpu"}, {"key": "spot", "operator": "Exists"}],
    }
    assert first == second
    ours = {"elastic-launcher/job": "digits-x", "elastic-launcher/node": "3"}
    common = {"team": "vision"} | ours
    queued = {"kueue.x-k8s.io/priority-class": "owned"}
    for job, labels in (
        (within, common | queued | {"elastic-launcher/quota": "guaranteed"}),
        (above, common | {"elastic-launcher/quota": "overQuota"}),
    ):
        assert job["metadata"]["labels"] == labels
        assert contains(job["spec"]["template"]["metadata"]["labels"], labels)


@given(TEMPLATES)
def test_both_kinds_are_the_same_where_the_template_has_no_section(given: dict[str, Any]) -> None:
    assert node_job(plan(given), SPEC) == node_job(plan(given), replace(SPEC, over_quota=True))


def test_the_kind_of_a_node_can_be_read_back_from_its_job_and_its_pod() -> None:
    for spec in (SPEC, replace(SPEC, over_quota=True)):
        job = node_job(plan(KINDS), spec)
        assert spec_of(job) == spec_of(job["spec"]["template"]) == spec


@pytest.mark.parametrize("kind", ["Job", "Workflow", "ReplicaSet", "Pod"])
def test_a_node_is_owned_and_never_controlled(kind: str) -> None:
    """Kueue counts what a Job controls as a part of that Job, and no longer by itself."""
    reference = {
        "apiVersion": "v1",
        "kind": kind,
        "name": "o",
        "uid": "u",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    launcher = {"metadata": {"name": "p", "uid": "p", "ownerReferences": [] if kind == "Pod" else [reference]}}
    owners = node_job(replace(plan(template(), SHAPE), owner=owner_of(launcher)), SPEC)["metadata"]["ownerReferences"]
    assert [one["kind"] for one in owners] == [kind]
    assert all("controller" not in one and "blockOwnerDeletion" not in one for one in owners)


def test_a_job_has_one_pod_that_is_never_made_again() -> None:
    job = node_job(plan(template()), SPEC)
    assert job["metadata"]["name"] == "digits-x-3"
    assert job["metadata"]["ownerReferences"] == [
        {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "train-abc", "uid": "uid-1"}
    ]
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (0, 1, 1)
    assert spec["ttlSecondsAfterFinished"] == 300 and "activeDeadlineSeconds" not in spec
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_a_queue_finds_its_label_on_the_job_and_we_find_ours_on_both() -> None:
    given = template() | {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team-a"}}}
    job = node_job(plan(given), SPEC)
    ours = {"elastic-launcher/job": "digits-x", "elastic-launcher/node": "3"}
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"} | ours
    assert contains(job["spec"]["template"]["metadata"]["labels"], job["metadata"]["labels"])


def test_a_plain_node_is_restricted() -> None:
    found = container(template(), replace(SHAPE, run_as_user=65532))
    assert found["securityContext"] == {
        "runAsUser": 65532,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert found["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_what_is_null_in_a_template_is_as_if_it_were_left_out() -> None:
    shape = replace(SHAPE, run_as_user=65532, fs_group=65532)
    nothing = dict.fromkeys(("runAsUser", "runAsNonRoot", "seccompProfile"))
    security = nothing | dict.fromkeys(("readOnlyRootFilesystem", "allowPrivilegeEscalation"))
    empty = template(
        {"terminationMessagePolicy": None, "securityContext": {**security, "capabilities": {"drop": None}}},
        securityContext=nothing | {"fsGroup": None},
        **dict.fromkeys(("terminationGracePeriodSeconds", "enableServiceLinks", "automountServiceAccountToken")),
    )
    assert pod(empty, shape) == pod(template(), shape)


def test_capabilities_that_the_user_keeps_are_kept() -> None:
    for wanted in ({"drop": []}, {"drop": ["NET_RAW"]}, {"add": ["CHOWN"], "drop": []}):
        found = container(template({"securityContext": {"capabilities": wanted}}))
        assert found["securityContext"]["capabilities"] == wanted


def test_a_token_is_there_only_where_a_service_account_is_named() -> None:
    assert pod(template())["spec"]["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in pod(template(serviceAccountName="trainer"))["spec"]


def test_no_sidecar_is_injected_unless_the_user_wants_it() -> None:
    for key in ("labels", "annotations"):
        assert pod(template())["metadata"][key]["sidecar.istio.io/inject"] == "false"
        asked = template() | {"metadata": {key: {"sidecar.istio.io/inject": "true"}}}
        assert pod(asked)["metadata"][key]["sidecar.istio.io/inject"] == "true"


def variables(given: dict[str, Any], shape: Any = SHAPE) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in container(given, shape)["env"]}


def test_a_node_is_told_its_number_its_members_and_where_the_coordinator_is() -> None:
    found = variables(template())
    assert (found["ELASTIC_NODE"], found["ELASTIC_FIRST_MEMBER"]) == ("3", "5")
    assert (found["ELASTIC_CONTROL"], found["ELASTIC_RESIZE"]) == ("http://10.96.0.7:8080", "in-process")
    assert (found["HOME"], found["TMPDIR"]) == ("/home/elastic", "/tmp")


def test_variables_of_ours_reach_the_node_whatever_is_in_them() -> None:
    shape = replace(SHAPE, environment={**SHAPE.environment, "ELASTIC_DATA": "/a$$b/$(HOME)"})
    assert expanded(variables(template(), shape)["ELASTIC_DATA"], {"HOME": "/home/elastic"}) == "/a$$b/$(HOME)"


def test_the_key_is_a_file_or_a_variable_and_never_both() -> None:
    found = variables(template())
    assert found["ELASTIC_KEY_FILE"] == "/var/run/secrets/elastic-launcher/key"
    assert "ELASTIC_KEY" not in found
    shape = replace(SHAPE, key="00ff")
    found = variables(template(), shape)
    assert found["ELASTIC_KEY"] == "00ff"
    assert "ELASTIC_KEY_FILE" not in found
    assert "secret" not in str(pod(template(), shape)["spec"]["volumes"])


def test_gpus_are_limits_of_the_resource_that_the_cluster_has() -> None:
    given = template({"resources": {"limits": {"memory": "8Gi"}}})
    assert container(given)["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "2"}
    slices = replace(SHAPE, gpus=1, resource="nvidia.com/mig-1g.5gb")
    assert container(template(), slices)["resources"] == {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    assert "resources" not in container(template(), replace(SHAPE, gpus=0))


def test_a_wrapper_of_the_user_starts_the_agent() -> None:
    assert container(template())["command"] == list(SHAPE.command)
    found = container(template({"command": ["sh", "-c"], "args": ['. /env && exec "$@"', "--"]}))
    assert found["command"] == ["sh", "-c"]
    assert found["args"] == ['. /env && exec "$@"', "--", *SHAPE.command]


def test_the_node_is_the_default_container() -> None:
    given = {
        "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "train"}},
        "spec": {"containers": [{"name": "proxy", "image": "p"}, {"name": "train"}]},
    }
    proxy, train = pod(given)["spec"]["containers"]
    assert proxy == {"name": "proxy", "image": "p"}
    assert (train["image"], train["command"]) == (SHAPE.image, list(SHAPE.command))


def test_a_node_stays_the_node_where_a_webhook_puts_its_container_first() -> None:
    made = pod(template())
    made["spec"]["containers"].insert(0, {"name": "proxy", "image": "p"})
    assert live_container(made)["name"] == "node"
    assert made["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (template({"env": [{"name": "ELASTIC_NODE", "value": "7"}]}), "sets ELASTIC_NODE"),
        (
            template() | {"metadata": {"labels": {"elastic-launcher/job": "other"}}},
            "metadata.labels .* elastic-launcher/job",
        ),
        (
            template({"resources": {"requests": {"nvidia.com/gpu": 4}}}),
            "has 4 nvidia.com/gpu in requests, .* to have 2",
        ),
        (template(volumes=[{"name": "elastic-launcher-shm", "emptyDir": {}}]), "volume elastic-launcher-shm"),
        (template({"args": ["--lr", "1"]}), "args and no command"),
    ],
)
def test_what_is_ours_is_refused_with_its_place(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        node_job(plan(given), SPEC)


def test_without_any_image_the_container_is_named_that_needs_one() -> None:
    with pytest.raises(ConfigError, match="name one in container 'node'"):
        node_job(plan(template(), replace(SHAPE, image="")), SPEC)


def test_a_pod_tells_what_it_was_made_for_as_its_job_does() -> None:
    assert spec_of(node_job(plan(template()), SPEC)["spec"]["template"]) == SPEC


@pytest.mark.parametrize(
    ("name", "node", "controller", "number"),
    [
        ("digits-x-3", "3", "", 3),
        ("digits-x-3-abcde", "3", "digits-x-3", 3),
        ("digits-x-3-copy", "3", "", None),
        ("digits-x-3", "4", "", None),
        ("digits-x-3", "three", "", None),
        ("shell", None, "", None),
        ("shell-abcde", "3", "shell", None),
    ],
)
def test_what_only_bears_our_labels_is_no_node(
    name: str, node: str | None, controller: str, number: int | None
) -> None:
    owners = [{"kind": "Job", "name": controller, "controller": True}] if controller else []
    labels = {} if node is None else {"elastic-launcher/node": node}
    found = {"metadata": {"name": name, "labels": labels, "ownerReferences": owners}}
    assert node_of(Names("digits-x"), found) == number
