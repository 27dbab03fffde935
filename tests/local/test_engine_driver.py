"""What the coordinator is told of a node's end, and when."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator

from elastic_launcher.coordinator.model.observations import AgentKilled, NodeExited, Observation
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.runtime.engine_driver import EngineDriver
from elastic_launcher.engines import NodeExit, NodeSpec
from tests.support.launches import PATIENCE

AGENT = [sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))"]


class SlowEngine:
    """An engine with one node, of which something is left until the test lets it go."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.all_gone = False

    def start(self, spec: NodeSpec) -> None:
        self.process = subprocess.Popen(AGENT, stdin=subprocess.PIPE)

    def agent(self, node: int) -> subprocess.Popen[bytes] | None:
        return self.process

    def poll(self) -> list[NodeExit]:
        if self.process is None or self.process.poll() is None or not self.all_gone:
            return []
        ended, self.process = self.process, None
        return [NodeExit(1, ended.returncode)]

    def close(self) -> None:
        assert self.process is None


class Told:
    """A driver under way: what it told, and the agent that it has started."""

    def __init__(self, engine: SlowEngine) -> None:
        self.engine = engine
        self._told: asyncio.Queue[Observation] = asyncio.Queue()
        exits = ((0, Exit(3)),)
        self.driver = EngineDriver(engine, self._told.put_nowait, lambda node: exits, time.monotonic)  # type: ignore[arg-type]

    async def agent(self) -> subprocess.Popen[bytes]:
        self.driver.put(NodeSpec(1, 1, 1))
        while (process := self.engine.process) is None:
            await asyncio.sleep(0)
        return process

    async def next(self) -> Observation:
        return await asyncio.wait_for(self._told.get(), PATIENCE)


@contextlib.asynccontextmanager
async def driven() -> AsyncIterator[Told]:
    told = Told(SlowEngine())
    running = asyncio.ensure_future(told.driver.run())
    try:
        yield told
    finally:
        running.cancel()
        await told.driver.close()


def test_an_agent_that_is_killed_is_told_of_before_the_last_of_its_node_is_gone() -> None:
    async def play() -> None:
        async with driven() as told:
            (await told.agent()).kill()
            killed = await told.next()
            assert isinstance(killed, AgentKilled)
            assert (killed.node, killed.signal, killed.ranks) == (1, signal.SIGKILL, ((0, Exit(3)),))
            told.engine.all_gone = True
            gone = await told.next()
            assert isinstance(gone, NodeExited) and gone.exit_code == -signal.SIGKILL

    asyncio.run(play())


def test_an_agent_that_ends_by_itself_is_told_of_with_the_whole_node() -> None:
    async def play() -> None:
        async with driven() as told:
            agent = await told.agent()
            await asyncio.to_thread(agent.communicate, b"x")
            told.engine.all_gone = True
            gone = await told.next()
            assert isinstance(gone, NodeExited) and gone.exit_code == 1

    asyncio.run(play())
