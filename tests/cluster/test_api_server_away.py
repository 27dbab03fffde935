"""The API server goes and comes back: nodes train on under their coordinator, which follows the cluster afterwards.

It needs the machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.collection import Change, Collection, Snapshot, changes
from elastic_launcher.kube.follow import GONE
from elastic_launcher.kube.login import Login
from tests.support.cluster.command import act
from tests.support.cluster.ends import end_training
from tests.support.cluster.hints import create, data, edit
from tests.support.cluster.namespaces import PATIENCE, space
from tests.support.cluster.stage import HINTS, LONG, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.resizes import formed

FOLLOW = f"--hints=configmap/{HINTS}"
PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "away") as stage:
        yield stage


@contextmanager
def api_server_away() -> Iterator[None]:
    act("apiserver", "stop")
    try:
        yield
    finally:
        act("apiserver", "start")


def train_on(stage: Stage, steps: int = 20) -> None:
    """Waits until so many more steps are done."""
    done = stage.events.of("progress")[-1]["step"]
    stage.events.wait("progress", lambda event: event["step"] > done + steps, LONG)


def finish(stage: Stage) -> None:
    """Ends the training; fails unless it was the plain one, under one coordinator."""
    end_training(stage)
    assert len(stage.events.of("job_started")) == 1
    assert stage.events.of("coordinator_adopted") == []


def kill_rank(pod: dict[str, Any], member: int) -> int:
    """Kills a rank, as the machine's administrator: no API is needed for that; returns how many processes it was."""
    killed = 0
    wanted = {f"ELASTIC_POD={pod['metadata']['name']}".encode(), f"ELASTIC_MEMBER={member}".encode()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted <= set((process / "environ").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue  # it has ended meanwhile
    return killed


def test_a_job_trains_on_without_the_api_server_and_follows_its_hints_afterwards(stage: Stage) -> None:
    stage.allow(1)
    stage.launch("--nodes=1:2", FOLLOW, script=SCRIPT, argument=options(stage.folder, pace=PACE))
    first = formed(stage, 1, 0, LONG)
    before = stage.uids()
    with api_server_away():
        train_on(stage)
    stage.allow(2)
    second = formed(stage, 2, first["generation"], LONG)
    act("apiserver", "restart")
    stage.allow(1)
    formed(stage, 1, second["generation"], LONG)
    until(lambda: len(stage.nodes()) == 1, "the second node's pod is gone", LONG)
    assert stage.uids() == before
    finish(stage)
    assert [stage.events.of(kind) for kind in ("notice", "node_lost", "node_failed")] == [[], [], []]


@pytest.mark.thorough
def test_a_rank_that_dies_while_the_api_server_is_away_is_replaced_once_it_is_back(stage: Stage) -> None:
    stage.launch("--nodes=1:2", script=SCRIPT, argument=options(stage.folder, pace=PACE))
    first = formed(stage, 2, 0, LONG)
    before = stage.nodes()
    with api_server_away():
        assert kill_rank(before[2], member=2) == 1
        alone = formed(stage, 1, first["generation"], LONG)
        train_on(stage)
    formed(stage, 2, alone["generation"], LONG)
    until(lambda: 2 not in stage.nodes(), "the pod of the rank that died is gone", LONG)
    assert stage.uids()[1] == before[1]["metadata"]["uid"]
    finish(stage)


class Behind(Api):
    """An API whose first watch begins at a version that the server has forgotten.

    Args:
        login: The server.
        version: That version.

    Attributes:
        refused: How often the server said so.
    """

    def __init__(self, login: Login, version: str) -> None:
        super().__init__(login)
        self._version = version
        self.refused = 0

    async def watch(self, path: str, version: str, query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async for event in super().watch(path, version if self.refused else self._version, query):
                yield event
        except ApiError as error:
            self.refused += error.status == GONE
            raise


@pytest.mark.thorough
def test_a_watch_from_before_the_api_servers_restart_is_restarted_and_misses_nothing() -> None:
    async def version() -> str:
        """Returns one after which something else has happened."""
        async with space("past") as (api, name):
            found = await api.request("GET", f"/api/v1/namespaces/{name}/configmaps")
            return str(found["metadata"]["resourceVersion"])

    async def steps(forgotten: str) -> None:
        async with space("watch") as (admin, name), Behind(admin.login, forgotten) as api:
            await create(admin, name, 1)
            collection = Collection(f"/api/v1/namespaces/{name}/configmaps", name="hints")
            async with aclosing(changes(api, collection)) as found, asyncio.timeout(PATIENCE):
                assert isinstance(await anext(found), Snapshot)
                await edit(admin, name, 2)  # between the read and the watch
                read_again = await anext(found)
                assert api.refused == 1
                assert isinstance(read_again, Snapshot)
                assert read_again.objects[0]["data"] == data(2)["data"]
                await edit(admin, name, 3)
                assert isinstance(await anext(found), Change)

    forgotten = asyncio.run(version())
    act("apiserver", "restart")
    asyncio.run(steps(forgotten))
