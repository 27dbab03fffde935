"""Retries for a limited time what a disk or a store can't give now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from elastic_launcher.host.transient import StoreAway, pauses

Found = TypeVar("Found")


class Retry:
    """Looks for something until it is found, or the time for that is over; then the last error is raised.

    Args:
        passing: The error after which it is looked for again; any other is raised at once.
        seconds: For how long; 0 for a single look.
        warn: Takes what went wrong, and is tried again.
        clock: Monotonic seconds.
        once: Whether an error that comes again unchanged is not warned of again.
    """

    def __init__(
        self,
        passing: type[Exception],
        seconds: float,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        once: bool = False,
    ) -> None:
        self._passing = passing
        self._warn = warn
        self._clock = clock
        self._once = once
        self._warned = ""
        self._until = clock() + seconds
        self._pauses = pauses()

    def call(self, look: Callable[[], Found]) -> Found:
        """Returns what is found."""
        while True:
            try:
                return look()
            except self._passing as error:
                pause = self._pause(error)
            time.sleep(pause)

    async def call_in_thread(self, look: Callable[[], Found]) -> Found:
        """Returns what is found in a thread, beside all else that the process does."""
        while True:
            try:
                return await asyncio.to_thread(look)
            except self._passing as error:
                pause = self._pause(error)
            await asyncio.sleep(pause)

    def _pause(self, error: Exception) -> float:
        """Returns the seconds until the next look; raises the error where there is none."""
        left = self._until - self._clock()
        if left <= 0:
            raise error
        if not self._once or str(error) != self._warned:
            self._warned = str(error)
            self._warn(f"{error}; that is tried again for {left:.0f} s")
        return min(next(self._pauses), left)


def given_up(away: StoreAway, seconds: float) -> str:
    """Returns the message about a volume or a store that was away for all of ``--orphan-timeout``."""
    return f"{away}; it was away for {seconds:g} s (--orphan-timeout): try again later"
