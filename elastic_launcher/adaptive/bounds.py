"""The batch sizes that a job may have on a number of ranks.

Invariants: each can be divided among the ranks as `batch.share` does it, and no micro-batch exceeds its maximum. All
meet all conditions as long as one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from elastic_launcher.batch import share, whole_number
from elastic_launcher.virtual_ranks import share_virtual

POINTS = 50  # batch sizes that are compared, each about as much larger than the one before it


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which batch sizes a job may have.

    The global batch is never outside its bounds, and no micro-batch above its maximum. If no batch size meets the other
    two conditions on some number of ranks, the base batch holds there, as without adaptive training.

    Attributes:
        base_batch_size: The global batch that the script's learning rate is for; the smallest one.
        max_batch_size: The largest global batch.
        max_micro_batch: Most samples of a micro-batch.
        min_micro_batch: Fewest samples of a micro-batch.
        accumulation: Whether a step may have several micro-batches.
        batch_statistics: Whether no micro-batch may have one sample, as batch norm needs it.
        virtual_ranks: Among how many virtual ranks a step is divided; 0 where it is divided among the ranks.
        epoch_samples: Samples of an epoch whose last step has what is left; 0 where all its steps are full.

    Raises:
        ValueError: If a number is not a whole one of 1 or more, or bounds contradict each other.
    """

    base_batch_size: int
    max_batch_size: int
    max_micro_batch: int
    min_micro_batch: int = 1
    accumulation: bool = True
    batch_statistics: bool = False
    virtual_ranks: int = 0
    epoch_samples: int = 0

    def __post_init__(self) -> None:
        for name in ("base_batch_size", "max_batch_size", "max_micro_batch", "min_micro_batch"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("virtual_ranks", "epoch_samples"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 0))
        for low, high in (("base_batch_size", "max_batch_size"), ("min_micro_batch", "max_micro_batch")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low} is {getattr(self, low)}; it must not be above {high}, {getattr(self, high)}")

    @staticmethod
    def fixed(
        batch_size: int, max_micro_batch: int, *, batch_statistics: bool = False, virtual_ranks: int = 0
    ) -> Bounds:
        """Returns the bounds of a job whose global batch stays the same."""
        return Bounds(
            batch_size,
            batch_size,
            max_micro_batch,
            batch_statistics=batch_statistics,
            virtual_ranks=virtual_ranks,
        )

    def contain(self, batch_size: int, ranks: int) -> bool:
        """Returns whether a batch size meets all conditions on a number of ranks."""
        if not self.base_batch_size <= batch_size <= self.max_batch_size:
            return False
        try:
            first, last = (self.micro_batches(batch_size, ranks, rank) for rank in (0, ranks - 1))
        except ValueError:  # batch norm: one micro-batch would have a single sample
            return False
        smallest = min(first[-1], last[-1]) if last else 0
        return smallest >= self.min_micro_batch and (self.accumulation or len(first) == 1)

    def micro_batches(self, batch_size: int, ranks: int, rank: int = 0) -> tuple[int, ...]:
        """Returns a rank's micro-batches in a full step. Rank 0 has the most samples and micro-batches.

        The first is the largest, unless there are virtual ranks.

        Raises:
            ValueError: If batch norm could not take its statistics.
        """
        most, statistics = self.max_micro_batch, self.batch_statistics
        if self.virtual_ranks:
            found = share_virtual(batch_size, most, self.virtual_ranks, ranks, rank, batch_statistics=statistics)
        else:
            found = share(batch_size, most, ranks, rank, batch_statistics=statistics)
        return found.micro_batches

    def candidates(self, ranks: int) -> list[int]:
        """Returns the batch sizes that are compared, ascending: within the bounds, and the base batch if none is."""
        points = np.geomspace(self.base_batch_size, self.max_batch_size, POINTS)
        found = {batch_size for point in points for batch_size in self._near(float(point), ranks)}
        legal = sorted(batch_size for batch_size in found if self.contain(batch_size, ranks))
        return legal or [self.base_batch_size]

    def _near(self, point: float, ranks: int) -> Iterator[int]:
        """Yields batch sizes near a point: with equal micro-batches, the nearest one within bounds, with full ones.

        With n micro-batches a rank, the batch sizes from n·ranks·minimum to n·ranks·maximum meet all conditions. The
        last one divides an epoch into steps of about one size.
        """
        accumulation = math.ceil(math.ceil(point / ranks) / self.max_micro_batch) if self.accumulation else 1
        unit = ranks * accumulation
        least, most = unit * self.min_micro_batch, unit * self.max_micro_batch
        yield min(max(unit * round(point / unit), least), most)
        yield min(max(round(point), least), most, self.max_batch_size)
        yield most
        if self.epoch_samples:
            yield -(-self.epoch_samples // max(1, round(self.epoch_samples / point)))
