"""What the API server says of what we make: a strict dry run on its side."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from elastic_launcher.engines.kubernetes.identity import Names, job_id
from elastic_launcher.engines.kubernetes.job import node_job
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.login import log_in
from tests.cluster.spaces import space
from tests.unit.kubernetes.templates import SHAPE, SPEC, TEMPLATES, plan, template

DRY = {"dryRun": "All", "fieldValidation": "Strict"}
JOBS = "/apis/batch/v1/namespaces/default/jobs"


async def refusal(api: Api, job: dict[str, Any]) -> str:
    """Returns why a Job is refused; empty where it is not."""
    try:
        await api.request("POST", JOBS, job, DRY)
    except ApiError as error:
        if error.status == 0:
            raise
        return str(error)
    return ""


def as_the_user_would(given: dict[str, Any]) -> dict[str, Any]:
    """Returns a Job of nothing but the template, and an image where it names none for the node."""
    pod = copy.deepcopy(given)
    pod["spec"]["containers"] = pod["spec"].get("containers") or [{"name": "node"}]
    pod["spec"]["containers"][0].setdefault("image", SHAPE.image)
    pod["spec"]["restartPolicy"] = "Never"
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "users"}, "spec": {"template": pod}}


@settings(max_examples=100, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(TEMPLATES)
def test_whatever_the_server_takes_from_the_user_it_takes_from_us(given: dict[str, Any]) -> None:
    async def both() -> None:
        async with Api(log_in()) as api:
            if not await refusal(api, as_the_user_would(given)):
                assert await refusal(api, node_job(plan(given), SPEC)) == ""

    asyncio.run(both())


def test_a_node_is_admitted_where_only_restricted_pods_are() -> None:
    async def steps() -> None:
        async with space("restricted") as (api, name):
            for shape in (SHAPE, replace(SHAPE, key="00ff"), replace(SHAPE, run_as_user=65532)):
                made = node_job(plan(template(), shape), SPEC)["spec"]["template"]
                pod = {"metadata": made["metadata"] | {"name": "node"}, "spec": made["spec"]}
                admitted = await api.request("POST", f"/api/v1/namespaces/{name}/pods", pod, DRY)
                assert admitted["status"]["phase"] == "Pending"

    asyncio.run(steps())


def test_the_longest_names_are_taken() -> None:
    async def steps() -> None:
        names = Names(job_id("run", "task", "0", name="a" * 80))
        async with Api(log_in()) as api:
            job = node_job(replace(plan(template()), names=names), replace(SPEC, node=10**6))
            assert await refusal(api, job) == ""
            ports = [{"port": 8080}]
            service = {"metadata": {"name": names.service}, "spec": {"ports": ports}}
            await api.request("POST", "/api/v1/namespaces/default/services", service, DRY)

    asyncio.run(steps())
