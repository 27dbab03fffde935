"""Finds a rank that lives and makes no progress inside a step while others wait for it.

Invariant: nobody is stuck for whom nobody waits, nobody before the floor, and nobody whose progress is not to be judged
(its first step, a compile, an evaluation: the rank itself says so).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

USUAL_TIMES = 10.0  # as long as so many usual steps is too long


def limit(usual: Collection[float], floor: float) -> float:
    """Returns the seconds, ``floor`` at least, after which a rank is stuck that is still at one step.

    Ranks that don't know their usual step time report 0.
    """
    return max(floor, USUAL_TIMES * max(usual, default=0.0))


def find_stuck(at_work: Mapping[int, float], waits: Mapping[int, float], longest: float) -> list[int]:
    """Returns the ranks that are stuck.

    Args:
        at_work: For how many seconds each has been at the same piece of work; only those whose progress is judged.
        waits: For how many seconds each has waited for the others; 0 for those that don't.
        longest: See `limit`.
    """
    stuck = [number for number, seconds in at_work.items() if seconds > longest]
    waited_for = any(seconds > longest for number, seconds in waits.items() if number not in stuck)
    return sorted(stuck) if waited_for else []
