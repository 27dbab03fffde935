"""What a fleet makes of answers that cross each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, cast

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.fleet import Fleet
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.follow import GONE
from tests.unit.kubernetes.templates import SHAPE, plan, template

PATIENCE = 30.0


class Crossing:
    """An API that takes a Job only after Jobs were listed once more, as one that comes back after an absence may."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked = asyncio.Event()
        self.listed = asyncio.Event()
        self.looked = asyncio.Event()
        self.watches = 0

    async def request(self, method: str, path: str, *args: Any, **more: Any) -> dict[str, Any]:
        folder, _, name = path.rpartition("/")
        if method == "POST":
            self.asked.set()
            await self.listed.wait()
            self.jobs[args[0]["metadata"]["name"]] = args[0]
            return dict(args[0])
        if folder.endswith("/jobs"):
            self.looked.set()
            if name in self.jobs:
                return self.jobs[name]
            raise ApiError(404, "NotFound", f"there is no {name}")
        items = list(self.jobs.values()) if name == "jobs" else []
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def watch(self, path: str, *args: Any) -> AsyncGenerator[dict[str, Any], None]:
        if path.endswith("/jobs"):
            self.watches += 1
            await self.asked.wait()
            if self.watches == 1:
                raise ApiError(GONE, "Expired", "too old resource version")
            self.listed.set()
        await asyncio.Event().wait()
        yield {}


class Starting:
    """An API server that does not know its roles yet, so often."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.made: list[str] = []

    async def request(self, method: str, path: str, body: dict[str, Any], *more: Any) -> dict[str, Any]:
        if self.refusals:
            self.refusals -= 1
            raise ApiError(403, "Forbidden", 'User "launcher" cannot create resource "jobs"')
        self.made.append(body["metadata"]["name"])
        return body


def test_a_refusal_by_an_api_server_that_has_just_started_costs_no_node() -> None:
    api = Starting(refusals=2)
    asyncio.run(Fleet(cast(Api, api), "ml", plan(template(), SHAPE)).start(NodeSpec(1, 1, 1)))
    assert (api.refusals, len(api.made)) == (0, 1)


def test_a_node_whose_job_is_made_after_a_list_is_not_gone() -> None:
    async def steps() -> None:
        api = Crossing()
        fleet = Fleet(cast(Api, api), "ml", plan(template(), SHAPE))
        running = asyncio.create_task(fleet.run())
        async with asyncio.timeout(PATIENCE):
            await fleet.start(NodeSpec(1, 1, 1))
            await api.looked.wait()  # the list's word alone would have it gone
            while not (told := fleet.take_exits()) and fleet.standings()[1].why == "its Job is being made":
                await asyncio.sleep(0)
        assert told == []
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(steps())
