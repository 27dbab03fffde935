"""Which samples of several lanes each step takes: a lane is a source of samples that is read forward.

Invariant: an epoch's steps take each lane's samples in the lane's order and each once. Every step but the last one is
a whole global batch, evenly from all lanes that have samples left, lane after lane: a rank's contiguous share of a step
is a few whole lanes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class _Phase:
    """Steps that all take the same number of samples of each lane.

    Attributes:
        first_step: The first of them.
        taken: How many samples the steps before have taken, by lane.
        counts: How many samples each of these steps takes, by lane.
    """

    first_step: int
    taken: Counts
    counts: Counts


@dataclass(frozen=True)
class LaneOrder:
    """The order of the samples of an epoch.

    Attributes:
        lengths: Samples in an epoch, by lane.
        batch: Samples of a step, over all ranks, at least as many as there are lanes.
    """

    lengths: tuple[int, ...]
    batch: int

    def places(self, start: int, stop: int) -> tuple[Counts, Counts]:
        """Returns the lane of each sample from one position of the epoch up to another, and its place in that lane.

        Time grows with the number of steps, and with that of lanes in each.
        """
        lanes, places = list[Counts](), list[Counts]()
        for step in range(start // self.batch, -(-stop // self.batch)):
            phase = self._phases[bisect_right(self._phases, step, key=lambda one: one.first_step) - 1]
            first = phase.taken + (step - phase.first_step) * phase.counts
            ends = np.cumsum(phase.counts)
            from_, to = max(start - step * self.batch, 0), min(stop - step * self.batch, self.batch)
            in_step = np.arange(from_, to, dtype=np.int64)
            lane = np.searchsorted(ends, in_step, side="right")
            lanes.append(lane)
            places.append(first[lane] + in_step - (ends - phase.counts)[lane])
        if not lanes:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        return np.concatenate(lanes), np.concatenate(places)

    @cached_property
    def _phases(self) -> list[_Phase]:
        phases = list[_Phase]()
        step, taken, lengths = 0, np.zeros(len(self.lengths), dtype=np.int64), np.array(self.lengths, dtype=np.int64)
        while (lengths - taken).any():
            counts = _evenly(self.batch, lengths - taken)
            phases.append(_Phase(step, taken, counts))
            used = counts > 0
            steps = int(((lengths - taken)[used] // counts[used]).min())
            step, taken = step + steps, taken + steps * counts
        return phases


def _evenly(samples: int, left: Counts) -> Counts:
    """Returns how many of so many samples each lane gives: as many as others, the first ones one more, or all left."""
    counts = np.zeros_like(left)
    rest = min(samples, int(left.sum()))
    while rest:
        lanes = np.flatnonzero(counts < left)
        each = rest // len(lanes)
        if not each:
            lanes, each = lanes[:rest], 1
        given = np.minimum((left - counts)[lanes], each)
        counts[lanes] += given
        rest -= int(given.sum())
    return counts
