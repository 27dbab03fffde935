"""The coordinator's seat on a real API server: one holds it, and the one before learns of it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.leadership.leadership import Leadership, LeadershipLost, ServiceDeleted
from elastic_launcher.engines.kubernetes.objects.service import STOP, coordinator_labels
from elastic_launcher.kube.api import MERGE, Api
from tests.support.cluster.launchers import NAMES, PORTS, make_pod
from tests.support.cluster.namespaces import PATIENCE, make_owner, space


async def service(api: Api, space: str) -> dict[str, Any]:
    return await api.request("GET", f"/api/v1/namespaces/{space}/services/{NAMES.service}")


def test_each_new_leader_has_the_same_address_and_the_one_before_writes_no_more() -> None:
    async def steps() -> None:
        async with space("seat") as (api, name):
            owner = await make_owner(api, name)
            seats = [Leadership(api, name, NAMES) for _ in range(3)]
            records = []
            for number, seat in enumerate(seats):
                await make_pod(api, name, f"step-{number}")
                records.append(await seat.take(owner, PORTS, f"step-{number}"))
                await seat.publish({"step": number})
            assert [one.term for one in records] == [1, 2, 3]
            assert records[2].status == {"step": 1}
            assert len({one.address for one in records}) == 1
            selector = (await service(api, name))["spec"]["selector"]
            assert selector == coordinator_labels(NAMES, 3)
            labels = {"labelSelector": ",".join(f"{key}={value}" for key, value in selector.items())}
            led_to = (await api.request("GET", f"/api/v1/namespaces/{name}/pods", query=labels))["items"]
            assert [pod["metadata"]["name"] for pod in led_to] == ["step-2"]
            for seat in seats[:2]:
                with pytest.raises(LeadershipLost, match="term 3"):
                    await seat.publish({"step": 99})
            await seats[2].publish({"step": 3})

    asyncio.run(steps())


def test_of_those_who_come_at_once_each_has_a_term_of_its_own() -> None:
    async def steps() -> None:
        async with space("seat") as (api, name):
            owner = await make_owner(api, name)
            await asyncio.gather(*(make_pod(api, name, f"step-{number}") for number in range(4)))
            seats = [Leadership(api, name, NAMES) for _ in range(4)]
            taken = await asyncio.gather(*(seat.take(owner, PORTS, f"step-{n}") for n, seat in enumerate(seats)))
            assert sorted(one.term for one in taken) == [1, 2, 3, 4]

    asyncio.run(steps())


def test_who_holds_the_seat_sees_that_it_is_to_stop_and_that_it_is_deposed() -> None:
    async def steps() -> None:
        async with space("seat") as (api, name):
            owner = await make_owner(api, name)
            await make_pod(api, name, "step-0")
            seat = Leadership(api, name, NAMES)
            await seat.take(owner, PORTS, "step-0")
            async with aclosing(seat.follow()) as records, asyncio.timeout(PATIENCE):
                assert (await anext(records)).stop == ""
                note = {"metadata": {"annotations": {STOP: "by anna"}}}
                path = f"/api/v1/namespaces/{name}/services/{NAMES.service}"
                await api.request("PATCH", path, note, content_type=MERGE)
                assert (await anext(records)).stop == "by anna"
                await seat.publish({"step": 1})  # the edit of others is no reign of others
                await make_pod(api, name, "step-1")
                await Leadership(api, name, NAMES).take(owner, PORTS, "step-1")
                with pytest.raises(LeadershipLost, match="another coordinator governs"):
                    while True:
                        await anext(records)

    asyncio.run(steps())


def test_a_service_that_was_deleted_is_missed_and_made_again_at_its_address_once() -> None:
    async def steps() -> None:
        async with space("seat") as (api, name):
            owner = await make_owner(api, name)
            await make_pod(api, name, "step-0")
            seat = Leadership(api, name, NAMES)
            before = await seat.take(owner, PORTS, "step-0")
            async with aclosing(seat.follow()) as records, asyncio.timeout(PATIENCE):
                await anext(records)
                await api.request("DELETE", f"/api/v1/namespaces/{name}/services/{NAMES.service}")
                with pytest.raises(ServiceDeleted, match="was deleted"):
                    await anext(records)
            await seat.restore(owner, PORTS)
            assert (seat.record.address, seat.record.term) == (before.address, before.term)
            assert (await service(api, name))["spec"]["selector"] == coordinator_labels(NAMES, before.term)
            await seat.publish({"step": 7})
            with pytest.raises(LeadershipLost, match="another coordinator has recreated Service"):
                await seat.restore(owner, PORTS)

    asyncio.run(steps())
