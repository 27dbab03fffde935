"""APIs that a fleet meets, and a fleet that follows one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

from elastic_launcher.engines.kubernetes.nodes.fleet import Fleet
from elastic_launcher.kube.api import Api, ApiError
from tests.support.pod_templates import SHAPE, plan, template

PATIENCE = 30.0
QUOTA = 'jobs.batch "digits-x-1" is forbidden: exceeded quota: jobs, used: count/jobs.batch=2, limited: 2'
AWAY = ApiError(0, "Unreachable", "connection reset")


class Refusing:
    """An API that answers requests for Jobs in this way, one after another, and takes them from then on.

    Attributes:
        made: The Jobs that it has.
        deleted: Those that were to be deleted.
    """

    def __init__(self, *answers: ApiError) -> None:
        self.answers = list(answers)
        self.made: list[str] = []
        self.deleted: list[str] = []

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        if method == "POST":
            name = body["metadata"]["name"]
            if self.answers:
                error = self.answers.pop(0)
                self.made += [name] if error.unsure else []
                raise error
            if name in self.made:
                raise ApiError(409, "AlreadyExists", f"{name} already exists")
            self.made.append(name)
        if method == "DELETE":
            self.deleted.append(path.rpartition("/")[2])
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    async def watch(self, *args: Any) -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.Event().wait()
        yield {}


class Full(Refusing):
    """An API whose only machine refuses the first pods that it is given: this many."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.shown: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def next_state(self) -> dict[str, Any]:
        """Returns the status of the next pod."""
        if self.refusals:
            self.refusals -= 1
            return {"phase": "Failed", "reason": "OutOfpods", "message": "Pod was rejected: no room"}
        return {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        found = await super().request(method, path, body, *more, **query)
        if method == "POST":
            state = self.next_state()
            job = body["metadata"]
            owner = {"name": job["name"], "controller": True}
            metadata = {
                "name": f"{job['name']}-a",
                "uid": job["name"],
                "labels": job["labels"],
                "ownerReferences": [owner],
            }
            spec = {"nodeName": "m-1", **body["spec"]["template"]["spec"]}
            await self.shown.put({"metadata": metadata | {"resourceVersion": "2"}, "spec": spec, "status": state})
        return found

    async def watch(self, path: str, *args: Any) -> AsyncGenerator[dict[str, Any], None]:
        while path.endswith("/pods"):
            yield {"type": "ADDED", "object": await self.shown.get()}
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def following(api: Any) -> AsyncIterator[Fleet]:
    fleet = Fleet(cast(Api, api), "ml", plan(template(), SHAPE))
    running = asyncio.create_task(fleet.run())
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.sleep(0)  # it has begun
            yield fleet
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
