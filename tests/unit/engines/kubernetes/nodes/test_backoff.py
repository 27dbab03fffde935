"""Machines that refuse pods, or can't start their containers: the next nodes come later, or keep off them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Running, Waiting
from tests.support.fleets import Full, following


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.engines.kubernetes.nodes.fleet.ASK_AGAIN_SECONDS", 0.01)


def test_after_a_machine_has_refused_a_pod_the_next_waits_and_then_keeps_off_it() -> None:
    async def steps() -> None:
        api = Full(refusals=1)
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            while not (told := fleet.take_exits()):
                await asyncio.sleep(0.01)
            assert told[0].taken
            await fleet.start(NodeSpec(2, 2, 1))
            held = Waiting(Cause.ROOM, "a machine did not take the last one: OutOfpods: Pod was rejected: no room")
            assert (fleet.standings(), len(api.made)) == ({2: held}, 1)
            while not isinstance(fleet.standings()[2], Running):
                await asyncio.sleep(0.01)

    asyncio.run(steps())


class Broken(Full):
    """An API whose only machine can't start containers."""

    def next_state(self) -> dict[str, Any]:
        why = {"exitCode": 128, "reason": "StartError", "message": "nvidia-container-cli: initialization error"}
        return {"phase": "Failed", "containerStatuses": [{"name": "node", "state": {"terminated": why}}]}

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        if method == "POST":
            self.affinities.append(body["spec"]["template"]["spec"].get("affinity"))
        return await super().request(method, path, body, *more, **query)

    def __init__(self) -> None:
        super().__init__(refusals=0)
        self.affinities: list[Any] = []


def test_a_machine_that_could_not_start_a_container_is_kept_off_by_the_next_node() -> None:
    async def steps() -> None:
        api = Broken()
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            while not (told := fleet.take_exits()):
                await asyncio.sleep(0.01)
            assert told[0].taken
            await fleet.start(NodeSpec(2, 2, 1))
            why = "StartError: nvidia-container-cli: initialization error"
            assert fleet.standings() == {2: Waiting(Cause.ROOM, f"a machine did not take the last one: {why}")}
            while len(api.affinities) < 2:
                await asyncio.sleep(0.01)
            first, second = api.affinities
            assert first is None and "m-1" in str(second["nodeAffinity"]), second

    asyncio.run(steps())
