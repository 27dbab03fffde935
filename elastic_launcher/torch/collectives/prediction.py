"""Predicts the next operation of a group from the operations that followed the same ones before.

Invariant: the answer depends on the operations alone, so ranks that have done the same ones expect the same next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

STRETCHES = (512, 64, 8, 1)  # operations that are compared with those of before; the longest that is known counts
MOST_KNOWN = 4096  # stretches of one length that are remembered, before all are forgotten
_BASE, _MODULUS = 1_000_003, 2**61 - 1


@dataclass(slots=True)
class _Stretch:
    """The last operations, so many of them.

    Attributes:
        length: How many.
        power: What the first of them is multiplied by in `digest`.
        digest: Stands for them.
        followed: What followed such stretches the last time, by digest.
    """

    length: int
    power: int
    digest: int = 0
    followed: dict[int, int] = field(default_factory=dict)


class Foresight:
    """The operations of one group so far."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._operations: list[Hashable] = [None]
        self._past: deque[int] = deque(maxlen=STRETCHES[0])
        self._stretches = [_Stretch(length, pow(_BASE, length, _MODULUS)) for length in STRETCHES]
        self._next = 0

    def next(self) -> Hashable | None:
        """Returns the operation that is expected next; None where nothing is known."""
        return self._operations[self._next]

    def note(self, operation: Hashable) -> None:
        """Takes down that all ranks do this operation now."""
        number = self._next if self._next and operation == self._operations[self._next] else self._number(operation)
        past, expected = self._past, 0
        for stretch in self._stretches:
            first = 0
            if len(past) >= stretch.length:
                if len(stretch.followed) >= MOST_KNOWN:
                    stretch.followed.clear()
                stretch.followed[stretch.digest] = number
                first = past[-stretch.length]
            stretch.digest = (stretch.digest * _BASE + number - first * stretch.power) % _MODULUS
            if len(past) + 1 >= stretch.length:
                expected = expected or stretch.followed.get(stretch.digest, 0)
        past.append(number)
        self._next = expected

    def _number(self, operation: Hashable) -> int:
        if operation not in self._numbers:
            self._numbers[operation] = len(self._operations)
            self._operations.append(operation)
        return self._numbers[operation]
