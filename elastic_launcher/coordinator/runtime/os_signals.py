"""The signals that ask a launcher to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def taken(interrupt: Callable[[int], None], loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Takes SIGINT, SIGTERM and, unless it is ignored (``nohup``), SIGHUP, any number of them."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangs_up else ()))
    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
