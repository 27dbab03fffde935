"""What happens to a training when its GPUs change: it restarts, or the ranks that stay go on.

Times are seconds on the simulation's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from elastic_launcher.quota.allocation.places import Placement

HOLD = 0.1  # seconds for which an in-process change stops a training

Spread = tuple[int, ...]  # GPUs that train on each machine, ascending; empty while the training is stopped


@dataclass(slots=True)
class Ranks:
    """The ranks of one job.

    Attributes:
        phases: From when the job trains on what, ascending.
        groups: GPUs that the job holds, by when the ranks on them train, ascending.
        bridge: GPUs that it no longer holds and trains on until the first of its new ranks are ready.
    """

    phases: list[tuple[float, Spread]] = field(default_factory=list)
    groups: list[tuple[float, Placement]] = field(default_factory=list)
    bridge: Placement = field(default_factory=dict)

    def plan(self, now: float, running: Placement) -> None:
        """Sets the phases from the groups and the bridge.

        Args:
            now: When the first one begins.
            running: What the job trained on until then. Each change of what it trains on stops it for a moment.
        """
        phases: list[tuple[float, Spread]] = []
        for time in sorted({now, *(at for at, _ in self.groups if at > now)}):
            training = total([group for at, group in self.groups if at <= time]) or dict(self.bridge)
            if running and training and training != running:
                phases += [(time, ()), (time + HOLD, _spread(training))]
            else:
                phases.append((time, _spread(training)))
            running = training
        self.phases = phases

    def end_bridge(self, now: float) -> None:
        """Stops training on GPUs that the job no longer holds."""
        self.bridge = {}
        self.plan(now, {})

    def between(self, start: float, stop: float) -> Iterator[tuple[float, float, Spread]]:
        """Yields the times between two, and on what the job trains meanwhile."""
        for (one, spread), (other, _) in pairwise([*self.phases, (stop, ())]):
            begin, end = max(one, start), min(other, stop)
            if begin < end:
                yield begin, end, spread


class Physics(Protocol):
    """How a training changes its GPUs."""

    def change(self, ranks: Ranks, now: float, placement: Placement, delay: float, spare: Placement) -> bool:
        """Changes the GPUs of a job; returns whether a training was stopped for longer than a moment.

        Args:
            ranks: The job's ranks.
            now: When the change is ordered.
            placement: What it holds from now on.
            delay: Seconds until new ranks train.
            spare: GPUs that nobody holds from now on.
        """


class Restart:
    """Each change stops the job until all of its ranks have started again."""

    def change(self, ranks: Ranks, now: float, placement: Placement, delay: float, spare: Placement) -> bool:
        """Changes the GPUs of a job; see `Physics`."""
        stopped = any(spread for _, spread in ranks.phases)
        ranks.phases = [(now, ())]
        if placement:
            ranks.phases.append((now + delay, _spread(placement)))
        return stopped


class InProcess:
    """Ranks that stay go on, and others join them when they are ready.

    A job that keeps none of its GPUs trains on the old ones until the new ones are ready, where nobody else got those.
    """

    def change(self, ranks: Ranks, now: float, placement: Placement, delay: float, spare: Placement) -> bool:
        """Changes the GPUs of a job; see `Physics`."""
        running = total([group for at, group in ranks.groups if at <= now]) or dict(ranks.bridge)
        groups: list[tuple[float, Placement]] = []
        new: Placement = placement
        for at, group in ranks.groups:
            if kept := _common(group, new):
                groups.append((at, kept))
                new = without(new, kept)
        if new:
            groups.append((now + delay, new))
        goes_on = any(at <= now for at, _ in groups)
        bridged = bool(running and placement) and not goes_on and not without(running, spare)
        ranks.groups, ranks.bridge = groups, running if bridged else {}
        ranks.plan(now, running)
        return bool(running) and not goes_on and not bridged


def total(placements: Sequence[Placement]) -> dict[str, int]:
    """Returns the GPUs of several placements together."""
    found: dict[str, int] = {}
    for placement in placements:
        for machine, gpus in placement.items():
            found[machine] = found.get(machine, 0) + gpus
    return found


def without(one: Placement, other: Placement) -> dict[str, int]:
    """Returns the GPUs of a placement that are not in another one."""
    left = {machine: gpus - other.get(machine, 0) for machine, gpus in one.items()}
    return {machine: gpus for machine, gpus in left.items() if gpus > 0}


def _common(one: Placement, other: Placement) -> dict[str, int]:
    return {machine: min(gpus, other[machine]) for machine, gpus in one.items() if other.get(machine)}


def _spread(placement: Placement) -> Spread:
    return tuple(sorted(placement.values()))
