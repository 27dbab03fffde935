"""Measures how long the coordinator has been silent, in a process that may itself have been suspended meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Contact:
    """Remembers when the coordinator was heard last; safe to use from several threads.

    Args:
        longest_pause: Seconds between two calls at most, while this process runs. What is above that it stood still (a
            paused container, a suspended job), and most likely the coordinator with it.
        clock: Monotonic seconds.
    """

    def __init__(self, longest_pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_pause = longest_pause
        self._clock = clock
        self._lock = threading.Lock()
        self._heard = self._looked = clock()

    def hear(self) -> None:
        """Records that the coordinator has answered."""
        with self._lock:
            self._heard = self._looked = self._clock()

    def silence(self) -> float:
        """Returns for how many seconds it has not been heard, without those in which this process stood still."""
        with self._lock:
            now = self._clock()
            self._heard += max(0.0, now - self._looked - self._longest_pause)
            self._looked = now
            return now - self._heard
