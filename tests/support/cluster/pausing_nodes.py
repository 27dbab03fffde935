"""An engine on a real cluster whose nodes only wait to be ended, and what it reported."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from elastic_launcher.engines import NodeExit, NodeSpec
from elastic_launcher.engines.kubernetes.engine import KubernetesEngine
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Standing, Waiting
from elastic_launcher.engines.kubernetes.objects.job import JobPlan
from elastic_launcher.engines.kubernetes.objects.names import Names, job_id
from elastic_launcher.engines.kubernetes.objects.pod import Shape
from elastic_launcher.kube.api import Api
from tests.support.cluster.namespaces import PATIENCE, make_owner, space

IMAGE = os.environ.get("ELASTIC_TEST_IMAGE", "localhost/pause:1")
LOOK = 0.05


class Played:
    """An engine, and what it told so far."""

    def __init__(self, engine: KubernetesEngine) -> None:
        self.engine = engine
        self.exits: dict[int, NodeExit] = {}

    async def start(self, *nodes: int) -> None:
        for node in nodes:
            await asyncio.to_thread(self.engine.start, NodeSpec(node, node, 1))

    async def standing(self, node: int, *wanted: type[Standing]) -> Any:
        """Waits until a node stands as wanted."""
        deadline = time.monotonic() + PATIENCE
        while not isinstance(found := (await self.look()).get(node), wanted):
            assert time.monotonic() < deadline, f"node {node} is {found}, and its exit {self.exits.get(node)}"
            await asyncio.sleep(LOOK)
        return found

    async def why(self, node: int, cause: Cause) -> str:
        """Waits until a node waits for something; returns what is said of it."""
        while (found := await self.standing(node, Waiting)).cause is not cause:
            await asyncio.sleep(LOOK)
        return str(found.why)

    async def exit(self, node: int) -> NodeExit:
        """Waits until a node is gone."""
        deadline = time.monotonic() + PATIENCE
        while node not in self.exits:
            assert time.monotonic() < deadline, f"node {node} is {(await self.look()).get(node)}"
            await self.look()
            await asyncio.sleep(LOOK)
        return self.exits[node]

    async def look(self) -> dict[int, Standing]:
        for gone in await asyncio.to_thread(self.engine.poll):
            assert gone.node not in self.exits, "a node is told to be gone once"
            self.exits[gone.node] = gone
        return await asyncio.to_thread(self.engine.standings)


@asynccontextmanager
async def cluster(purpose: str, **spec: Any) -> AsyncIterator[tuple[Api, str, Callable[[], Played]]]:
    """Gives a namespace, and what makes engines of one job in it."""
    async with space(purpose) as (api, name):
        container = {"name": "node", "imagePullPolicy": "IfNotPresent"}
        plan = JobPlan(
            Names(job_id(name, name="pausing")),
            await make_owner(api, name),
            {"metadata": {}, "spec": {"containers": [container], **spec}},
            Shape(IMAGE, ["/pause"], {}, key="00", gpus=1, run_as_user=65532, grace_seconds=20),
        )
        engines: list[KubernetesEngine] = []

        def make() -> Played:
            engines.append(KubernetesEngine(api.login, name, plan))
            return Played(engines[-1])

        try:
            yield api, name, make
        finally:
            for engine in engines:
                await asyncio.to_thread(engine.close)


async def names(api: Api, path: str) -> list[str]:
    return [one["metadata"]["name"] for one in (await api.request("GET", path))["items"]]


async def pod_of(api: Api, space: str, node: int) -> str:
    query = {"labelSelector": f"elastic-launcher/node={node}"}
    found = await api.request("GET", f"/api/v1/namespaces/{space}/pods", query=query)
    return str(found["items"][0]["metadata"]["name"])
