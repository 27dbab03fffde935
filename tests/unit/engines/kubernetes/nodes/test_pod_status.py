"""What pods, Jobs and their events mean, in documents as a real API server gives them (shortened)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.engines.kubernetes.nodes.pod_status import (
    Cause,
    Gone,
    Leaving,
    Running,
    Waiting,
    refused,
    standing,
    turned_away,
)
from elastic_launcher.engines.kubernetes.nodes.taints import notice_of
from tests.support.pod_documents import JOB, LABELS, RUNC, ended, pod

DELETED = {"deletionTimestamp": "2026-11-21T18:00:30Z", "deletionGracePeriodSeconds": 30}


def job(*conditions: dict[str, Any], suspend: bool = False, **labels: str) -> dict[str, Any]:
    named = {"name": "digits-x-3", "labels": LABELS | {f"kueue.x-k8s.io/{k}": v for k, v in labels.items()}}
    return {"metadata": named, "spec": {"suspend": suspend}, "status": {"conditions": list(conditions)}}


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


RUNNING = {"running": {"startedAt": "2026-11-21T18:00:00Z"}}
UNSCHEDULABLE = condition(
    "PodScheduled",
    "False",
    "Unschedulable",
    "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {lab: second}. "
    "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful.",
)
QUOTA = (
    'Error creating: pods "digits-x-3-z9k" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, '
    "used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
)
SECURITY = (
    'Error creating: pods "digits-x-3-q2x" is forbidden: violates PodSecurity "restricted:latest": '
    'seccompProfile (pod or container "node" must set securityContext.seccompProfile.type)'
)


@pytest.mark.parametrize(
    ("of_job", "of_pod", "events", "cause", "why"),
    [
        (job(suspend=True), None, [], Cause.ADMISSION, "its Job is suspended: it waits for quota admission"),
        (
            job(suspend=True, **{"queue-name": "team-a"}),
            None,
            [],
            Cause.ADMISSION,
            "its Job is suspended by queue team-a: it waits for quota admission",
        ),
        (JOB, None, [], Cause.STARTING, "its Job has no pod yet; if that lasts, `kubectl describe job` says why"),
        (JOB, None, [QUOTA], Cause.QUOTA, QUOTA.partition("is forbidden: ")[2]),
        (JOB, None, [QUOTA, SECURITY], Cause.REFUSED, SECURITY.partition("is forbidden: ")[2]),
        (
            JOB,
            pod("Pending", UNSCHEDULABLE),
            [],
            Cause.ROOM,
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {lab: second}",
        ),
        (
            JOB,
            pod("Pending", condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked")),
            [],
            Cause.ADMISSION,
            "its pod is held back by a scheduling gate",
        ),
        (
            JOB,
            pod("Pending", state=waiting("ImagePullBackOff", 'Back-off pulling image "nowhere/none:1"')),
            [],
            Cause.IMAGE,
            'ImagePullBackOff: Back-off pulling image "nowhere/none:1"',
        ),
        (
            JOB,
            pod("Pending", state=waiting("CreateContainerConfigError", 'secret "digits-x-key" not found')),
            [],
            Cause.CONTAINER,
            'CreateContainerConfigError: secret "digits-x-key" not found',
        ),
        (
            JOB,
            pod(
                "Pending",
                state=waiting("PodInitializing"),
                initContainerStatuses=[{"name": "fetch", "state": waiting("ErrImagePull", "not found")}],
            ),
            [],
            Cause.IMAGE,
            "ErrImagePull: not found",
        ),
        (
            JOB,
            pod("Pending", state=waiting("ContainerCreating"), machine="node-1"),
            [],
            Cause.STARTING,
            "its container is being started on node-1",
        ),
        (JOB, pod("Pending"), [], Cause.STARTING, "it is being scheduled"),
    ],
)
def test_why_a_node_waits(of_job: Any, of_pod: Any, events: list[str], cause: Cause, why: str) -> None:
    documents = [{"reason": "FailedCreate", "type": "Warning", "message": message} for message in events]
    assert standing(of_job, of_pod, documents) == Waiting(cause, why)


@pytest.mark.parametrize(
    ("message", "cause", "why"),
    [
        (
            'jobs.batch "digits-x-3" is forbidden: exceeded quota: jobs, used: count/jobs.batch=2',
            Cause.QUOTA,
            "exceeded quota: jobs, used: count/jobs.batch=2",
        ),
        (
            'jobs.batch is forbidden: User "system:serviceaccount:ml:launcher" cannot create resource "jobs"',
            Cause.RIGHT,
            'jobs.batch is forbidden: User "system:serviceaccount:ml:launcher" cannot create resource "jobs"',
        ),
        (
            'admission webhook "a.b" denied the request: no',
            Cause.REFUSED,
            'admission webhook "a.b" denied the request: no',
        ),
    ],
)
def test_why_a_job_is_refused(message: str, cause: Cause, why: str) -> None:
    assert refused(message) == Waiting(cause, why)


def test_a_volume_that_cannot_be_had_is_said_by_its_event() -> None:
    found = pod("Pending", state=waiting("ContainerCreating"), machine="node-1")
    event = {"reason": "FailedMount", "message": 'MountVolume.SetUp failed for volume "data":\n  timed out'}
    said = 'FailedMount: MountVolume.SetUp failed for volume "data": timed out'
    assert standing(JOB, found, [event]) == Waiting(Cause.STARTING, said)


def test_an_image_that_takes_its_time_is_said_while_it_is_pulled() -> None:
    found = pod("Pending", state=waiting("ContainerCreating"), machine="node-1")
    pulling = {"reason": "Pulling", "type": "Normal", "message": 'Pulling image "registry.example/train:3"'}
    said = 'node-1 is pulling image "registry.example/train:3"'
    assert standing(JOB, found, [pulling]) == Waiting(Cause.STARTING, said)
    pulled = {"reason": "Pulled", "type": "Normal", "message": "Successfully pulled image"}
    said = "its container is being started on node-1"
    assert standing(JOB, found, [pulling, pulled]) == Waiting(Cause.STARTING, said)


def test_a_node_runs_once_its_container_does() -> None:
    found = pod("Running", state=RUNNING, machine="node-0", podIPs=[{"ip": "10.244.0.9"}, {"ip": "fd00::9"}])
    assert standing(JOB, found) == Running("digits-x-3-abcde", "node-0")
    assert standing(None, found) == Running("digits-x-3-abcde", "node-0")  # its Job went first


@pytest.mark.parametrize(
    ("of_job", "of_pod", "expected"),
    [
        (JOB, pod("Running", state=RUNNING, metadata=DELETED), Leaving("its pod is being deleted", 30)),
        (
            JOB,
            pod(
                "Running",
                condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting"),
                state=RUNNING,
                metadata=DELETED,
            ),
            Leaving("evicted: Eviction API: evicting", 30),
        ),
        (
            JOB,
            pod("Running", condition("DisruptionTarget", "True", "PreemptionByScheduler"), state=RUNNING),
            Leaving("preempted by a pod of higher priority", None),
        ),
        (
            job(suspend=True, **{"queue-name": "team-a"}),
            pod("Running", state=RUNNING),
            Leaving("taken back: its Job is suspended by queue team-a", None, again=True),
        ),
        (JOB, pod("Pending", UNSCHEDULABLE, metadata=DELETED), Leaving("its pod is being deleted", 30)),
    ],
)
def test_what_is_a_notice(of_job: Any, of_pod: Any, expected: Leaving) -> None:
    assert standing(of_job, of_pod) == expected


FAILED = condition("Failed", "True", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
EVICTED = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi."
GREEDY = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
KUBELETS = condition("DisruptionTarget", "True", "TerminationByKubelet", EVICTED)
DISRUPTED = condition("DisruptionTarget", "True", "PreemptionByScheduler", "by default-scheduler")


@pytest.mark.parametrize(
    ("of_job", "of_pod", "expected"),
    [
        (JOB, pod("Succeeded", state=ended(0, "Completed")), Gone(0)),
        (JOB, pod("Failed", state=ended(1)), Gone(1)),
        (
            JOB,
            pod("Failed", state=ended(1, message="Traceback (most recent call last):\nImportError: no torch\n\n")),
            Gone(1, last_line="ImportError: no torch"),
        ),
        (
            JOB,
            pod("Failed", DISRUPTED, state=ended(143, message="leaves")),
            Gone(-15, "preempted by a pod of higher priority: by default-scheduler", taken=True),
        ),
        (JOB, pod("Failed", state=ended(75)), Gone(75)),
        (JOB, pod("Failed", state=ended(139)), Gone(-11)),
        (JOB, pod("Failed", state=ended(255)), Gone(255)),
        (
            JOB,
            pod("Failed", state=ended(137, "OOMKilled")),
            Gone(
                -9,
                "OOMKilled: out of memory beyond its limit of 4Gi; raise resources.limits.memory of the pod template",
            ),
        ),
        (
            JOB,
            pod(
                "Failed",
                state=ended(128, "StartError", f"{RUNC}: error running hook #0: nvml error: driver not loaded"),
            ),
            Gone(None, f"StartError: {RUNC}: error running hook #0: nvml error: driver not loaded", taken=True),
        ),
        (
            JOB,
            pod("Failed", KUBELETS, reason="Evicted", message=EVICTED, state=ended(137, "ContainerStatusUnknown")),
            Gone(None, f"Evicted: {EVICTED}", taken=True),
        ),
        (
            JOB,
            pod("Failed", reason="Evicted", message=GREEDY, state=ended(137, "ContainerStatusUnknown")),
            Gone(None, f"Evicted: {GREEDY}"),
        ),
        (
            JOB,
            pod("Failed", init=[{"name": "data", "state": ended(3, "Error")}]),
            Gone(None, "its init container data failed with 3: Error"),
        ),
        (
            JOB,
            pod("Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown."),
            Gone(None, "Terminated: Pod was terminated in response to imminent node shutdown.", taken=True),
        ),
        (
            JOB,
            pod("Failed", reason="UnexpectedAdmissionError", message="Allocate failed due to no GPU"),
            Gone(None, "UnexpectedAdmissionError: Allocate failed due to no GPU", taken=True),
        ),
        (
            JOB,
            pod("Failed", DISRUPTED, state=ended(143), metadata=DELETED),
            Gone(-15, "preempted by a pod of higher priority: by default-scheduler", taken=True),
        ),
        (JOB, pod("Running", state=ended(0, "Completed")), Gone(0)),  # a sidecar runs on
        (JOB, pod("Running", state=RUNNING, restarts=1), Gone(None, "its machine was started again", taken=True)),
        (None, None, Gone(None, "its Job was deleted", taken=True)),
        (JOB | {"metadata": JOB["metadata"] | DELETED}, None, Gone(None, "its Job was deleted", taken=True)),
        (
            job(FAILED),
            None,
            Gone(
                None,
                "its pod is gone (BackoffLimitExceeded: Job has reached the specified backoff limit)",
                taken=True,
            ),
        ),
        (
            job(condition("Failed", "True", "DeadlineExceeded", "Job was active longer than specified deadline")),
            None,
            Gone(None, "its pod is gone (DeadlineExceeded: Job was active longer than specified deadline)"),
        ),
    ],
)
def test_how_a_node_ended(of_job: Any, of_pod: Any, expected: Gone) -> None:
    assert standing(of_job, of_pod) == expected


@pytest.mark.parametrize(
    ("reason", "taken"),
    [
        ("OutOfcpu", True),
        ("OutOfmemory", True),
        ("OutOfpods", True),
        ("OutOfephemeral-storage", True),
        ("OutOfnvidia.com/gpu", True),
        ("NodeAffinity", True),
        ("NodePorts", True),
        ("TaintToleration", True),
        ("TopologyAffinityError", True),
        ("NodeShutdown", True),
        ("Preempting", True),
        ("DeadlineExceeded", True),
        ("Evicted", True),
        ("VolumeAttachmentLimitExceeded", True),
        ("AppArmor", False),
        ("SysctlForbidden", False),
        ("PodOSNotSupported", False),
        ("PodFeatureUnsupported", False),
    ],
)
def test_a_pod_that_its_machine_does_not_take_is_no_failure_unless_the_pod_itself_is_why(
    reason: str, taken: bool
) -> None:
    refusal = pod("Failed", reason=reason, message="Pod was rejected: x", machine="node-1")
    assert standing(JOB, refusal) == Gone(None, f"{reason}: Pod was rejected: x", taken=taken)


def test_what_a_machine_says_of_a_pod_that_ran_is_no_refusal() -> None:
    assert not turned_away(pod("Failed", reason="Evicted", message=GREEDY, state=ended(137, "ContainerStatusUnknown")))
    assert not turned_away(pod("Running", state=RUNNING))


ENDS = [
    pod("Failed", state=ended(1)),
    pod("Succeeded", state=ended(0, "Completed")),
    pod("Failed", reason="Evicted", message=EVICTED),
]


@given(
    st.sampled_from([None, JOB, job(FAILED), job(suspend=True)]),
    st.sampled_from(ENDS),
    st.sampled_from([{}, DELETED]),
)
def test_a_node_that_is_gone_stays_gone(of_job: Any, of_pod: dict[str, Any], more: dict[str, Any]) -> None:
    assert isinstance(standing(of_job, of_pod | {"metadata": of_pod["metadata"] | more}), Gone)


def test_a_message_is_one_line_of_bounded_length() -> None:
    found = standing(JOB, pod("Pending", state=waiting("ErrImagePull", "x\n" * 1000)))
    assert isinstance(found, Waiting)
    assert "\n" not in found.why
    assert len(found.why) < 350


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("aws-node-termination-handler/spot-itn", "its spot machine is taken back (taint "),
        ("ToBeDeletedByClusterAutoscaler", "the cluster autoscaler takes its machine away (taint "),
        ("node.kubernetes.io/unschedulable", ""),
        ("DeletionCandidateOfClusterAutoscaler", ""),
    ],
)
def test_which_taints_of_a_machine_are_a_notice(key: str, said: str) -> None:
    machine = {"spec": {"taints": [{"key": "team", "effect": "NoSchedule"}, {"key": key, "effect": "NoSchedule"}]}}
    assert notice_of(machine) == (f"{said}{key})" if said else "")
    assert notice_of({"spec": {}}) == ""
