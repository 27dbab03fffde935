"""Which numbers are used, for a launcher with a new work directory: the cluster knows nodes that nobody else does."""

from __future__ import annotations

import asyncio
from typing import Any

from elastic_launcher.engines import NodeSpec
from elastic_launcher.kube.api import Api
from tests.support.cluster.namespaces import PATIENCE
from tests.support.cluster.pausing_nodes import LOOK, cluster, names, pod_of

SLOW = {"name": "node", "imagePullPolicy": "IfNotPresent", "lifecycle": {"preStop": {"sleep": {"seconds": 15}}}}


async def get_pod(api: Api, space: str, node: int) -> dict[str, Any]:
    return await api.request("GET", f"/api/v1/namespaces/{space}/pods/{await pod_of(api, space, node)}")


def test_numbers_of_nodes_that_end_are_used_and_what_only_looks_like_a_node_is_left_alone() -> None:
    async def steps() -> None:
        async with cluster("numbers", containers=[SLOW]) as (api, name, make), asyncio.timeout(PATIENCE):
            jobs, pods = f"/apis/batch/v1/namespaces/{name}/jobs", f"/api/v1/namespaces/{name}/pods"
            first = make()
            await first.start(1, 2)
            for node in (1, 2):
                while not await names(api, f"{pods}?labelSelector=elastic-launcher/node={node}"):
                    await asyncio.sleep(LOOK)
                while (await get_pod(api, name, node))["status"]["phase"] != "Running":
                    await asyncio.sleep(LOOK)
            await asyncio.to_thread(first.engine.leave)
            one, other = await names(api, jobs)
            await api.request("DELETE", f"{pods}/{await pod_of(api, name, 1)}", {"gracePeriodSeconds": 1})
            while not (await api.request("GET", f"{jobs}/{one}"))["status"].get("conditions"):
                await asyncio.sleep(LOOK)  # the Job of a node that has ended
            job = await api.request("GET", f"{jobs}/{other}")
            copy = {"name": f"{other}-copy", **{key: job["metadata"][key] for key in ("labels", "annotations")}}
            spec = {"suspend": True, "template": {"spec": job["spec"]["template"]["spec"]}}
            await api.request("POST", jobs, {"metadata": copy, "spec": spec})
            await api.request("DELETE", f"{jobs}/{other}", {"propagationPolicy": "Background"})
            while "deletionTimestamp" not in (await get_pod(api, name, 2))["metadata"]:
                await asyncio.sleep(LOOK)  # the pod of a node whose Job has gone
            second = make()
            assert await asyncio.to_thread(second.engine.find) == []
            used = await asyncio.to_thread(second.engine.used)
            assert sorted(used, key=lambda spec: spec.node) == [NodeSpec(1, 1, 1), NodeSpec(2, 2, 1)]
            await asyncio.to_thread(second.engine.adopt, [])
            while await names(api, jobs) != [copy["name"]]:
                await asyncio.sleep(LOOK)

    asyncio.run(steps())
