"""What rank 0 alone writes: where it is lost before it has met its peers again, the next rank 0 writes it."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

MOST = 16  # writes that are remembered: the objects in them stay in memory


class MainWrites:
    """Writes that all ranks ask for, and rank 0 does.

    The others remember the last ones up to the next operation of all ranks: a rank 0 that takes part in it has written
    before.

    Args:
        fingerprint: Returns a value that changes with what is trained. What has changed since the script asked for a
            write can't be written as it was.
    """

    def __init__(self, fingerprint: Callable[[], int]) -> None:
        self._fingerprint = fingerprint
        self._left: deque[tuple[str, Callable[[], Any], int]] = deque(maxlen=MOST)

    def write(self, is_main: bool, what: str, write: Callable[[], Any]) -> Any:
        """Writes on rank 0, and returns what came of it; remembers the write elsewhere, and returns None.

        Args:
            is_main: Whether this process is rank 0 now.
            what: What it does, for a message: "saving the model".
            write: Does it; it must not wait for other ranks.
        """
        if is_main:
            return write()
        self._left.append((what, write, self._fingerprint()))
        return None

    def met(self) -> None:
        """Forgets the writes: rank 0 has done them."""
        self._left.clear()

    def make_up(self) -> None:
        """Does the writes that were left to a rank 0 which is lost: this process is rank 0 now.

        What can't be written any more is said in a warning, and the training goes on.
        """
        left = list(self._left)
        self.met()
        for what, write, then in left:
            lost = f"rank 0 was lost, perhaps while it was {what}"
            if self._fingerprint() != then:
                warnings.warn(f"{lost}; the model has changed since, so this is not done again", stacklevel=2)
                continue
            try:
                write()
            except Exception as error:  # noqa: BLE001 - what writes fail with: torch and others have errors of their own
                warnings.warn(f"{lost}; this process can't do it again: {error}", stacklevel=2)
            else:
                warnings.warn(f"{lost}: this process has done it again", stacklevel=2)
