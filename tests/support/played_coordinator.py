"""A whole coordinator over members that only play training."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator import Coordinator
from elastic_launcher.coordinator.runtime.endpoints import CoordinatorHost
from elastic_launcher.coordinator.runtime.store import Store
from tests.support.played_members import PATIENCE, Play, PlayedEngine


class Log:
    """Events, with a way to wait for one."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._more = asyncio.Event()

    def append(self, kind: str, generation: int, **fields: Any) -> dict[str, Any]:
        self.all.append({"kind": kind, "generation": generation, **fields})
        self._more.set()
        return self.all[-1]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.all if event["kind"] == kind]

    async def wait(self, test: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                for event in self.all:
                    if test(event):
                        return event
                self._more.clear()
                await self._more.wait()

    async def size(self, world_size: int) -> None:
        await self.wait(lambda event: event["kind"] == "generation_formed" and event["world_size"] == world_size)


class NoStore(Store):
    """A store without torch: the played members never look into it."""

    async def serve(self) -> None:
        return


class Job:
    """A coordinator under test."""

    def __init__(
        self,
        folder: Path,
        nodes: str = "1:1",
        nproc: int = 1,
        engine: Any = None,
        store: Any = None,
        home: CoordinatorHost | None = None,
        **options: Any,
    ) -> None:
        for name in ("logs", "nodes"):
            (folder / name).mkdir()
        self.folder = folder
        self.play, self.log = Play(), Log()
        self.engine = engine or PlayedEngine(folder, self.play)
        least, most = (int(text) for text in nodes.split(":"))
        config = JobConfig(script="train.py", min_nodes=least, max_nodes=most, nproc_per_node=nproc, **options)
        self.seen: list[Any] = []
        self.coordinator = Coordinator(
            config, folder, self.engine, self.log, on_event=self.seen.append, store=store or NoStore(), home=home
        )

    async def run(self, test: Callable[[], Awaitable[None]] | None = None) -> int:
        running = asyncio.ensure_future(self.coordinator.run())
        try:
            if test is not None:
                await test()
        except BaseException:
            self.play.finish.set()
            self.coordinator.interrupt(signal.SIGTERM)
            await running
            raise
        async with asyncio.timeout(PATIENCE):
            return await running

    @property
    def finished(self) -> dict[str, Any]:
        [event] = self.log.of("job_finished")
        return event
