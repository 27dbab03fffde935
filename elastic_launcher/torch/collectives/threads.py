"""Threads beside the training thread that may be inside torch when the script ends.

Python ends a daemon thread that wants the GIL back by unwinding its stack; where C++ had released it, that aborts the
process ("terminate called without an active exception"), and a rank that had done its work would count as killed. So
Python's end waits for these. Whoever starts one sees to it that it has nothing to wait for by then.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

ENDS_WITHIN = 5.0
"""Seconds that Python's end waits for all of them; a connection that is cut ends its waits within tenths of one."""
LOOK_SECONDS = 0.1
"""Between two looks at which are still waited for."""


class Awaited(threading.Thread):
    """A thread that Python's end waits for.

    Attributes:
        is_given_up: Whether it is known to be blocked for ever, so that it is not waited for any more.
    """

    is_given_up = False


def start_thread(name: str, target: Callable[..., object], *args: Any) -> Awaited:
    """Starts a thread that ends no later than Python.

    Raises:
        RuntimeError: If no thread can be started.
    """
    thread = Awaited(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread


def start_or_run(thread: threading.Thread) -> bool:
    """Starts a thread, or does its work before this returns where none can be started.

    There may be too many threads, or Python ends (3.12 and later). Returns whether it was started.
    """
    try:
        thread.start()
    except RuntimeError:
        thread.run()
        return False
    return True


def have_ended(name: str, seconds: float) -> bool:
    """Waits for the threads whose names begin so, at most so long; returns whether all have ended."""
    until = time.monotonic() + seconds
    while found := [
        one
        for one in threading.enumerate()
        if isinstance(one, Awaited) and one.name.startswith(name) and not one.is_given_up
    ]:
        if (left := until - time.monotonic()) <= 0:
            return False
        found[0].join(min(left, LOOK_SECONDS))
    return True


atexit.register(have_ended, "", ENDS_WITHIN)
