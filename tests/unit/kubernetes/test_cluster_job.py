"""A job's logs, of pods that can be read and pods that can't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

from elastic_launcher.cli.cluster_job import ClusterJob
from elastic_launcher.engines.kubernetes.identity import JOB_LABEL, NODE_LABEL
from elastic_launcher.kube.api import Api, ApiError

SERVICE = {
    "metadata": {"namespace": "ml", "name": "digits-x", "labels": {JOB_LABEL: "digits-x"}, "resourceVersion": "1"},
    "spec": {},
}
MAIN = "kubectl.kubernetes.io/default-container"


def pod(node: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"digits-x-{node}", "labels": {NODE_LABEL: str(node)}, "annotations": {MAIN: "node"}},
        "spec": {"containers": [{"name": "proxy"}, {"name": "node"}]},
        "status": {"containerStatuses": [{"name": "node", "started": True, "state": {"running": {}}}]},
    }


class Pods:
    """Three nodes, of which the machine of the second does not answer."""

    async def request(self, *args: Any, **more: Any) -> dict[str, Any]:
        return {"items": [pod(node) for node in (1, 2, 3)]}

    async def stream(self, path: str, query: dict[str, str]) -> AsyncGenerator[bytes, None]:
        assert query["container"] == "node"
        if "digits-x-2/" in path:
            raise ApiError(500, "InternalError", "no route to host")
        yield b"[local rank 0] hello\n"


def test_a_pod_that_can_not_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    job = ClusterJob(cast(Api, Pods()), SERVICE)
    assert asyncio.run(job.save_logs(tmp_path, follow=False)) == [
        "the log of pod digits-x-2 can't be read: no route to host"
    ]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"1-0.log": "hello\n", "3-0.log": "hello\n"}
