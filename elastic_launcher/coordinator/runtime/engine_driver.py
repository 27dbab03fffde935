"""Calls the engine in a thread, since it may search the whole machine: starts, kills, and ends of nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from subprocess import Popen
from typing import Any, TypeVar

from elastic_launcher.coordinator.model.actions import KillNode
from elastic_launcher.coordinator.model.observations import AgentKilled, NodeExited, NodeNotStarted, Observation
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.engines import Engine, EngineAway, NodeExit, NodeSpec

POLL_SECONDS = 0.05  # between looks at the engine's nodes

Answer = TypeVar("Answer")


class EngineDriver:
    """Passes commands to an engine, one after the other, and its results to the coordinator.

    Args:
        engine: Creates and ends nodes.
        observe: Takes what happened.
        exits: Returns how a node's processes ended, by local rank, as far as they have.
        monotonic: The clock of observations.
    """

    def __init__(
        self,
        engine: Engine,
        observe: Callable[[Observation], None],
        exits: Callable[[int], tuple[tuple[int, Exit], ...]],
        monotonic: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._observe = observe
        self._exits = exits
        self._monotonic = monotonic
        self._thread = ThreadPoolExecutor(1, "engine")
        self._commands: asyncio.Queue[NodeSpec | KillNode] = asyncio.Queue()
        self._nodes: set[int] = set()
        self._none = asyncio.Event()
        self._watched: set[int] = set()

    def adopt(self, nodes: Iterable[int]) -> None:
        """Takes nodes for its own that an earlier launcher has started; the engine has them already."""
        self._nodes |= {*nodes}

    def put(self, command: NodeSpec | KillNode) -> None:
        """Has a node started or killed, after the commands before it."""
        if isinstance(command, NodeSpec):
            self._nodes.add(command.node)
        self._commands.put_nowait(command)

    async def run(self) -> None:
        """Executes commands and reports ended nodes, until it is cancelled."""
        while True:
            command: NodeSpec | KillNode | None = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    command = await self._commands.get()
            match command:
                case NodeSpec():
                    await self._start(command)
                case KillNode():
                    await self.call(self._engine.kill, command.node)
            for gone in await self.call(self._engine.poll):
                if not gone.again:
                    self._nodes.discard(gone.node)
                self._observe(self._exited(gone))
            if not self._nodes and self._commands.empty():
                self._none.set()

    def _exited(self, gone: NodeExit) -> NodeExited:
        ranks = self._exits(gone.node)
        how = gone.exit_code, ranks, gone.why, gone.taken, gone.last_line, gone.again, gone.pod
        return NodeExited(self._monotonic(), gone.node, *how)

    async def end_all(self) -> None:
        """Kills all nodes that run, or are about to, and waits until they are gone."""
        self._none.clear()
        for node in self._nodes:
            self.put(KillNode(node))
        await self._none.wait()

    async def close(self, leave: Callable[[], None] | None = None) -> None:
        """Ends all nodes, or lets go of them by ``leave``, after what the engine does at the moment."""
        await self.call(leave or self._engine.close)
        for descriptor in [*self._watched]:
            self._unwatch(descriptor)
        self._thread.shutdown(wait=False)

    async def _start(self, command: NodeSpec) -> None:
        try:
            await self.call(self._engine.start, command)
        except OSError as error:
            self._nodes.discard(command.node)
            away = isinstance(error, EngineAway)
            self._observe(NodeNotStarted(self._monotonic(), command.node, str(error), away))
        else:
            self._watch(command.node)

    def _watch(self, node: int) -> None:
        """Reports at once a signal that ends a node's agent: peers notice only the end of its last rank."""
        agent = self._engine.agent(node)
        if agent is None:
            return
        try:
            descriptor = os.pidfd_open(agent.pid)
        except OSError:  # too many open files: `poll` reports its end all the same
            return
        self._watched.add(descriptor)
        asyncio.get_running_loop().add_reader(descriptor, self._agent_ended, node, agent, descriptor)

    def _agent_ended(self, node: int, agent: Popen[bytes], descriptor: int) -> None:
        self._unwatch(descriptor)
        if (code := agent.wait()) < 0:  # one that ends by itself has reported how its ranks ended
            self._observe(AgentKilled(self._monotonic(), node, -code, self._exits(node)))

    def _unwatch(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        self._watched.discard(descriptor)
        os.close(descriptor)

    async def call(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Returns what a call returns that has to do with nodes, and is not made while another one is."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
