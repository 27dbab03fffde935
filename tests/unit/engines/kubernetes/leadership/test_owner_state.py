"""Stopped or moved: by the step's owner and its own pod."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.engines.kubernetes.leadership.owner_state import UNKNOWN, Order, Verdict, grace_of, judge

DELETED = {"deletionTimestamp": "2026-11-21T18:00:30Z"}
POD: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "step-1"}, "status": {"phase": "Running"}}
GOING = POD | {"metadata": POD["metadata"] | DELETED}
EVICTED = GOING | {
    "status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}
}


def workflow(deleted: bool = False, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    metadata = {"name": "train-abc", **(DELETED if deleted else {})}
    return {"kind": "Workflow", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def job(failed: int = 0, condition: str = "", terminating: int = 0, **spec: Any) -> dict[str, Any]:
    conditions = [{"type": condition, "status": "True", "reason": "BackoffLimitExceeded"}] if condition else []
    return {
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"backoffLimit": 3, **spec},
        "status": {"failed": failed, "terminating": terminating, "conditions": conditions},
    }


ENDING = [
    (None, "what the step belongs to was deleted"),
    (workflow(deleted=True), "Workflow train-abc is being deleted"),
    (workflow(shutdown="Stop"), "Workflow train-abc was told to shut down (Stop)"),
    (workflow(shutdown="Terminate"), "Workflow train-abc was told to shut down (Terminate)"),
    (workflow(activeDeadlineSeconds=0), "Workflow train-abc was terminated"),
    (workflow(phase="Failed"), "Workflow train-abc has ended (Failed)"),
    (job(suspend=True), "Job train was suspended"),
    (job(condition="FailureTarget"), "Job train has ended (BackoffLimitExceeded)"),
    ({"kind": "PyTorchJob", "metadata": {"name": "other"} | DELETED}, "PyTorchJob other is being deleted"),
]
LIVING = [
    workflow(),
    workflow(activeDeadlineSeconds=3600),
    job(),
    job(failed=2),
    job(failed=3, terminating=1),  # the third is the one that goes
    job(failed=9, podFailurePolicy={}),
]
NO_RETRIES = "its pod is being deleted, and Job train has no retries left (backoffLimit)"


@pytest.mark.parametrize(("owner", "why"), ENDING)
@pytest.mark.parametrize("pod", [POD, GOING, EVICTED, None, UNKNOWN])
@pytest.mark.parametrize("signalled", [False, True])
def test_an_owner_that_ends_stops_the_job_before_any_signal(owner: Any, why: str, pod: Any, signalled: bool) -> None:
    assert judge(pod, owner, signalled) == Verdict(Order.STOP, why)


@given(st.sampled_from([*LIVING, POD, GOING, UNKNOWN]), st.sampled_from([POD, GOING, EVICTED, None, UNKNOWN]))
def test_without_a_signal_a_living_owner_changes_nothing(owner: Any, pod: Any) -> None:
    assert judge(pod, owner, signalled=False) == Verdict(Order.NOTHING)


@pytest.mark.parametrize("owner", LIVING)
@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (GOING, "its pod is being deleted"),
        (EVICTED, "its pod is being moved (EvictionByEvictionAPI)"),
        (None, "its pod was deleted"),
    ],
)
def test_a_pod_that_is_moved_hands_over(owner: Any, pod: Any, why: str) -> None:
    assert judge(pod, owner, signalled=True) == Verdict(Order.HAND_OVER, why)


@pytest.mark.parametrize(
    ("pod", "owner", "why"),
    [
        (POD, workflow(), "SIGTERM, while neither its pod nor what controls that is being deleted"),
        (UNKNOWN, workflow(), "SIGTERM, and it can't be read whether the step is stopped or moved"),
        (GOING, UNKNOWN, "SIGTERM, and it can't be read whether the step is stopped or moved"),
        (GOING, GOING, "its pod is being deleted, and nothing controls it that would make another"),
        (GOING, job(failed=3), NO_RETRIES),
        (GOING, job(failed=4, terminating=1), NO_RETRIES),
        (GOING, job(failed=3, terminating=1, podReplacementPolicy="Failed"), NO_RETRIES),
    ],
)
def test_whoever_has_no_successor_or_cannot_tell_stops(pod: Any, owner: Any, why: str) -> None:
    assert judge(pod, owner, signalled=True) == Verdict(Order.STOP, why)


@pytest.mark.parametrize(
    ("spec", "deleted", "grace"),
    [
        ({}, {}, 30.0),
        ({"terminationGracePeriodSeconds": 90}, {}, 90.0),
        ({"terminationGracePeriodSeconds": 90}, {"deletionGracePeriodSeconds": 5}, 5.0),
        ({"terminationGracePeriodSeconds": 90}, {"deletionGracePeriodSeconds": 0}, 0.0),
    ],
)
def test_how_long_a_pod_has_after_a_signal(spec: Any, deleted: Any, grace: float) -> None:
    assert grace_of({"metadata": {"name": "step-1", **deleted}, "spec": spec}) == grace
