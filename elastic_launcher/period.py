"""Decides when the next checkpoint is due: after steps, after seconds, or by the cost of saving."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass

LEAST_SECONDS = 30.0
COSTS = 20  # times what a save costs: saving takes a twentieth of the time at most
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Period:
    """The period of checkpoints.

    Attributes:
        steps: After so many optimizer steps; None where time counts.
        seconds: After so many seconds; None where steps count, or the cost decides.
    """

    steps: int | None = None
    seconds: float | None = None

    def is_due(self, steps: int, seconds: float, cost: float) -> bool:
        """Returns whether to save, so many steps and seconds after the last checkpoint, which took ``cost`` seconds."""
        if self.steps is not None:
            return steps >= self.steps
        return seconds >= (max(LEAST_SECONDS, COSTS * cost) if self.seconds is None else self.seconds)


def read_seconds(text: str) -> float:
    """Reads ``30s``, ``5m``, ``1.5h`` or plain seconds.

    Raises:
        ValueError: If it is something else.
    """
    with contextlib.suppress(ValueError):
        seconds = read_period(text).seconds
        if seconds is not None:
            return seconds
    raise ValueError("it must be a time above 0, for example 90s, 30m or 12h")


def read_period(text: str) -> Period:
    """Reads ``30s``, ``5m``, ``1.5h``, plain seconds, or ``100 steps``.

    Raises:
        ValueError: If it is something else.
    """
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*(s|m|h|steps?|)\s*", text, re.ASCII)
    number = float(match[1]) if match else math.nan
    if match is None or number <= 0 or (match[2].startswith("step") and number != int(number)):
        raise ValueError("it must be a time or a number of steps above 0, for example 30s, 5m or '100 steps'")
    if match[2].startswith("step"):
        return Period(steps=int(number))
    return Period(seconds=number * _UNITS[match[2]])
