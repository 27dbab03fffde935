"""Threads beside the training thread that may be inside torch when the script ends.

Python ends a daemon thread that wants the GIL back by unwinding its stack; where C++ had released it, that aborts the
process ("terminate called without an active exception"), and a rank that had done its work would count as killed. So
Python's end waits for these. Whoever starts one sees to it that it has nothing to wait for by then.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

ENDS_WITHIN = 5.0
"""Seconds that Python's end waits for all of them; a connection that is cut ends its waits within tenths of one."""

_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start_thread(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """Starts a thread that ends no later than Python.

    Args:
        name: Of the thread.
        target: What it runs.
        args: Its arguments.

    Raises:
        RuntimeError: If no thread can be started.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    _started.add(thread)
    return thread


def have_ended(name: str, seconds: float) -> bool:
    """Waits for the threads of a name, at most so long; returns whether all have ended."""
    until = time.monotonic() + seconds
    found = [thread for thread in list(_started) if thread.name.startswith(name)]
    for thread in found:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in found)


def _end() -> None:
    have_ended("", ENDS_WITHIN)


atexit.register(_end)
