"""Foretells which operation a group of ranks does next from those that it has done: what followed the same ones before.

Invariant: the answer depends on the operations alone, so ranks that have done the same ones expect the same next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

STRETCHES = (512, 64, 8, 1)  # operations that are compared with those of before; the longest that is known counts
MOST_KNOWN = 8192  # stretches that are remembered, before all are forgotten
_BASE, _MODULUS = 1_000_003, 2**61 - 1


class Foresight:
    """The operations of one group so far."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._operations: list[Hashable] = []
        self._past: deque[int] = deque(maxlen=STRETCHES[0])
        self._last: dict[int, int] = dict.fromkeys(STRETCHES, 0)
        self._followed: dict[tuple[int, int], int] = {}

    def note(self, operation: Hashable) -> None:
        """Takes down that all ranks do this operation now."""
        number = self._numbers.setdefault(operation, len(self._operations) + 1)
        if number > len(self._operations):
            self._operations.append(operation)
        if len(self._followed) >= MOST_KNOWN:
            self._followed.clear()
        for stretch in self._stretches():
            self._followed[stretch] = number
        for length in STRETCHES:
            gone = self._past[-length] if len(self._past) >= length else 0
            rolled = self._last[length] * _BASE + number - gone * pow(_BASE, length, _MODULUS)
            self._last[length] = rolled % _MODULUS
        self._past.append(number)

    def next(self) -> Hashable | None:
        """Returns the operation that is expected next; None where nothing is known."""
        for stretch in self._stretches():
            number = self._followed.get(stretch)
            if number is not None:
                return self._operations[number - 1]
        return None

    def _stretches(self) -> list[tuple[int, int]]:
        """Returns what stands for the last operations, the longest stretch first."""
        return [(length, self._last[length]) for length in STRETCHES if len(self._past) >= length]
