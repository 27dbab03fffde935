"""A cluster source under test, beside an API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from elastic_launcher.kube.api import Api
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.sources.cluster import ClusterSource
from tests.support.fake_cluster import FakeCluster
from tests.support.quota_reports import BEGAN

GPU = "nvidia.com/gpu"
PROJECTS = Projects((Project("nlp", patterns=({"namespace": "nlp"},)),))
PATIENCE = 30.0


class Seen:
    """A source under test.

    Attributes:
        cluster: The cluster.
        source: What follows it.
        said: Its lines.
        now: Its clock.
        changes: How many changes it has told.
    """

    def __init__(self, cluster: FakeCluster, namespaces: tuple[str, ...]) -> None:
        self.cluster = cluster
        self.said: list[str] = []
        self.now = BEGAN + 10.0
        self.changes = 0
        self._news = asyncio.Event()
        self.source = ClusterSource(namespaces, self.said.append, lambda: self.now, self._changed)

    def _changed(self) -> None:
        self.changes += 1
        self._news.set()

    async def world(self, good: Callable[[World], bool], projects: Projects = PROJECTS) -> World:
        """Waits for a world; what is not known yet is waited for too."""
        while True:
            self._news.clear()
            try:
                if good(world := self.source.world(projects)):
                    return world
            except OSError:
                pass
            await self._news.wait()

    async def projects(self, document: Projects) -> Projects:
        """Waits for the projects."""
        while True:
            self._news.clear()
            try:
                return self.source.projects(document)
            except OSError:
                await self._news.wait()


Steps = Callable[[Seen], Awaitable[None]]


def follow(steps: Steps, *namespaces: str, cluster: FakeCluster | None = None) -> Seen:
    """Runs the steps of a test beside a source of a cluster with a machine of 8 GPUs."""
    seen: list[Seen] = []

    async def run() -> None:
        there = cluster or FakeCluster()
        await there.put("nodes", machine("m0", 8))
        seen.append(Seen(there, namespaces))
        async with there.serve() as login, Api(login) as api, asyncio.timeout(PATIENCE):
            following = asyncio.create_task(seen[0].source.run(api))
            try:
                await steps(seen[0])
            finally:
                following.cancel()
                await asyncio.wait([following])

    asyncio.run(run())
    return seen[0]


def machine(name: str, gpus: int) -> dict[str, Any]:
    status = {"allocatable": {GPU: str(gpus)}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name}, "status": status}


def pod(name: str, gpus: int, namespace: str = "nlp", job: str = "", **status: str) -> dict[str, Any]:
    labels = {"elastic-launcher/job": job, "elastic-launcher/node": name} if job else {}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": "m0", "containers": [{"resources": {"requests": {GPU: str(gpus)}}}]},
        "status": {"phase": "Running", **status},
    }
