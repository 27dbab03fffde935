"""What a disk or a store does not give now is asked for again, for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from elastic_launcher.config import JobConfig
from elastic_launcher.host.transient import StoreAway, pauses
from elastic_launcher.options import ConfigError

Found = TypeVar("Found")


async def ask_again(
    look: Callable[[], Found],
    passing: type[ConfigError],
    seconds: float,
    warn: Callable[[str], None],
    clock: Callable[[], float],
) -> Found:
    """Returns what is found in a thread, beside all else that the launcher does.

    Args:
        look: Looks for it.
        passing: The error after which it is looked for again.
        seconds: For how long.
        warn: Takes what went wrong, and is tried again.
        clock: Monotonic seconds.

    Raises:
        ConfigError: If it could not be looked for in that time, or another error is no ``passing`` one.
    """
    until = clock() + seconds
    for wait in pauses():
        try:
            return await asyncio.to_thread(look)
        except passing as error:
            left = until - clock()
            if left <= 0:
                raise
            warn(f"{error}; that is tried again for {left:.0f} s")
            await asyncio.sleep(min(wait, left))
    raise AssertionError("the waits have no end")


def patiently(
    config: JobConfig,
    look: Callable[[], Found],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Found:
    """Returns what is found. A local job's user sees what is wrong, and tries again; a launcher in a pod has nobody.

    Args:
        config: The job.
        look: Looks for it.
        say: Takes a line for the user.
        clock: Monotonic seconds.
        sleep: Waits so many of them.

    Raises:
        StoreAway: If for ``--orphan-timeout`` it could not be looked for; for a local job, at once.
    """
    until = clock() + config.orphan_timeout
    told = ""
    for wait in pauses():
        try:
            return look()
        except StoreAway as away:
            left = until - clock()
            if config.engine == "local" or left <= 0:
                raise
            if str(away) != told:
                told = str(away)
                say(f"{away}; that is tried again for {left:.0f} s")
            sleep(min(wait, left))
    raise AssertionError("the waits have no end")


def given_up(away: StoreAway, seconds: float) -> str:
    """Returns what is said of a volume or a store that was away for all of ``--orphan-timeout``."""
    return f"{away}; it was away for {seconds:g} s (--orphan-timeout): try again later"
