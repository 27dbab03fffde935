"""What rank 0 alone writes: where it is lost before it has met its peers again, the next rank 0 writes it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


class MainWrites:
    """Writes that all ranks ask for, and rank 0 does.

    The others remember them up to the next operation of all ranks: a rank 0 that takes part in it has written before.
    """

    def __init__(self) -> None:
        self._left: list[tuple[str, Callable[[], Any]]] = []

    def write(self, is_main: bool, what: str, write: Callable[[], Any]) -> Any:
        """Writes on rank 0, and returns what came of it; remembers the write elsewhere, and returns None.

        Args:
            is_main: Whether this process is rank 0 now.
            what: Is written, for a message.
            write: Writes it; it must not wait for other ranks.
        """
        if is_main:
            return write()
        self._left.append((what, write))
        return None

    def met(self) -> None:
        """Forgets the writes: all ranks have met, so rank 0 has done them."""
        self._left.clear()

    def make_up(self) -> None:
        """Does the writes that were left to a rank 0 which is lost: this process is rank 0 now."""
        for what, write in self._left:
            warnings.warn(f"rank 0 was lost, and may have been writing {what}: this process writes it", stacklevel=2)
            write()
        self.met()
