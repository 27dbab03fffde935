"""The step times that a job has measured, by configuration: how many ranks and which micro-batches the steps had.

Invariants: a time that no step can have taken (0, negative, infinite, not a number) changes nothing. What is known of a
configuration is the median of its last times, so that single outliers don't count. The table is of bounded size, and
never forgets the most ranks that a step ran on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from elastic_launcher.batch import whole_number

MOST_CONFIGURATIONS = 256
LAST_TIMES = 15  # of a configuration: enough for a median, and few enough to follow a machine that becomes slower
_TOO_LONG = 1.5  # micro-batches that take so many times as long as their step are no measurement of it

_Times = deque[tuple[float, int]]  # seconds, and how many steps they are the average of


class Configuration(NamedTuple):
    """How steps ran.

    Attributes:
        machines: Machines (Kubernetes nodes) that the ranks were on.
        ranks: World size.
        micro_batch: Samples of the largest micro-batch of rank 0, which has the most samples.
        accumulation: Micro-batches of rank 0.
    """

    machines: int
    ranks: int
    micro_batch: int
    accumulation: int


@dataclass(frozen=True, slots=True)
class Observation:
    """The time of steps of one configuration.

    Attributes:
        machines: Machines (Kubernetes nodes) that the ranks were on.
        ranks: World size.
        micro_batch: Samples of the largest micro-batch of rank 0, which has the most samples.
        accumulation: Micro-batches of rank 0.
        seconds: Seconds of a step. Any number is accepted: clocks go wrong, and `Observations` leaves such times out.
        micro_batch_seconds: Seconds of a micro-batch without synchronization: of one before the last one, or of
            computing the last one. None if unknown; then steps on one number of ranks don't tell computing and
            synchronizing apart.
        count: Number of steps that the seconds are the average of.

    Raises:
        ValueError: If a count is not a whole number of 1 or more, or there are more machines than ranks.
    """

    machines: int
    ranks: int
    micro_batch: int
    accumulation: int
    seconds: float
    micro_batch_seconds: float | None = None
    count: int = 1

    def __post_init__(self) -> None:
        for name in (*Configuration._fields, "count"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.machines > self.ranks:
            raise ValueError(f"machines is {self.machines}; it must not be above ranks, {self.ranks}")

    @property
    def configuration(self) -> Configuration:
        """How the steps ran."""
        return Configuration(self.machines, self.ranks, self.micro_batch, self.accumulation)


@dataclass(slots=True)
class _Entry:
    """What is known of one configuration."""

    steps: _Times = field(default_factory=lambda: deque(maxlen=LAST_TIMES))
    micro_batches: _Times = field(default_factory=lambda: deque(maxlen=LAST_TIMES))
    count: int = 0


class Observations:
    """A table of step times.

    Iterating over it yields one observation for each configuration: the medians, and how many steps were measured. A
    table can be built again from these, as a process does that takes over.

    Args:
        observations: The first ones.
    """

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self._entries: dict[Configuration, _Entry] = {}
        for observation in observations:
            self.add(observation)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Observation]:
        for configuration, entry in self._entries.items():
            seconds = _median(entry.steps)
            micro_batch_seconds = _median(entry.micro_batches) if entry.micro_batches else math.inf
            if micro_batch_seconds * max(1, configuration.accumulation - 1) > _TOO_LONG * seconds:
                yield Observation(*configuration, seconds, None, entry.count)
            else:
                yield Observation(*configuration, seconds, micro_batch_seconds, entry.count)

    @property
    def most_ranks(self) -> int:
        """The most ranks that a step ran on; 0 before the first step."""
        return max((configuration.ranks for configuration in self._entries), default=0)

    def add(self, observation: Observation) -> None:
        """Adds a measurement. A full table forgets the configuration that was measured longest ago."""
        if not _is_time(observation.seconds):
            return
        key = observation.configuration
        entry = self._entries[key] = self._entries.pop(key, _Entry())  # moves to the end
        entry.steps.append((observation.seconds, observation.count))
        entry.count += observation.count
        micro_batch_seconds = observation.micro_batch_seconds
        if micro_batch_seconds is not None and _is_time(micro_batch_seconds):
            entry.micro_batches.append((micro_batch_seconds, observation.count))
        if len(self._entries) > MOST_CONFIGURATIONS:
            most = self.most_ranks
            oldest = next(iter(self._entries))
            del self._entries[next((other for other in self._entries if other.ranks < most), oldest)]


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0


def _median(times: Iterable[tuple[float, int]]) -> float:
    """Returns the weighted median; of two middle values their mean."""
    ordered = sorted(times)
    half = sum(count for _, count in ordered) / 2
    below = 0
    for place, (seconds, count) in enumerate(ordered):
        below += count
        if below == half:
            return (seconds + ordered[place + 1][0]) / 2
        if below > half:
            return seconds
    raise ValueError("there are no times")


def merged(known: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what ``step_times`` events say together: of each configuration the last times, and all batch sizes.

    Args:
        known: What those before the last one say; empty where there are none.
        fields: Of the last one: ``times`` has the configurations that were timed since the one before.
    """
    times, batch = fields.get("times", ()), fields.get("batch")
    rows = {tuple(row[: len(Configuration._fields)]): row for row in (*known.get("times", ()), *times)}
    used = [*(one for one in known.get("used", ()) if one != batch), batch]
    return {**fields, "times": list(rows.values())[-MOST_CONFIGURATIONS:], "used": used[-MOST_CONFIGURATIONS:]}
