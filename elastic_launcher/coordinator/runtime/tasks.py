"""Background tasks of one owner, which gets the first exception of any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

End = TypeVar("End")


class Background:
    """Coroutines owned by the caller of ``until``; more may be added while they run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()

    def add(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        """Runs these too; of several, the first starts first."""
        self._tasks |= {asyncio.ensure_future(one) for one in coroutines}

    async def until(self, end: asyncio.Future[End]) -> End:
        """Returns the result of ``end``, or raises the first exception of a task; then cancels all tasks."""
        try:
            while not end.done():
                waiting: set[asyncio.Future[Any]] = {end, *self._tasks}
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in self._tasks & done:
                    self._tasks.discard(one)
                    one.result()
            return end.result()
        finally:
            for one in self._tasks:
                one.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
