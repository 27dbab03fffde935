"""What jobs report to the quota controller, on Services as the API shows them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from elastic_launcher.engines.kubernetes.objects.service import STATUS

BEGAN = 1_790_000_000.0
"""When jobs were submitted, in seconds since the epoch."""


def report(
    job: str,
    minimum: int = 1,
    maximum: int = 8,
    *,
    held: int = 0,
    allowed: int | None = None,
    generation: int | None = None,
    state: str = "running",
    submitted: float = BEGAN,
    told: int = 0,
    **demand: Any,
) -> dict[str, Any]:
    """Returns the status document of a job whose nodes have one rank each.

    Args:
        job: Its id.
        minimum: Fewest GPUs.
        maximum: Most GPUs.
        held: GPUs that it holds.
        allowed: What the hint that it follows allows; None before the first.
        generation: Of that hint's document.
        state: Of the job.
        submitted: When it was first started.
        told: How often it has reported.
        **demand: More of what it reports, or something else.
    """
    following = None if allowed is None else {"allowed": allowed, "generation": generation}
    return {
        "v": 1,
        "job": job,
        "state": state,
        "told": told,
        "demand": {
            "minimum": minimum,
            "maximum": maximum,
            "per_node": 1,
            "priority": 0,
            "match": {"id": job, "job": job},
            "submitted": submitted,
            "held": held,
            "waits": 3600.0,
            "following": following,
            "reported": submitted + told,
            **demand,
        },
    }


def service(job: str, namespace: str, status: dict[str, Any] | str | None, created: float = BEGAN) -> dict[str, Any]:
    """Returns the Service of a job.

    Args:
        job: Its id.
        namespace: Where it is.
        status: What it reports, as an object or a text; None before the first report.
        created: When the Service was made, in seconds since the epoch.
    """
    text = status if isinstance(status, str) else json.dumps(status)
    moment = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {
            "name": job,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{job}",
            "creationTimestamp": moment,
            "labels": {JOB_LABEL: job},
            "annotations": {} if status is None else {STATUS: text},
        },
        "spec": {"ports": [{"name": "control", "port": 18500, "protocol": "TCP"}]},
    }
