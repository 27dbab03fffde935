"""What is read of Kueue's Workloads, in the words of Kueue 0.17."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Waiting
from elastic_launcher.engines.kubernetes.nodes.track import Track
from elastic_launcher.engines.kubernetes.nodes.workloads import (
    JOB_UID,
    MOST_ASKED,
    UNREADABLE,
    next_asked,
    reason,
    why_not_admitted,
)
from elastic_launcher.kube.api import Api, ApiError

COVERED = "couldn't assign flavors to pod set main: resource cpu unavailable in ClusterQueue"
EXCEEDED = "The workload is deactivated due to exceeding the maximum number of re-queuing retries"


def workload(*conditions: tuple[str, str, str], active: bool = True, **status: Any) -> dict[str, Any]:
    told = [{"type": kind, "status": value, "message": message} for kind, value, message in conditions]
    metadata = {"name": "job-x-2-abcde", "labels": {JOB_UID: "u2"}}
    return {"metadata": metadata, "spec": {"active": active}, "status": {"conditions": told, **status}}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (workload(("QuotaReserved", "False", COVERED)), COVERED),
        (
            workload(("QuotaReserved", "False", EXCEEDED), ("Evicted", "True", EXCEEDED), active=False),
            f"{EXCEEDED}; it is not tried again: once that is mended, delete Workload job-x-2-abcde, and its Job is "
            "queued again",
        ),
        (
            workload(active=False),
            "its Workload is deactivated; it is not tried again: once that is mended, delete Workload job-x-2-abcde, "
            "and its Job is queued again",
        ),
        (
            workload(
                ("QuotaReserved", "True", "reserved"),
                admissionChecks=[
                    {"name": "machines", "state": "Pending", "message": "Waiting for a node group"},
                    {"name": "budget", "state": "Ready", "message": "fine"},
                ],
            ),
            "admission check machines: Waiting for a node group",
        ),
        (workload(("QuotaReserved", "True", "reserved"), ("Admitted", "True", "admitted")), ""),
        (workload(), ""),
        ({"metadata": {"name": "x"}}, ""),
    ],
)
def test_a_reason_is_kueues_own(found: dict[str, Any], why: str) -> None:
    assert reason(found) == why


class Answering:
    """An API that answers what it is asked in turn."""

    def __init__(self, *answers: ApiError | dict[str, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []

    async def request(self, method: str, path: str, query: dict[str, str]) -> dict[str, Any]:
        self.asked.append((path, query["labelSelector"]))
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


def ask(*answers: ApiError | dict[str, Any]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    api = Answering(*answers)
    return asyncio.run(why_not_admitted(cast(Api, api), "ml", ["u2", "u1"])), api.asked


def test_all_nodes_that_wait_are_asked_for_at_once_and_of_an_older_kueue_too() -> None:
    gone = ApiError(404, "NotFound", "the server could not find the requested resource")
    found, asked = ask(gone, {"items": [workload(("QuotaReserved", "False", COVERED))]})
    assert found == {"u2": COVERED}
    assert asked == [
        (f"/apis/kueue.x-k8s.io/{version}/namespaces/ml/workloads", f"{JOB_UID} in (u1,u2)")
        for version in ("v1beta2", "v1beta1")
    ]
    assert ask(gone, gone)[0] == {}


def test_a_launcher_that_may_not_read_them_says_what_grants_it() -> None:
    found, _ = ask(ApiError(403, "Forbidden", "workloads is forbidden"))
    assert found == {"u1": UNREADABLE, "u2": UNREADABLE}
    assert "manifests/overlays/kueue" in UNREADABLE


def test_a_reason_is_said_while_the_job_is_suspended() -> None:
    job = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}, "spec": {"suspend": True}}
    track = Track(NodeSpec(2, 2, 1)).show_job(job).show_admission(COVERED)
    assert track.standing == Waiting(Cause.ADMISSION, f"its Job is suspended by queue gpus: {COVERED}")
    assert track.show_job({**job, "spec": {}}).show_job(job).standing == Waiting(
        Cause.ADMISSION, "its Job is suspended by queue gpus: it waits for quota admission"
    )


def test_each_job_that_waits_has_its_turn() -> None:
    jobs, last, asked = {f"u{number:03}" for number in range(120)}, "", list[str]()
    for _ in range(3):
        part = next_asked(jobs, last)
        assert len(part) <= MOST_ASKED
        asked, last = asked + part, part[-1]
    assert sorted(asked) == sorted(jobs)
    assert next_asked(jobs, last)[0] == "u000", "and again"
