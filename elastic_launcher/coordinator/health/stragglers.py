"""Finds ranks that are slower than the others for long enough to rule out chance.

What counts is a rank's own time of a step, its waiting left out: in one step all ranks take the same time. Shares may
differ (two samples here, one there), so a rank has to be slow by the step and by the sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elastic_launcher.control.vitals import Vitals

FACTOR = 2.0  # times the median, from which on a rank is slow
OVER_FACTOR = 1.5  # below which it no longer is
LONG_SECONDS = 10.0  # that it has to be slow
LONG_STEPS = 10  # that its time was taken from


@dataclass(frozen=True, slots=True)
class Change:
    """A rank has become a straggler, ``factor`` times as slow as the median, or (``over``) is none any more."""

    member: int
    factor: float
    over: bool


@dataclass(frozen=True, slots=True)
class Slow:
    """When each of the slow ranks was seen to be slow first, and those that were reported."""

    since: Mapping[int, float] = field(default_factory=dict)
    told: frozenset[int] = frozenset()


def factors(vitals: Mapping[int, Vitals]) -> dict[int, float]:
    """Returns how many times the median each rank's own time is, of those ranks that report it."""
    known = {number: one for number, one in vitals.items() if one.steps >= LONG_STEPS and one.own > 0}
    if len(known) < 2:
        return {}
    step = statistics.median_low(one.own for one in known.values())
    sample = statistics.median_low(one.per_sample for one in known.values())
    return {number: min(one.own / step, one.per_sample / sample) for number, one in known.items()}


def judge(slow: Slow, found: Mapping[int, float], now: float) -> tuple[Slow, tuple[Change, ...]]:
    """Returns the slow ranks after `factors` has found these, and the changes to report.

    A rank that is missing from ``found`` is no longer judged.
    """
    changes = []
    since = {number: slow.since.get(number, now) for number, factor in found.items() if factor >= FACTOR}
    told = set(slow.told)
    for number in sorted(since):
        if number not in told and now - since[number] >= LONG_SECONDS:
            told.add(number)
            changes.append(Change(number, found[number], over=False))
    for number in sorted(slow.told):
        factor = found.get(number)
        if factor is not None and factor < OVER_FACTOR:
            told.discard(number)
            changes.append(Change(number, factor, over=True))
    return replace(slow, since=since, told=frozenset(told)), tuple(changes)
