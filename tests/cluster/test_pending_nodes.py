"""A job trains with the room that there is, says what it waits for, and takes what becomes free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machine.places import GPU
from tests.cluster.machine.processes import ClusterError
from tests.support.cluster import pods
from tests.support.cluster.ends import end_training
from tests.support.cluster.resource_quotas import limit
from tests.support.cluster.stage import HINTS, LONG, Stage, staged
from tests.support.cluster.taken_gpus import LATER, fill
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(1200),  # each node that joins takes half a minute on a busy machine
]

FOLLOW = f"--hints=configmap/{HINTS}"
MEMORY = "4Gi"
REFUSAL = "no Jobs are wanted here"
MIN_WAIT = 30.0  # seconds: long enough for nodes to start, short enough for a test
PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "room") as stage:
        yield stage


@pytest.fixture
def crowd(stage: Stage) -> Iterator[str]:
    """Gives a namespace for what takes room."""
    with pods.namespace(stage.kubectl, "crowd") as name:
        yield name


def bound(stage: Stage, gpus: int) -> None:
    """Has a LimitRange allow a container so many GPUs, and give it memory where it names none."""
    limits = {"type": "Container", "max": {GPU: str(gpus)}, "default": {"memory": MEMORY}}
    spec = {"limits": [{**limits, "defaultRequest": {"memory": "1Mi"}}]}
    stage.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "bounds"}, "spec": spec})


@contextmanager
def no_jobs(stage: Stage) -> Iterator[None]:
    """Has a policy of the cluster refuse the namespace's Jobs, until the end."""
    version = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": stage.space}}
    jobs = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    policy = {
        "matchConstraints": {"resourceRules": [jobs]},
        "validations": [{"expression": "false", "message": REFUSAL}],
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": stage.space}}}
    binding = {"policyName": stage.space, "validationActions": ["Deny"], "matchResources": here}

    def refused() -> bool:
        try:
            stage.kubectl("create", "job", "any", "--image=any", "--dry-run=server", f"--namespace={stage.space}")
        except ClusterError as error:
            if REFUSAL not in str(error):
                raise
            return True
        return False

    try:
        stage.kubectl.apply(
            {**version, "kind": "ValidatingAdmissionPolicy", "spec": policy},
            {**version, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
        )
        until(refused, "the policy is in force", LONG)
        yield
    finally:
        kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy"
        stage.kubectl("delete", kinds, stage.space, "--ignore-not-found")
        until(lambda: not refused(), "the policy is not in force any more", LONG)


def launch(stage: Stage, *arguments: str, **more: Any) -> None:
    stage.launch(*arguments, script=SCRIPT, argument=options(stage.folder, pace=PACE, **more))


def told(stage: Stage, *words: str) -> str:
    """Waits for a warning with all of these words, and returns it."""
    found = stage.events.wait("warning", lambda event: all(word in event["message"] for word in words), LONG)
    return str(found["message"])


@pytest.mark.thorough
def test_a_job_trains_where_it_finds_room_says_what_it_lacks_and_grows_once_it_is_there(
    stage: Stage, crowd: str
) -> None:
    fill(stage.kubectl, crowd, 2, later=2)
    stage.allow(4)
    launch(stage, "--nodes=1:4", FOLLOW)
    said = told(stage, "2 of 4 nodes pending", "Training goes on with 2")
    assert f"Insufficient {GPU}" in said and "free GPUs" in said and len(said.splitlines()) == 1
    generation = formed(stage, 2, 0, LONG)["generation"]
    assert stage.log().count(said) == 1
    before = stage.uids()
    stage.kubectl("delete", "pod", LATER, f"--namespace={crowd}", "--wait=false")
    formed(stage, 4, generation, LONG)
    assert stage.uids() == before
    end_training(stage)


@pytest.mark.thorough
def test_a_replacement_that_the_quota_refuses_comes_once_that_is_raised(stage: Stage) -> None:
    limit(stage, 3)
    stage.allow(3)
    launch(stage, "--nodes=1:3", FOLLOW)
    generation = formed(stage, 3, 0, LONG)["generation"]
    limit(stage, 2)
    stage.delete("pod", stage.nodes()[2]["metadata"]["name"])
    generation = formed(stage, 2, generation, LONG)["generation"]
    said = told(stage, "1 of 3 nodes pending", "exceeded quota: gpus")
    assert "raise the ResourceQuota" in said and "Training goes on with 2" in said
    limit(stage, 3)
    formed(stage, 3, generation, LONG)
    end_training(stage)


def test_a_job_without_any_quota_holds_no_pod_and_goes_on_once_there_is_some(stage: Stage) -> None:
    stage.allow(2)
    launch(stage, "--nodes=1:2", FOLLOW, "--wait-for-quota=3600")
    generation = formed(stage, 2, 0, LONG)["generation"]
    stage.allow(0)
    waits = stage.events.wait("quota_wait", timeout=LONG)["message"]
    until(lambda: not stage.nodes(), "no node is left", LONG)
    assert waits in stage.log()
    stage.allow(1)
    stage.events.wait("generation_formed", lambda event: event["generation"] > generation, LONG)
    formed(stage, 1, generation, LONG)
    end_training(stage)
    assert len(stage.events.of("job_started")) == 1 and stage.events.of("step_redone") == []
    nodes = [event["node"] for event in stage.events.of("node_started")]
    assert nodes == [1, 2, 3], "a node's number is never used again"


def test_an_image_that_is_not_there_is_said_and_given_up_in_the_time_that_was_asked_for(stage: Stage) -> None:
    (node,) = pods.python_pod(stage.space, "node", writable=[stage.folder])["spec"]["containers"]
    container = {"name": "main", "image": "localhost/none:1", "imagePullPolicy": "Never"}
    container["volumeMounts"] = node["volumeMounts"]
    given = {"script": SCRIPT, "argument": options(stage.folder), "template": {"containers": [container]}}
    stage.launch("--nodes=1:1", "--pending-timeout=30s", **given)
    assert stage.wait() == 76
    assert "check the image's name" in told(stage, "1 of 1 nodes pending", "localhost/none:1")
    (finished,) = stage.events.of("job_finished")
    assert "node 1 was pending for 30 s (--pending-timeout)" in finished["message"], finished
    assert stage.events.of("generation_formed") == []


@pytest.mark.thorough
def test_a_node_that_a_limit_range_forbids_comes_once_it_is_allowed(stage: Stage) -> None:
    stage.allow(1)
    launch(stage, "--nodes=1:2", FOLLOW)
    generation = formed(stage, 1, 0, LONG)["generation"]
    bound(stage, 0)
    stage.allow(2)
    said = told(stage, "1 of 2 nodes pending", f"maximum {GPU} usage per Container is 0, but limit is 1")
    assert "change the pod template, or what refuses it" in said and "Training goes on with 1" in said
    bound(stage, 1)
    formed(stage, 2, generation, LONG)
    assert stage.nodes()[2]["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1", "memory": MEMORY}
    end_training(stage)


@pytest.mark.thorough
def test_a_pod_that_admission_refuses_is_said_and_comes_once_it_is_allowed(stage: Stage) -> None:
    template = {"securityContext": {"runAsNonRoot": False, "runAsUser": pods.UID, "runAsGroup": 0}}
    stage.launch("--nodes=1:1", script=SCRIPT, argument=options(stage.folder, pace=PACE), template=template)
    said = told(stage, "1 of 1 nodes pending", 'violates PodSecurity "restricted', "runAsNonRoot != true")
    assert "change the pod template, or what refuses it" in said and "Nothing trains yet" in said
    assert not stage.nodes()
    stage.kubectl("label", "namespace", stage.space, "pod-security.kubernetes.io/enforce=baseline", "--overwrite")
    formed(stage, 1, 0, LONG)
    assert stage.nodes()[1]["spec"]["securityContext"] == template["securityContext"]
    end_training(stage)


@pytest.mark.thorough
def test_a_job_whose_new_nodes_are_refused_trains_on_and_grows_once_they_are_taken(stage: Stage) -> None:
    stage.allow(1)
    launch(stage, "--nodes=1:3", FOLLOW)
    generation = formed(stage, 1, 0, LONG)["generation"]
    with no_jobs(stage):
        stage.allow(2)
        told(stage, "1 of 2 nodes pending", REFUSAL, "Training goes on with 1")
    formed(stage, 2, generation, LONG)
    assert not stage.events.of("node_failed")
    end_training(stage)


@pytest.mark.thorough
def test_two_jobs_that_each_hold_half_of_what_they_need_both_get_done(stage: Stage, crowd: str, tmp_path: Path) -> None:
    fill(stage.kubectl, crowd, 4)
    folder = tmp_path / "other"
    folder.mkdir()
    with staged(folder, "room") as other:
        jobs = (stage, other)
        for job in jobs:
            limit(job, 2)  # so that each gets its half, whoever is first
            launch(job, "--nodes=3:3", f"--min-wait={MIN_WAIT:g}", epochs=4)
        for job in jobs:
            until(lambda job=job: len(running(job)) == 2, "two of its nodes run", LONG)
        for job in jobs:
            limit(job, 4)
        assert [job.wait(2 * LONG) for job in jobs] == [0, 0]
        given_back = [said for job in jobs for said in job.events.of("warning") if "(--min-wait)" in said["message"]]
        assert any("2 of at least 3 nodes run" in said["message"] for said in given_back), given_back
        for job in jobs:
            assert_same_training(job.folder, job)


def running(job: Stage) -> list[int]:
    return [node for node, pod in job.nodes().items() if pod["status"]["phase"] == "Running"]
