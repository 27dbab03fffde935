"""Warns the user about refused requests, a few a minute, so that they can't fill the events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MOST, PERIOD_SECONDS = 5, 60.0
"""Lines, and how long that many have to be enough."""
LONGEST = 160  # characters of what a stranger wrote


class Refusals:
    """Warns about refused requests, and counts those without a warning."""

    def __init__(self, warn: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._warn = warn
        self._monotonic = monotonic
        self._warned_at: deque[float] = deque(maxlen=MOST)
        self._unreported = 0

    def take(self, peer: str, request: str, sender: str, why: str) -> None:
        """Takes a request (method and path) that ``peer`` made in the name of ``sender``, and that was refused."""
        now = self._monotonic()
        if len(self._warned_at) == MOST and now - self._warned_at[0] < PERIOD_SECONDS:
            self._unreported += 1
            return
        self._warned_at.append(now)
        name = f", which calls itself {_plain(sender)}" if sender else ""
        more = f"; {self._unreported} more before it" if self._unreported else ""
        self._unreported = 0
        self._warn(
            f"refused {_plain(request)} from {peer}{name}: {_plain(why)}{more}. "
            "If that is no address of this job, docs/security.md says how to keep it from the port"
        )


def _plain(text: str) -> str:
    """Returns what a stranger wrote as a short text that does nothing to a terminal."""
    return ascii(text[:LONGEST])[1:-1]
