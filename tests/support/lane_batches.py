"""Which samples of lanes each step has, as tests expect it: all samples in the order in which they are due."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def lane_batches(lengths: Sequence[int], batch: int) -> list[list[tuple[int, int]]]:
    """Returns lane and place of the samples of each step of an epoch."""
    due = sorted(
        (Fraction(2 * place + 1, 2 * length), lane, place)
        for lane, length in enumerate(lengths)
        for place in range(length)
    )
    return [sorted(sample[1:] for sample in due[start : start + batch]) for start in range(0, len(due), batch)]
