"""Says what keeps going wrong once, until it has gone well."""

from __future__ import annotations

from collections.abc import Callable


class Problems:
    """The problems of one thing that is done again and again.

    Args:
        say: Takes a line for the log.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""

    def tell(self, line: str) -> None:
        """Says a problem, unless it was the last one."""
        if line != self._last:
            self._say(line)
            self._last = line

    def clear(self) -> None:
        """Notes that it has gone well: the next problem is said whatever it is."""
        self._last = ""
