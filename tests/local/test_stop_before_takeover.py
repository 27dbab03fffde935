"""A coordinator that is told to go while it still learns where its job stands."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator import Coordinator
from elastic_launcher.coordinator.model.observations import StopAsked
from elastic_launcher.coordinator.resume.orphans import Takeover
from elastic_launcher.coordinator.resume.resume_point import Origin, find_origin
from elastic_launcher.coordinator.runtime.platform import JobControl
from elastic_launcher.events import Event
from elastic_launcher.workdir import Layout, Past
from tests.support.played_coordinator import Log, NoStore
from tests.support.played_members import PATIENCE, Play, PlayedEngine

RUN = [
    Event("job_started", 100.0, 0, {"resumed_step": None}),
    Event("node_started", 101.0, 0, {"node": 1, "members": [1]}),
    Event("node_warm", 102.0, 0, {"node": 1}),
]


class PlayedPlatform:
    """Tells the test when it begins, and does what the test says when a signal comes."""

    def __init__(self, answer: Callable[[JobControl], None]) -> None:
        self.began = asyncio.Event()
        self._answer = answer

    async def run(self, job: JobControl) -> None:
        self.began.set()
        job.note("warning", message="1 of 1 nodes pending")
        await asyncio.Event().wait()

    async def signalled(self, job: JobControl) -> None:
        self._answer(job)


class OneNode:
    """Node 1 lives, and has not told yet where it stands."""

    def __init__(self) -> None:
        self.lives = True

    def living(self) -> list[int]:
        return [1] if self.lives else []

    def take(self) -> list[int]:
        return self.living()


def come_back(folder: Path, platform: PlayedPlatform, nodes: OneNode, log: Log) -> Coordinator:
    """Returns the coordinator of a job that another one has left, which waits long for what its node has to say."""
    for name in ("logs", "nodes"):
        (folder / name).mkdir()
    config = JobConfig(script="train.py", orphan_timeout=300.0, heartbeat_timeout=300.0)
    layout, past = Layout(folder), Past(term=2, first_node=2, first_member=2)
    find_origin(config, layout, Past(), lambda line: None)
    takeover = Takeover(config, layout, past, RUN, nodes, lambda: Origin(past))
    engine = PlayedEngine(folder, Play())
    return Coordinator(config, folder, engine, log, store=NoStore(), platform=platform, takeover=takeover)


def test_it_leaves_at_once_and_leaves_the_nodes_alone(tmp_path: Path) -> None:
    async def steps() -> tuple[int, list[str], Log]:
        left: list[str] = []
        log = Log()
        platform = PlayedPlatform(lambda job: job.leave("its pod is being moved", lambda: left.append("the nodes")))
        coordinator = come_back(tmp_path, platform, OneNode(), log)
        async with asyncio.timeout(PATIENCE):
            running = asyncio.ensure_future(coordinator.run())
            await platform.began.wait()
            coordinator.interrupt(signal.SIGTERM)
            return await running, left, log

    code, left, log = asyncio.run(steps())
    assert (code, left) == (75, ["the nodes"])
    assert log.all == [], "nothing is said of a job of which nothing is known"


def test_what_it_sees_before_is_said_and_done_in_time_when_it_knows(tmp_path: Path) -> None:
    async def steps() -> tuple[int, Log]:
        made: list[float] = []

        def stop(now: float) -> StopAsked:
            made.append(now)
            return StopAsked(now, "stopped: SIGTERM", 30.0)

        log, nodes = Log(), OneNode()
        platform = PlayedPlatform(lambda job: job.observe(stop))
        coordinator = come_back(tmp_path, platform, nodes, log)
        async with asyncio.timeout(PATIENCE):
            running = asyncio.ensure_future(coordinator.run())
            await platform.began.wait()
            coordinator.interrupt(signal.SIGTERM)
            while not made:
                await asyncio.sleep(0)
            assert log.all == [], "it is not known yet where the job stands"
            nodes.lives = False
            return await running, log

    code, log = asyncio.run(steps())
    assert code == 75
    assert [event["kind"] for event in log.all] == ["job_started", "warning", "job_finished"]


@pytest.mark.parametrize("wrong", ["platform", "takeover"])
def test_what_goes_wrong_meanwhile_ends_it(tmp_path: Path, wrong: str) -> None:
    class Failing(PlayedPlatform):
        async def run(self, job: JobControl) -> None:
            raise RuntimeError("the cluster answers nonsense")

    class NoNode(OneNode):
        def living(self) -> list[int]:
            raise RuntimeError("the cluster answers nonsense")

    async def steps() -> tuple[int, str]:
        platform = Failing(lambda job: None) if wrong == "platform" else PlayedPlatform(lambda job: None)
        nodes = NoNode() if wrong == "takeover" else OneNode()
        coordinator = come_back(tmp_path, platform, nodes, Log())
        async with asyncio.timeout(PATIENCE):
            return await coordinator.run(), coordinator.message

    code, message = asyncio.run(steps())
    assert code == 70 and "RuntimeError: the cluster answers nonsense" in message
