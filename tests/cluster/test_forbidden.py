"""What the API server forbids for now, and what machines refuse: nodes wait, and it is said why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Running
from elastic_launcher.kube.api import MERGE, Api
from elastic_launcher.kube.login import log_in
from tests.support.cluster.ends import end_training
from tests.support.cluster.pausing_nodes import LOOK, cluster
from tests.support.cluster.stage import HINTS, LONG, NAME, RULES, Stage, staged
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.resizes import formed

JOBS = "count/jobs.batch"
PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "forbidden") as stage:
        yield stage


def test_a_node_whose_job_a_quota_forbids_waits_and_runs_once_that_is_raised() -> None:
    async def steps() -> None:
        async with cluster("forbidden") as (api, name, make):
            quotas = f"/api/v1/namespaces/{name}/resourcequotas"
            await api.request("POST", quotas, {"metadata": {"name": "jobs"}, "spec": {"hard": {JOBS: "1"}}})
            while "used" not in (await api.request("GET", f"{quotas}/jobs")).get("status", {}):
                await asyncio.sleep(LOOK)
            played = make()
            await played.start(1, 2, 3)
            assert f"exceeded quota: jobs, requested: {JOBS}=1" in await played.why(2, Cause.QUOTA)
            await asyncio.to_thread(played.engine.kill, 2)
            assert (await played.exit(2)).taken
            await api.request("PATCH", f"{quotas}/jobs", {"spec": {"hard": {JOBS: "2"}}}, content_type=MERGE)
            await played.standing(3, Running)

    asyncio.run(steps())


@pytest.mark.thorough
def test_a_pod_that_its_machine_refuses_is_no_failure_and_the_next_is_made_after_a_pause() -> None:
    greedy = {"name": "node", "resources": {"requests": {"cpu": "1000"}, "limits": {"cpu": "1000"}}}

    async def steps() -> None:
        async with Api(log_in()) as api:
            machine = (await api.request("GET", "/api/v1/nodes"))["items"][0]["metadata"]["name"]
        # a named machine is no matter of the scheduler's, which would not have chosen it
        async with cluster("refused", nodeName=machine, containers=[greedy]) as (_, _, make):
            played = make()
            await played.start(1)
            gone = await played.exit(1)
            assert gone.taken and "OutOfcpu" in gone.why
            await played.start(2)
            assert "a machine did not take the last one: OutOfcpu" in await played.why(2, Cause.ROOM)
            assert (await played.exit(2)).taken

    asyncio.run(steps())


@pytest.mark.machine
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_rights_that_are_taken_away_are_said_once_and_so_is_their_return(stage: Stage) -> None:
    def grant(rules: list[dict[str, object]]) -> None:
        rbac = "rbac.authorization.k8s.io/v1"
        stage.apply({"apiVersion": rbac, "kind": "Role", "metadata": {"name": NAME}, "rules": rules})

    stage.allow(1)
    stage.launch("--nodes=1:2", f"--hints=configmap/{HINTS}", script=SCRIPT, argument=options(stage.folder, pace=PACE))
    first = formed(stage, 1, 0, LONG)
    grant([rule for rule in RULES if "jobs" not in rule["resources"]])
    told = stage.events.wait("warning", lambda event: "may not" in event["message"], LONG)["message"]
    assert "it may not create, delete, get, list, watch jobs.batch" in told
    assert "manifests/overlays/plain grants that; it was granted before, and is tried again" in told
    stage.allow(2)
    waits = stage.events.wait("warning", lambda event: "1 of 2 nodes pending" in event["message"], LONG)["message"]
    assert (
        'cannot create resource "jobs"' in waits and "Training goes on with 1; grant the launcher that right" in waits
    )
    grant(RULES)
    stage.events.wait("warning", lambda event: "jobs.batch" in event["message"] and "again" in event["message"], LONG)
    formed(stage, 2, first["generation"], LONG)
    end_training(stage)
    said = [event for event in stage.events.of("warning") if "may not create" in event["message"]]
    assert len(said) == 1 and stage.events.of("node_failed") == []
