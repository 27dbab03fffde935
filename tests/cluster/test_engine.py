"""The engine on a real cluster: nodes that run, wait, are told to go, are taken, and are forgotten.

What it runs is no agent, but the smallest program that ends when told to: ELASTIC_TEST_IMAGE, whose /pause it is.
"""

from __future__ import annotations

import asyncio

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Running
from elastic_launcher.engines.kubernetes.objects.names import job_id
from elastic_launcher.kube.api import MERGE
from tests.support.cluster.namespaces import PATIENCE
from tests.support.cluster.pausing_nodes import LOOK, cluster, names, pod_of

GPU = "nvidia.com/gpu"


def test_nodes_run_and_end_and_nothing_is_left() -> None:
    async def steps() -> None:
        async with cluster("engine") as (api, name, make):
            played = make()
            await played.start(1, 2)
            running = await played.standing(1, Running)
            assert running.pod
            await played.standing(2, Running)
            await asyncio.to_thread(played.engine.notice, 1)
            assert (await played.exit(1)).exit_code == 0
            assert isinstance((await played.look())[2], Running)
            await asyncio.to_thread(played.engine.close)
            async with asyncio.timeout(PATIENCE):
                for path in (f"/apis/batch/v1/namespaces/{name}/jobs", f"/api/v1/namespaces/{name}/pods"):
                    while await names(api, path):
                        await asyncio.sleep(LOOK)

    asyncio.run(steps())


def test_a_killed_node_is_gone() -> None:
    async def steps() -> None:
        async with cluster("engine") as (_, _, make):
            played = make()
            await played.start(1)
            await played.standing(1, Running)
            await asyncio.to_thread(played.engine.kill, 1)
            await asyncio.to_thread(played.engine.kill, 1)  # twice is once
            await played.exit(1)
            assert await played.look() == {}

    asyncio.run(steps())


def test_a_killed_node_that_would_take_its_time_is_ended_by_its_machine_at_once() -> None:
    slow = {"name": "node", "imagePullPolicy": "IfNotPresent", "lifecycle": {"preStop": {"sleep": {"seconds": 15}}}}

    async def steps() -> None:
        async with cluster("engine", containers=[slow]) as (_, _, make):
            played = make()
            await played.start(1)
            await played.standing(1, Running)
            await asyncio.to_thread(played.engine.kill, 1)
            assert (await played.exit(1)).exit_code is not None, "the API forgot it while it ran"

    asyncio.run(steps())


def test_an_evicted_node_is_told_and_is_not_made_again() -> None:
    async def steps() -> None:
        async with cluster("engine") as (api, name, make):
            played = make()
            await played.start(1)
            await played.standing(1, Running)
            pod = await pod_of(api, name, 1)
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": name}}
            await api.request("POST", f"/api/v1/namespaces/{name}/pods/{pod}/eviction", eviction)
            assert "evict" in (await played.exit(1)).why.lower()
            await played.start(2)
            await played.standing(2, Running)
            assert await names(api, f"/apis/batch/v1/namespaces/{name}/jobs") == [f"{job_id(name, name='pausing')}-2"]

    asyncio.run(steps())


def test_a_launcher_that_comes_back_goes_on_with_its_nodes() -> None:
    async def steps() -> None:
        async with cluster("engine") as (_, _, make):
            first = make()
            await first.start(1, 2)
            await first.standing(1, Running)
            await first.standing(2, Running)
            await asyncio.to_thread(first.engine.leave)
            second = make()
            found = await asyncio.to_thread(second.engine.find)
            assert found == [NodeSpec(1, 1, 1), NodeSpec(2, 2, 1)]
            await asyncio.to_thread(second.engine.adopt, found[:1])  # the other belongs to nobody any more
            assert isinstance((await second.look())[1], Running)
            assert set(await second.look()) == {1}
            third = make()
            while len(await asyncio.to_thread(third.engine.find)) > 1:
                await asyncio.sleep(LOOK)
            await asyncio.to_thread(third.engine.leave)

    asyncio.run(steps())


def test_why_a_node_waits_is_said_and_it_runs_once_it_can() -> None:
    async def steps() -> None:
        async with cluster("engine") as (api, name, make):
            quotas = f"/api/v1/namespaces/{name}/resourcequotas"
            hard = {"spec": {"hard": {f"requests.{GPU}": "1"}}}
            await api.request("POST", quotas, {"metadata": {"name": "gpus"}, **hard})
            while "hard" not in (await api.request("GET", f"{quotas}/gpus")).get("status", {}):
                await asyncio.sleep(LOOK)
            played = make()
            await played.start(1, 2)
            one = asyncio.ensure_future(played.standing(1, Running))
            other = asyncio.ensure_future(played.standing(2, Running))
            done, _ = await asyncio.wait({one, other}, return_when=asyncio.FIRST_COMPLETED)
            node = 2 if one in done else 1
            assert f"exceeded quota: gpus, requested: requests.{GPU}=1" in await played.why(node, Cause.QUOTA)
            await api.request(
                "PATCH", f"{quotas}/gpus", {"spec": {"hard": {f"requests.{GPU}": "2"}}}, content_type=MERGE
            )
            await asyncio.gather(one, other)

    asyncio.run(steps())


def test_a_node_that_no_machine_has_room_for_says_so() -> None:
    async def steps() -> None:
        async with cluster("engine", nodeSelector={"no-machine": "has-this"}) as (_, _, make):
            played = make()
            await played.start(1)
            assert "node affinity/selector" in await played.why(1, Cause.ROOM)
            await asyncio.to_thread(played.engine.kill, 1)
            assert (await played.exit(1)).exit_code is None

    asyncio.run(steps())


def test_a_queue_that_suspends_a_job_takes_its_node_back() -> None:
    async def steps() -> None:
        async with cluster("engine") as (api, name, make):
            played = make()
            await played.start(1)
            await played.standing(1, Running)
            job = f"/apis/batch/v1/namespaces/{name}/jobs/{job_id(name, name='pausing')}-1"
            await api.request("PATCH", job, {"spec": {"suspend": True}}, content_type=MERGE)
            back = await played.exit(1)
            assert back.taken and back.again, "it is no more lost than ended: the same Job may be admitted again"
            await played.start(2)
            await played.standing(2, Running)
            await api.request("PATCH", job, {"spec": {"suspend": False}}, content_type=MERGE)
            await played.standing(1, Running)
            assert set(await played.look()) == {1, 2}

    asyncio.run(steps())


def test_a_job_that_a_queue_holds_back_waits_for_admission() -> None:
    async def steps() -> None:
        async with cluster("engine") as (api, name, make):
            played = make()
            quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}  # or else it runs before it is held
            await api.request("POST", f"/api/v1/namespaces/{name}/resourcequotas", quota)
            await played.start(1)
            job = f"/apis/batch/v1/namespaces/{name}/jobs/{job_id(name, name='pausing')}-1"
            await api.request("PATCH", job, {"spec": {"suspend": True}}, content_type=MERGE)
            assert "suspended" in await played.why(1, Cause.ADMISSION)
            await api.request("DELETE", f"/api/v1/namespaces/{name}/resourcequotas/none")
            await api.request("PATCH", job, {"spec": {"suspend": False}}, content_type=MERGE)
            await played.standing(1, Running)

    asyncio.run(steps())
