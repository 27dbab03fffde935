"""A launcher of a cluster whose volume or store is away while it starts asks again for a while, as its nodes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from elastic_launcher.config import JobConfig
from elastic_launcher.host.transient import StoreAway, pauses

Found = TypeVar("Found")


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
