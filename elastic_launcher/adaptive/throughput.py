"""How long an optimizer step takes on any number of ranks, from the seconds of its parts.

The model is that of Pollux (Qiao et al., OSDI 2021, §3.2). A micro-batch of m samples takes C = a + b·m seconds. Ranks
synchronize in S = a' + b'·(ranks - 2) seconds, with one pair of numbers within a machine and another one across
machines. Micro-batches before a step's last one are not synchronized. The last one and the synchronization overlap:
together they take (Cᵞ + Sᵞ)^(1/γ) seconds, which is their sum for γ = 1 and nearly the longer one for γ = 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from elastic_launcher.batch import whole_number

NO_OVERLAP, MOST_OVERLAP = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """The seconds of a step's parts.

    Attributes:
        compute: Seconds of a micro-batch of any size.
        compute_per_sample: Seconds that each of its samples adds.
        across: Seconds to synchronize two ranks on two machines.
        across_per_rank: Seconds that each further rank adds, on two machines or more.
        within: Seconds to synchronize two ranks on one machine.
        within_per_rank: Seconds that each further rank adds, on one machine.
        overlap: γ, from 1 (the last micro-batch, then the synchronization) to 10 (both at the same time).

    Raises:
        ValueError: If a number is negative or not finite, a micro-batch takes no time, or γ is out of range.
    """

    compute: float
    compute_per_sample: float
    across: float = 0.0
    across_per_rank: float = 0.0
    within: float = 0.0
    within_per_rank: float = 0.0
    overlap: float = NO_OVERLAP

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value!r}; it must be a finite number, 0 or more")
        if self.compute + self.compute_per_sample <= 0:
            raise ValueError("compute and compute_per_sample are 0; a micro-batch must take some time")
        if not NO_OVERLAP <= self.overlap <= MOST_OVERLAP:
            raise ValueError(f"overlap is {self.overlap!r}; it must be from {NO_OVERLAP:g} to {MOST_OVERLAP:g}")

    def micro_batch_seconds(self, micro_batch: int) -> float:
        """Returns the seconds of a micro-batch without synchronization."""
        return self.compute + self.compute_per_sample * micro_batch

    def synchronization_seconds(self, machines: int, ranks: int) -> float:
        """Returns the seconds of a synchronization that overlaps with nothing."""
        if ranks == 1:
            return 0.0
        if machines > 1:
            return self.across + self.across_per_rank * (ranks - 2)
        return self.within + self.within_per_rank * (ranks - 2)

    def step_seconds(self, machines: int, ranks: int, micro_batch: int, accumulation: int) -> float:
        """Returns the seconds of an optimizer step.

        Args:
            machines: Machines (Kubernetes nodes) that the ranks are on.
            ranks: World size.
            micro_batch: Samples of the largest micro-batch of rank 0, which has the most samples: others wait for it.
            accumulation: Micro-batches of rank 0.

        Raises:
            ValueError: If a number is not a whole one of 1 or more, or there are more machines than ranks.
        """
        if whole_number("machines", machines) > whole_number("ranks", ranks):
            raise ValueError(f"machines is {machines}; it must not be above ranks, {ranks}")
        compute = self.micro_batch_seconds(whole_number("micro_batch", micro_batch))
        synchronization = self.synchronization_seconds(machines, ranks)
        longer, shorter = max(compute, synchronization), min(compute, synchronization)
        last = longer * math.pow(1 + math.pow(shorter / longer, self.overlap), 1 / self.overlap)
        return (whole_number("accumulation", accumulation) - 1) * compute + last
