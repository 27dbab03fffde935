"""A launcher with the rights of ``manifests/`` and no more: what it does with them, and what it says without."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.access.reviews import lacks
from elastic_launcher.engines.kubernetes.access.rights import needs_of, told
from elastic_launcher.engines.kubernetes.engine import KubernetesEngine
from elastic_launcher.engines.kubernetes.leadership.bootstrap import POD_VARIABLE, JobClaim, claim_job, inspect_cluster
from elastic_launcher.engines.kubernetes.leadership.leadership import Leadership
from elastic_launcher.engines.kubernetes.nodes.pod_status import Waiting
from elastic_launcher.engines.kubernetes.objects.names import Names, job_id
from elastic_launcher.kube.api import Api
from elastic_launcher.options import ConfigError
from tests.support.cluster.account import ACCOUNT, as_launcher
from tests.support.cluster.namespaces import LAUNCHER, PATIENCE, make_owner
from tests.support.cluster.pausing_nodes import Played
from tests.support.pod_templates import SHAPE, plan, template


async def make_step(admin: Api, space: str) -> dict[str, Any]:
    """Makes the pod of a launcher, which never runs."""
    pod = {"metadata": {"name": "step"}, "spec": LAUNCHER | {"serviceAccountName": ACCOUNT}}
    return await admin.request("POST", f"/api/v1/namespaces/{space}/pods", pod)


async def come(api: Api, space: str) -> JobClaim:
    """Takes the seat of the job that the pod `step` of a namespace stands for."""
    async with Api(replace(api.login, namespace=space)) as there:
        return await claim_job(there, await inspect_cluster(there, "digits"))


def test_a_launcher_with_the_rights_of_the_overlay_lacks_none() -> None:
    async def steps() -> None:
        async with as_launcher() as (admin, api, name):
            assert await lacks(api, needs_of(await make_step(admin, name))) == []

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("resource", "verb"), [("jobs", "delete"), ("pods", "get"), ("pods", "patch"), ("services", "watch")]
)
def test_a_launcher_without_a_verb_does_not_begin_and_names_it_with_what_grants_it(
    resource: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POD_VARIABLE, "step")

    async def steps() -> None:
        async with as_launcher(without=(resource, verb)) as (admin, api, name):
            await make_step(admin, name)
            with pytest.raises(ConfigError, match=rf"may not {verb} {resource}.*manifests/overlays/plain grants that$"):
                await come(api, name)

    asyncio.run(steps())


def test_a_launcher_that_may_make_no_secret_begins_and_says_where_its_key_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POD_VARIABLE, "step")

    async def steps() -> None:
        async with as_launcher(without=("secrets", "create")) as (admin, api, name):
            await make_step(admin, name)
            claim = await come(api, name)
            assert not claim.in_secret
            lacking = told(claim.context.account, claim.context.lacking)
            assert "may not create secrets" in lacking and "a value in the nodes' pods" in lacking

    asyncio.run(steps())


def test_a_launcher_needs_no_more_to_hold_its_seat() -> None:
    async def steps() -> None:
        async with as_launcher() as (admin, api, name):
            await make_step(admin, name)
            seat = Leadership(api, name, Names(job_id(name)))
            await seat.take(await make_owner(admin, name), {"control": 8080}, "step")
            await seat.publish({"step": 1})
            async with asyncio.timeout(PATIENCE), aclosing(seat.follow()) as records:
                assert (await anext(records)).status == {"step": 1}

    asyncio.run(steps())


def test_a_launcher_needs_no_more_to_start_nodes_and_to_end_them() -> None:
    async def steps() -> None:
        async with as_launcher() as (admin, api, name):
            nobodys = template(nodeSelector={"no-machine": "has-this"})
            made = replace(plan(nobodys, replace(SHAPE, key="00")), owner=await make_owner(admin, name))
            played = Played(KubernetesEngine(api.login, name, made))
            try:
                await played.start(1)
                assert isinstance(await played.standing(1, Waiting), Waiting)
                await asyncio.to_thread(played.engine.kill, 1)
                await played.exit(1)
            finally:
                await asyncio.to_thread(played.engine.close)

    asyncio.run(steps())
