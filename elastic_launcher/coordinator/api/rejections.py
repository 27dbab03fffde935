"""Which refused requests is the user told of? A few a minute, so that nobody fills the events by asking."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MOST, PERIOD_SECONDS = 5, 60.0
"""Lines, and how long that many have to be enough."""
LONGEST = 160  # characters of what a stranger wrote


class Refusals:
    """Tells of requests that were refused, and counts those that it does not tell of.

    Args:
        tell: Takes each line.
        monotonic: Seconds.
    """

    def __init__(self, tell: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._tell = tell
        self._monotonic = monotonic
        self._told_at: deque[float] = deque(maxlen=MOST)
        self._untold = 0

    def take(self, peer: str, request: str, sender: str, why: str) -> None:
        """Takes a request that was refused.

        Args:
            peer: The address that it came from.
            request: Method and path.
            sender: Who it says that it is from; may be empty.
            why: What was wrong with it.
        """
        now = self._monotonic()
        if len(self._told_at) == MOST and now - self._told_at[0] < PERIOD_SECONDS:
            self._untold += 1
            return
        self._told_at.append(now)
        name = f", which calls itself {_plain(sender)}" if sender else ""
        more = f"; {self._untold} more before it" if self._untold else ""
        self._untold = 0
        self._tell(
            f"refused {_plain(request)} from {peer}{name}: {_plain(why)}{more}. "
            "If that is no address of this job, docs/security.md says how to keep it from the port"
        )


def _plain(text: str) -> str:
    """Returns what a stranger wrote as a short text that does nothing to a terminal."""
    return ascii(text[:LONGEST])[1:-1]
