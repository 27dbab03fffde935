"""Jobs and pods as a real API server shows them (shortened)."""

from __future__ import annotations

from typing import Any

LABELS = {"elastic-launcher/job": "digits-x", "elastic-launcher/node": "3"}
JOB: dict[str, Any] = {"metadata": {"name": "digits-x-3", "labels": LABELS}, "spec": {"suspend": False}, "status": {}}
RUNC = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process"


def pod(phase: str, *conditions: dict[str, Any], **more: Any) -> dict[str, Any]:
    state = more.pop("state", None)
    statuses = [{"name": "node", "restartCount": more.pop("restarts", 0), "state": state}] if state else []
    return {
        "metadata": {"name": "digits-x-3-abcde", "labels": LABELS, **more.pop("metadata", {})},
        "spec": {
            "nodeName": more.pop("machine", ""),
            "containers": [{"name": "node", "command": ["python3"], "resources": {"limits": {"memory": "4Gi"}}}],
        },
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            "initContainerStatuses": more.pop("init", []),
            "containerStatuses": statuses,
            **more,
        },
    }


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}
