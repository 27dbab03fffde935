"""What becomes of the hints of a whole job: broken, deleted, made again, and edited faster than anything can follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.kube.api import MERGE, Api
from elastic_launcher.kube.login import log_in
from tests.support.cluster.ends import finish
from tests.support.cluster.stage import HINTS, LONG, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.resizes import formed

FOLLOW = f"--hints=configmap/{HINTS}"
PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start
EDITS = 500
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "edited") as stage:
        yield stage


def launch(stage: Stage) -> None:
    stage.launch("--nodes=1:2", FOLLOW, script=SCRIPT, argument=options(stage.folder, pace=PACE))


def test_hints_that_break_or_vanish_leave_the_job_as_it_is_and_new_ones_are_followed(stage: Stage) -> None:
    stage.allow(1)
    launch(stage)
    first = formed(stage, 1, 0, LONG)
    before = stage.uids()
    stage.allow(-2)
    broken = stage.events.wait("hint_rejected", timeout=LONG)
    stage.delete("configmap", HINTS)
    missing = stage.events.wait("hint_missing", timeout=LONG)
    assert all("stays in force" in event["message"] for event in (broken, missing))
    assert '"allowed" is -2' in broken["message"]
    assert stage.uids() == before
    stage.allow(2)
    formed(stage, 2, first["generation"], LONG)
    assert before.items() <= stage.uids().items()
    finish(stage)
    assert [event["world_size"] for event in stage.events.of("generation_formed")] == [1, 2]


@pytest.mark.thorough
def test_a_job_ends_up_as_the_last_of_hundreds_of_edits_says(stage: Stage) -> None:
    stage.allow(2)
    launch(stage)
    first = formed(stage, 2, 0, LONG)
    before = stage.uids()
    asyncio.run(edit(stage, EDITS, last=1))
    second = formed(stage, 1, first["generation"], LONG)
    until(lambda: len(stage.nodes()) == 1, "the second node's pod is gone", LONG)
    asyncio.run(edit(stage, EDITS, last=2))
    formed(stage, 2, second["generation"], LONG)
    assert len(before.items() & stage.uids().items()) == 1, "the first node stays"
    finish(stage)


async def edit(stage: Stage, edits: int, last: int) -> None:
    """Changes the hints many times in a row; what they allow is another number of nodes in the last one alone."""
    path = f"/api/v1/namespaces/{stage.space}/configmaps/{HINTS}"
    was = 3 - last
    async with Api(log_in()) as api:
        for number in range(1, edits + 1):
            gpus = {"guaranteed": 0, "allowed": last if number == edits else was, "limit": 8 + number % 2}
            document = {"apiVersion": "elastic-hints/v1", "defaults": {"gpus": gpus, "growAfterSeconds": 0}}
            await api.request("PATCH", path, {"data": {"hints.json": json.dumps(document)}}, content_type=MERGE)
