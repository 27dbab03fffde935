"""Decides when a collection of the API is read, watched or polled, and the delays in between.

Invariants: a watch begins where the last thing seen ended, and after a new read once that is too old; nothing that
fails is tried again at once, or for ever at the same pace; where watching is forbidden the collection is polled, and
watching is tried again later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

POLL_SECONDS = 5.0
"""Between polls: with a slow answer, a change is still seen within 10 s."""
POLLS = 3
"""After so many watching is tried again: the right to was granted, or the server only just began and knew of none."""
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
"""Bounds what is missed when an API server is back; the server can bear all clients at that pace."""
SHORTEST_WATCH = 1.0
"""Seconds; a watch that ends sooner without an event has failed, and must not be repeated at once."""
LOUD = 5
"""Failures in a row before a message: with the delays between them, some 2 s of an API server's restart."""
FORBIDDEN = (403, 405)
GONE = 410


class Act(StrEnum):
    """What to do next."""

    READ = "read"
    WATCH = "watch"
    POLL = "poll"


@dataclass(frozen=True, slots=True)
class Follow:
    """The progress of following a collection.

    Attributes:
        version: The resource version that was seen last; None when it has to be read first.
        polled: Polls left until watching is tried again; 0 while it is watched.
        delay: Longest wait before the next act.
        failures: Since a watch was last seen to work.
        forbidden: Whether not even polling is permitted.
    """

    version: str | None = None
    polled: int = 0
    delay: float = 0.0
    failures: int = 0
    forbidden: bool = False

    @property
    def act(self) -> Act:
        """What to do next, after the delay."""
        if self.polled:
            return Act.POLL
        return Act.READ if self.version is None else Act.WATCH

    @property
    def loud(self) -> bool:
        """Whether the user should hear of a read or a poll that has failed."""
        return self.forbidden or self.failures >= LOUD

    def done(self, version: str) -> Follow:
        """All objects were read."""
        if self.polled:
            return Follow(polled=self.polled - 1, delay=POLL_SECONDS)
        return Follow(version, failures=self.failures)  # a watch that fails after each read is not begun at once

    def saw(self, version: str) -> Follow:
        """The watch has shown a change, or how far it has come."""
        return Follow(version or self.version)

    def ended(self, seconds: float) -> Follow:
        """The watch has ended in good order, as each does after some time."""
        return Follow(self.version) if seconds >= SHORTEST_WATCH else self._again()

    def failed(self, status: int, retry_after: float = 0.0) -> Follow:
        """An act has failed with a status, 0 without an answer; the server may ask to wait some seconds."""
        if status in FORBIDDEN:
            if not self.polled:
                return Follow(polled=POLLS)
            return Follow(polled=self.polled - 1, delay=POLL_SECONDS, forbidden=True)
        after = self._again()
        if status == GONE or after.loud:  # a restored database does not know the version
            after = replace(after, version=None)
        return replace(after, delay=max(after.delay, retry_after))

    def _again(self) -> Follow:
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(self.failures, 10))
        return replace(self, delay=delay, failures=self.failures + 1)
