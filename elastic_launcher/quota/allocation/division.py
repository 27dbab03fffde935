"""Divides GPUs among jobs where they are worth most.

Invariants: no more GPUs than there are; each job gets 0 or a legal size, and no less than its floor; the answer does
not depend on the order of the jobs; what an answer gives, the next round with the same jobs gives again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from elastic_launcher.quota.allocation.knapsack import Choices, choose
from elastic_launcher.quota.allocation.worth import Candidate, Options, Settings, options, weights

__all__ = ["Candidate", "Settings", "divide"]

_ROUNDS = 20  # rounds until the next one would change nothing
_NEXT = 4  # GPUs beyond its best number that a job is looked at with first, where all are to be used
NOISE = 1e-12  # a difference of value that rounding can make

_DEFAULT = Settings()


def divide(
    candidates: Sequence[Candidate],
    total: int,
    held: Mapping[str, int],
    *,
    floors: Mapping[str, int] | None = None,
    fill: bool = False,
    settings: Settings = _DEFAULT,
) -> dict[str, int]:
    """Returns the GPUs of each job, where somebody else chooses the machines.

    Args:
        candidates: The jobs.
        total: GPUs that there are.
        held: GPUs that jobs hold; on the fewest machines, as far as is known.
        floors: GPUs that jobs get at least.
        fill: Whether as many GPUs as the jobs' sizes allow are used, also where fewer are worth more.
        settings: The prices.

    Raises:
        ValueError: If the floors need more GPUs than there are.
    """
    division = Division(candidates, total, floors or {}, settings, fill)
    present = {job.name: held.get(job.name, 0) for job in division.jobs}
    possible = division.is_possible(present) and (not fill or sum(present.values()) == total)
    seen = []
    for _ in range(_ROUNDS):
        speeds = {
            job.name: float(job.speeds.curve(np.array([count]))[0]) if (count := present[job.name]) else 0.0
            for job in division.jobs
        }
        choices, found = division.begin(present, speeds)
        gain = sum(
            division.weights[name] * (choices[name].values[gpus] - (choices[name].staying or 0.0))
            for name, gpus in found.items()
        )
        if found == present or (possible and gain <= NOISE):
            break
        seen.append(present)
        present, possible = found, True
        if present in seen:  # a circle, where each looks better from the one before: whoever begins here ends here
            break
    return present


class Division:
    """The jobs that GPUs are divided among, and the rules.

    Args:
        candidates: The jobs.
        total: GPUs that there are.
        floors: GPUs that jobs get at least.
        settings: The prices.
        fill: Whether as many GPUs as the jobs' sizes allow are used.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        total: int,
        floors: Mapping[str, int],
        settings: Settings,
        fill: bool = False,
    ) -> None:
        self.jobs = sorted(candidates, key=lambda one: (-one.priority, one.service, one.submitted, one.name))
        self.weights = weights(self.jobs, settings)
        self.settings = settings
        self._total = total
        self._floors = floors
        self._fill = fill
        self._weighed: dict[str, tuple[Mapping[int, float], Choices]] = {}

    def begin(self, held: Mapping[str, int], speeds: Mapping[str, float]) -> tuple[dict[str, Options], dict[str, int]]:
        """Returns what jobs may be given, and the division of that.

        Where GPUs are left over, each number that could use them is looked at too. To fill, the next few come first:
        where growth does not pay, many are left.

        Args:
            held: GPUs that jobs hold.
            speeds: Their speeds on those, over one GPU.
        """
        choices = {job.name: self._options(job, held[job.name], speeds[job.name]) for job in self.jobs}
        found = self.solve(choices)
        for most in (_NEXT, self._total) if self._fill else (self._total,):
            if left := self._total - sum(found.values()):
                for job in self.jobs:
                    count = found[job.name]
                    more = range(count + 1, count + min(left, most) + 1)
                    choices[job.name] = self._options(job, held[job.name], speeds[job.name], more)
                found = self.solve(choices, fill=self._fill)
        return choices, found

    def _options(self, job: Candidate, held: int, speed: float, more: Iterable[int] = ()) -> Options:
        return options(job, held, speed, self._total, self._floors.get(job.name, 0), self.settings, more)

    def solve(self, choices: Mapping[str, Options], *, fill: bool = False) -> dict[str, int]:
        """Returns the GPUs of each job.

        Args:
            choices: What jobs may be given.
            fill: Whether as many GPUs as that allows are used.
        """
        for job in self.jobs:
            values = choices[job.name].values
            if job.name not in self._weighed or self._weighed[job.name][0] is not values:
                self._weighed[job.name] = values, Choices(values, self.weights[job.name])
        found = choose([self._weighed[job.name][1] for job in self.jobs], self._total, fill=fill)
        return {job.name: gpus for job, gpus in zip(self.jobs, found, strict=True)}

    def keeping(self, held: Mapping[str, int]) -> Division:
        """Returns the division in which nobody gets fewer GPUs than it holds."""
        floors = {job.name: max(held[job.name], self._floors.get(job.name, 0)) for job in self.jobs}
        return Division(self.jobs, self._total, floors, self.settings)

    def is_possible(self, counts: Mapping[str, int]) -> bool:
        """Returns whether jobs may hold so many GPUs."""
        legal = all(not counts[job.name] or job.is_legal(counts[job.name]) for job in self.jobs)
        above = all(counts[name] >= floor for name, floor in self._floors.items() if name in counts)
        return legal and above and sum(counts.values()) <= self._total
