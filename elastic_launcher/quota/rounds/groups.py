"""Which numbers of GPUs the jobs of a project that are under the same bounds can have together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elastic_launcher.quota.projects import Project
from elastic_launcher.quota.rounds.members import Member
from elastic_launcher.quota.rounds.world import Bound


@dataclass(slots=True)
class Group:
    """The jobs of a project that are under the same bounds.

    Attributes:
        project: The project.
        bounds: What others enforce for all of them.
        members: The jobs, in the order in which they are served.
        gpus: What is set apart for them.
        jobs: How many of them have their minimum.
        sums: The sums of GPUs that those can have which have their minimum, as the bits of a number.
    """

    project: Project
    bounds: tuple[Bound, ...] = ()
    members: list[Member] = field(default_factory=list)
    gpus: int = 0
    jobs: int = 0
    sums: int = 1

    @property
    def gpus_each(self) -> float:
        """What is set apart for each job that has its minimum."""
        return self.gpus / max(1, self.jobs)

    def add(self, options: Iterable[int], capacity: int) -> None:
        """Adds a job that has the least of its options; sums above the capacity are left out."""
        sums, first = 0, None
        for size in options:
            first = size if first is None else first
            sums |= self.sums << size
        self.sums = sums & ((1 << max(capacity, self.gpus + (first or 0)) + 1) - 1)
        self.gpus += first or 0
        self.jobs += 1

    def usable(self, budget: int) -> int:
        """Returns the largest sum that the jobs can have within a budget; what they have if there is none."""
        within = self.sums & ((1 << (budget + 1)) - 1)
        return max(self.gpus, within.bit_length() - 1)

    def next_sum(self) -> int:
        """Returns the next larger sum that the jobs can have; what is set apart if there is none."""
        above = self.sums >> self.gpus + 1
        return self.gpus + (above & -above).bit_length()
