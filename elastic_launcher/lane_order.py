"""Which samples of several lanes each step takes: a lane is a source of samples that is read forward.

Each step takes samples of all lanes, in proportion to their lengths, so that lanes of any lengths end together. Within
a step a lane's samples stand side by side, in the lane's order, and the lanes in theirs: a rank's contiguous share of a
step is a few whole lanes.

Which samples come in the first so many steps is decided by Webster's method, whose counts never fall: sample i of a
lane of n samples is due when (2i + 1) / 2n of the epoch are over, and of several at one time the first lane's is first.

Invariant: an epoch's steps take each sample of each lane once, each lane's in the lane's order, and each step but the
last one is a whole global batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

STEPS_KEPT = 16  # whose counts are kept: a step's micro-batches are asked for one by one


class LaneOrder:
    """The order of the samples of an epoch.

    Args:
        lengths: Samples in an epoch, by lane; at least one of them is above 0.
        batch: Samples of a step, over all ranks.

    Attributes:
        lengths: As given.
        batch: As given.
        total: Samples in an epoch.
    """

    def __init__(self, lengths: Sequence[int], batch: int) -> None:
        self.lengths = tuple(lengths)
        self.batch = batch
        self.total = sum(self.lengths)
        self._before = lru_cache(maxsize=STEPS_KEPT)(self._before_step)

    def places(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """Returns the lane of each sample from one position of the epoch up to another, and its place in that lane.

        Time grows with the number of steps, and with that of lanes in each.
        """
        lanes, places = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for step in range(start // self.batch, -(-stop // self.batch)):
            first = step * self.batch
            before, after = self.before(step), self.before(step + 1)
            ends = np.cumsum(after - before)
            in_step = np.arange(max(start - first, 0), min(stop - first, self.batch), dtype=np.int64)
            lane = np.searchsorted(ends, in_step, side="right").astype(np.int64)
            lanes.append(lane)
            places.append(after[lane] - ends[lane] + in_step)
        return np.concatenate(lanes), np.concatenate(places)

    def before(self, step: int) -> Numbers:
        """Returns how many samples the steps before one have taken, by lane."""
        return self._before(step)

    def _before_step(self, step: int) -> Numbers:
        return np.array(self._first(min(step * self.batch, self.total)), dtype=np.int64)

    def _first(self, samples: int) -> list[int]:
        """Returns how many of the first so many samples are each lane's."""
        counts = [(2 * samples * length + self.total) // (2 * self.total) for length in self.lengths]
        missing = samples - sum(counts)  # each is right within half a sample; together they miss the sum by a few
        step = 1 if missing > 0 else -1

        def next_due(lane: int) -> list[tuple[Fraction, int]]:
            count, length = counts[lane], self.lengths[lane]
            possible = count < length if step > 0 else count > 0
            return [(Fraction(2 * count + step, length) * step, lane * step)] if possible else []

        heap = [entry for lane in range(len(counts)) if missing for entry in next_due(lane)]
        heapq.heapify(heap)
        for _ in range(abs(missing)):
            lane = heapq.heappop(heap)[1] * step
            counts[lane] += step
            for entry in next_due(lane):
                heapq.heappush(heap, entry)
        return counts
