"""What the API server says of what we make: a strict dry run on its side."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from elastic_launcher.engines.kubernetes.objects.job import node_job
from elastic_launcher.engines.kubernetes.objects.names import Names, job_id
from elastic_launcher.engines.kubernetes.objects.template import PodFields, template_of
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.login import log_in
from tests.support.cluster.namespaces import space
from tests.support.pod_templates import ALL_OF_A_POD, SHAPE, SPEC, TEMPLATES, contains, plan, template

DRY = {"dryRun": "All", "fieldValidation": "Strict"}
JOBS = "/apis/batch/v1/namespaces/default/jobs"


FIELDS: dict[str, Any] = {
    "image": "registry.example/train:3",
    "image_pull_secrets": ["pull"],
    "env": [{"name": "LR", "value": "0.1"}],
    "resources": {"limits": {"memory": "4Gi"}, "requests": {"cpu": "2"}},
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data"}],
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "node_selector": {"zone": "a"},
    "affinity": {"podAntiAffinity": {}},
    "labels": {"kueue.x-k8s.io/queue-name": "team-a"},
    "annotations": {"example.com/note": "x"},
    "priority_class": "low",
    "scheduler": "kai-scheduler",
    "runtime_class": "nvidia",
    "service_account": "trainer",
    "pod_security": {"fsGroup": 2000},
    "security": {"runAsUser": 1000},
}
"""One value for each field of a front; mounts need their volume."""


async def taken(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    """Returns a Job as the server would keep it."""
    return await api.request("POST", JOBS, job, DRY)


async def refusal(api: Api, job: dict[str, Any]) -> str:
    """Returns why a Job is refused; empty where it is not."""
    try:
        await taken(api, job)
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


@pytest.mark.parametrize("name", [one.name for one in fields(PodFields)])
def test_each_field_of_a_front_is_in_the_job_that_the_server_keeps(name: str) -> None:
    given = template_of(PodFields(**{key: FIELDS[key] for key in {name, "volumes"}}))

    async def steps() -> None:
        async with Api(log_in()) as api:
            kept = await taken(api, node_job(plan(given), SPEC))
            assert contains(kept["spec"]["template"], given)
            if name == "labels":
                assert contains(kept["metadata"]["labels"], FIELDS[name]), "a queue looks at the Job"

    asyncio.run(steps())


def test_all_that_a_template_may_say_is_in_the_job_that_the_server_keeps() -> None:
    async def steps() -> None:
        async with Api(log_in()) as api:
            kept = await taken(api, node_job(plan(ALL_OF_A_POD), SPEC))
            assert contains(kept["spec"]["template"], ALL_OF_A_POD)

    asyncio.run(steps())


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
