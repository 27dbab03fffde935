"""Stopped or moved, as a real API server shows it to the launcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.leadership.owner_state import Order, Verdict
from elastic_launcher.engines.kubernetes.leadership.owner_watch import OwnerWatch
from elastic_launcher.kube.api import MERGE, Api
from tests.support.cluster.namespaces import LAUNCHER, PATIENCE, space
from tests.support.cluster.workflow_kind import WORKFLOW, workflows_known


@asynccontextmanager
async def following(api: Api, pod: dict[str, Any]) -> AsyncIterator[tuple[OwnerWatch, asyncio.Queue[Verdict]]]:
    told: asyncio.Queue[Verdict] = asyncio.Queue()
    succession = OwnerWatch(pod)
    task = asyncio.create_task(succession.run(api, told.put_nowait))
    try:
        yield succession, told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="module", autouse=True)
def workflow_kind() -> Iterator[None]:
    with workflows_known():
        yield


async def make_workflow(api: Api, space: str) -> dict[str, Any]:
    """Makes a Workflow."""
    return await api.request("POST", workflows(space), WORKFLOW)


def workflows(space: str) -> str:
    return f"/apis/argoproj.io/v1alpha1/namespaces/{space}/workflows"


async def make_step(api: Api, space: str, owner: dict[str, Any] | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "step"}
    if owner is not None:
        named = {key: owner[key] for key in ("apiVersion", "kind")}
        metadata["ownerReferences"] = [
            {**named, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": True}
        ]
    return await api.request("POST", f"/api/v1/namespaces/{space}/pods", {"metadata": metadata, "spec": LAUNCHER})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shutdown": "Terminate"}, "Workflow train was told to shut down (Terminate)"),
        ({"activeDeadlineSeconds": 0}, "Workflow train was terminated"),
    ],
)
def test_a_workflow_that_is_stopped_is_seen_without_a_signal(change: dict[str, Any], why: str) -> None:
    async def steps() -> None:
        async with space("stopped") as (api, name):
            pod = await make_step(api, name, await make_workflow(api, name))
            async with following(api, pod) as (_, told):
                await api.request("PATCH", f"{workflows(name)}/train", {"spec": change}, content_type=MERGE)
                assert await asyncio.wait_for(told.get(), PATIENCE) == Verdict(Order.STOP, why)

    asyncio.run(steps())


def test_a_workflow_that_is_deleted_is_seen_without_a_signal() -> None:
    async def steps() -> None:
        async with space("stopped") as (api, name):
            pod = await make_step(api, name, await make_workflow(api, name))
            async with following(api, pod) as (succession, told):
                await known(succession)
                await api.request("DELETE", f"{workflows(name)}/train", {"propagationPolicy": "Background"})
                assert (await asyncio.wait_for(told.get(), PATIENCE)).order is Order.STOP

    asyncio.run(steps())


async def known(succession: OwnerWatch) -> None:
    """Waits until the owner was seen: before, a signal means a stop for want of knowledge."""
    async with asyncio.timeout(PATIENCE):
        while "can't be read" in (await succession.signalled()).why:
            pass


def test_a_step_that_is_evicted_hands_over_while_its_workflow_lives() -> None:
    async def steps() -> None:
        async with space("moved") as (api, name):
            pod = await make_step(api, name, await make_workflow(api, name))
            async with following(api, pod) as (succession, told):
                await known(succession)
                assert (await succession.signalled()).order is Order.STOP  # nothing is being deleted
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "step"}}
                await api.request("POST", f"/api/v1/namespaces/{name}/pods/step/eviction", eviction)
                assert (await succession.signalled()).order is Order.HAND_OVER
                assert told.empty()

    asyncio.run(steps())


def test_a_pod_of_its_own_has_no_successor() -> None:
    async def steps() -> None:
        async with space("moved") as (api, name):
            pod = await make_step(api, name, None)
            async with following(api, pod) as (succession, told):
                await known(succession)
                await api.request("DELETE", f"/api/v1/namespaces/{name}/pods/step")
                assert (await succession.signalled()).order is Order.STOP

    asyncio.run(steps())
