"""Reads from Kueue's Workload why a queue does not admit a node's Job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.access.rights import QUEUES
from elastic_launcher.engines.kubernetes.nodes.pod_status import condition, one_line
from elastic_launcher.kube.api import NOT_FOUND, Api, ApiError, items_of

GROUP = QUEUES.group
VERSIONS = ("v1beta2", "v1beta1")
"""The newest first; Kueue before 0.15 has the last one alone."""
JOB_UID = f"{GROUP}/job-uid"
"""The label by which Kueue says whose a Workload is."""
MOST_ASKED = 50
"""Jobs in one request: their uids are in its URL."""
FORBIDDEN = 403
UNREADABLE = (
    f"the reason is on its Workload, which this launcher may not read (manifests/overlays/{QUEUES.overlay} grants that)"
)


def next_asked(jobs: Collection[str], after: str) -> list[str]:
    """Returns the uids of the Jobs that are asked about next, after the last one, so that each has its turn."""
    ordered = sorted(jobs)
    return ([one for one in ordered if one > after] or ordered)[:MOST_ASKED]


async def why_not_admitted(api: Api, namespace: str, jobs: Collection[str]) -> dict[str, str]:
    """Returns what Kueue says of Jobs that it has not admitted, in one line each, by their uids.

    There may be `MOST_ASKED` at most.

    Raises:
        ApiError: If the cluster can't be asked.
    """
    asked = sorted(jobs)
    query = {"labelSelector": f"{JOB_UID} in ({','.join(asked)})"}
    for version in VERSIONS:
        try:
            found = await api.request(
                "GET", f"/apis/{GROUP}/{version}/namespaces/{namespace}/{QUEUES.resource}", query=query
            )
        except ApiError as error:
            if error.status == FORBIDDEN:
                return dict.fromkeys(asked, UNREADABLE)
            if error.status != NOT_FOUND:
                raise
            continue
        labelled = ((one["metadata"].get("labels") or {}, one) for one in items_of(found))
        return {labels[JOB_UID]: reason(one) for labels, one in labelled if JOB_UID in labels}
    return {}


def reason(workload: Mapping[str, Any]) -> str:
    """Returns why a Workload is not admitted; "" where it is, or its queue has not decided yet."""
    status = workload.get("status") or {}
    if (workload.get("spec") or {}).get("active") is False:
        evicted = condition(status, "Evicted")
        said = one_line((evicted or {}).get("message", "")) or "its Workload is deactivated"
        name = workload["metadata"]["name"]
        # Kueue 0.17 does not queue it again where spec.active alone becomes true again
        advice = f"once that is mended, delete Workload {name}, and its Job is queued again"
        return f"{said}; it is not tried again: {advice}"
    waits = condition(status, "QuotaReserved", "False")
    if waits is not None:
        return one_line(waits.get("message", ""))
    checks = [one for one in status.get("admissionChecks") or () if one.get("state") != "Ready"]
    told = (f"admission check {one.get('name', '')}: {one_line(one.get('message', ''))}" for one in checks)
    return "; ".join(one.removesuffix(": ") for one in told)
