"""A node's Job that is made only after others were listed: its node is none that has gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.nodes.fleet import Fleet
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Waiting
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.follow import GONE
from elastic_launcher.kube.login import Login
from tests.support.cluster.account import as_launcher
from tests.support.cluster.namespaces import PATIENCE, make_owner
from tests.support.pod_templates import SHAPE, plan, template

LOOK = 0.05


class Late(Api):
    """An API that takes a Job only after Jobs were listed once more, as one that comes back after an absence may.

    Args:
        login: The server.
    """

    def __init__(self, login: Login) -> None:
        super().__init__(login)
        self._watches = 0
        self._asked = asyncio.Event()
        self._listed = asyncio.Event()

    async def request(self, method: str, path: str, *args: Any, **more: Any) -> dict[str, Any]:
        if method == "POST" and path.endswith("/jobs"):
            self._asked.set()
            await self._listed.wait()
        return await super().request(method, path, *args, **more)

    async def watch(self, path: str, version: str, query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        if path.endswith("/jobs"):
            self._watches += 1
            await self._asked.wait()
            if self._watches == 1:
                raise ApiError(GONE, "Expired", "too old resource version")
            self._listed.set()
        async for event in super().watch(path, version, query):
            yield event


def test_a_node_whose_job_is_made_after_a_list_is_not_gone() -> None:
    async def steps() -> None:
        async with as_launcher() as (admin, launcher, name), Late(launcher.login) as api:
            nobodys = template(nodeSelector={"no-machine": "has-this"})
            made = replace(plan(nobodys, replace(SHAPE, key="00")), owner=await make_owner(admin, name))
            fleet = Fleet(api, name, made)
            running = asyncio.create_task(fleet.run())
            try:
                async with asyncio.timeout(PATIENCE):
                    await fleet.start(NodeSpec(1, 1, 1))
                    while not isinstance(found := fleet.standings().get(1), Waiting) or found.cause is Cause.STARTING:
                        assert fleet.take_exits() == []
                        await asyncio.sleep(LOOK)
                assert found.cause is Cause.ROOM
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running

    asyncio.run(steps())
