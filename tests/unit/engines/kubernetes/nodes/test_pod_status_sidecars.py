"""Pods into which a webhook has put a container of its own, before the node's."""

from __future__ import annotations

from typing import Any

from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Gone, Running, Waiting, standing

RUNNING = {"running": {}}


def proxied(state: dict[str, Any], default: str = "node") -> dict[str, Any]:
    containers = [{"name": "proxy"}, {"name": "node", "resources": {"limits": {"memory": "4Gi"}}}]
    statuses = [{"name": "proxy", "state": RUNNING}, {"name": "node", "state": state}]
    return {
        "metadata": {"name": "x-3-a", "annotations": {"kubectl.kubernetes.io/default-container": default}},
        "spec": {"containers": containers},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


def test_what_runs_beside_a_node_is_not_the_node() -> None:
    killed = standing(None, proxied({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))
    assert isinstance(killed, Gone) and killed.exit_code == -9 and "its limit of 4Gi" in killed.why
    no_image = standing(None, proxied({"waiting": {"reason": "ErrImagePull", "message": "not found"}}))
    assert no_image == Waiting(Cause.IMAGE, "ErrImagePull: not found")


def test_a_default_container_that_is_not_there_is_nobodys_mistake_once_the_pod_is() -> None:
    assert isinstance(standing(None, proxied(RUNNING, default="gone")), Running)
