"""Which machines the GPUs of jobs are on.

Jobs that stay or shrink keep their places. The others take whole machines first and the rest by best fit, and grow
around what they hold.

Invariants: no machine gives more GPUs than it has; no node is divided between machines; a job that gets onto several
machines shares none of them with another one that is on several, unless it would get nothing otherwise.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from elastic_launcher.quota.allocation.worth import Candidate

Placement = Mapping[str, int]  # GPUs on each machine, without zeros


@dataclass(frozen=True, slots=True)
class Wish:
    """GPUs that a job is to have.

    Attributes:
        candidate: The job.
        gpus: How many, of a legal size.
        held: What it holds, in whole nodes.
        present: GPUs of that.
        stays: Whether it is to stay where it is.
        first: Whether it comes before larger jobs.
    """

    candidate: Candidate
    gpus: int
    held: Placement
    present: int
    stays: bool
    first: bool = False

    def nodes(self, gpus: int) -> int:
        """Returns how many of a machine's free GPUs its nodes can use."""
        return gpus - gpus % self.candidate.node_gpus


class Machines:
    """The machines of one round, and who got what.

    Args:
        machines: GPUs that there are on each machine.
        in_process: Whether ranks that stay go on through a change.
    """

    def __init__(self, machines: Mapping[str, int], in_process: bool) -> None:
        self.placements: dict[str, dict[str, int]] = {}
        self._in_process = in_process
        self._size = dict(machines)
        self._free = dict(machines)
        self._having: dict[int, list[str]] = {}  # machines by their free GPUs, sorted
        for machine in sorted(machines):
            self._having.setdefault(machines[machine], []).append(machine)
        self._largest = max(machines.values(), default=0)
        self._spread: set[str] = set()  # machines with a job that is on several

    def place(self, wishes: Sequence[Wish]) -> list[Wish]:
        """Places jobs; returns those for which there was no place.

        The larger ones come first, and where ranks that stay go on, those that hold something come before newcomers.
        """
        moving = [wish for wish in wishes if not self._keep(wish)]
        moving.sort(key=lambda wish: (not wish.first, self._in_process and not wish.held, -wish.gpus))
        return [wish for wish in moving if not self._find(wish)]

    def squeeze(self, wishes: Sequence[Wish]) -> None:
        """Places jobs on what is left: the largest legal size that fits; none goes without while its least fits."""
        for wish in wishes:
            sizes = [size for size in wish.candidate.considered() if size <= wish.gpus]
            if not any(self._find(replace(wish, gpus=size)) for size in reversed(sizes)) and sizes:
                self._find(replace(wish, gpus=sizes[0]), sharing=True)

    def _keep(self, wish: Wish) -> bool:
        """Places a job that stays, or that shrinks where it is; returns whether it is one."""
        if wish.gpus > wish.present or any(self._free.get(machine, 0) < gpus for machine, gpus in wish.held.items()):
            return False
        kept: dict[str, int] = {}
        if wish.gpus == wish.present and wish.stays:
            for machine, gpus in wish.held.items():
                self._take(kept, machine, gpus)
        elif wish.gpus < wish.present and self._in_process:
            for machine in sorted(wish.held, key=lambda one: (-wish.held[one], one)):
                self._take(kept, machine, min(wish.held[machine], wish.gpus - sum(kept.values())))
        else:
            return False
        self._settle(wish, kept)
        return True

    def _find(self, wish: Wish, sharing: bool = False) -> bool:
        """Places a job on free GPUs; returns whether there are enough.

        Args:
            wish: The job.
            sharing: Whether it may share machines whatever else is on them.
        """
        found: dict[str, int] = {}
        self._grow_around(wish, found)
        self._take_whole(wish, found)
        self._take_best_fit(wish, found, set() if sharing else self._spread)
        if sum(found.values()) == wish.gpus:
            self._settle(wish, found)
            return True
        for machine, gpus in found.items():
            self._change(machine, gpus)
        return False

    def _grow_around(self, wish: Wish, found: dict[str, int]) -> None:
        """Takes what the job holds, and what is free beside that, unless it is better off on one machine."""
        if not (self._in_process and wish.held and wish.gpus > wish.present):
            return
        if any(self._free.get(machine, 0) < gpus for machine, gpus in wish.held.items()):
            return
        several = wish.gpus > self._largest
        if several and not self._spread.isdisjoint(wish.held):
            return
        if not several and (len(wish.held) > 1 or self._free[next(iter(wish.held))] < wish.gpus):
            return
        for machine, gpus in wish.held.items():
            self._take(found, machine, gpus)
        for machine in sorted(wish.held, key=lambda one: (-self._free[one], one)):
            left = wish.gpus - sum(found.values())
            self._take(found, machine, min(wish.nodes(self._free[machine]), left))

    def _take_whole(self, wish: Wish, found: dict[str, int]) -> None:
        """Takes machines of which nothing is taken, while more is wanted than fits on one; the job's own ones first."""
        most = wish.nodes(self._largest)
        while most and (left := wish.gpus - sum(found.values())) >= most:

            def fits(machine: str, left: int = left) -> bool:
                free = self._free[machine]
                return free == self._size[machine] and 0 < wish.nodes(free) <= left

            own = [machine for machine in sorted(wish.held) if machine in self._free and fits(machine)]
            machine = own[0] if own else self._first(range(self._largest, 0, -1), fits)
            if machine is None:
                break
            self._take(found, machine, wish.nodes(self._free[machine]))

    def _take_best_fit(self, wish: Wish, found: dict[str, int], closed: set[str]) -> None:
        """Takes the fullest machine that has enough, else the emptiest ones until there is enough."""
        while left := wish.gpus - sum(found.values()):
            several = bool(found)

            def is_open(machine: str, several: bool = several) -> bool:
                return machine not in found and not (several and machine in closed)

            own = [] if several else [one for one in sorted(wish.held) if self._free.get(one, 0) >= left]
            machine = own[0] if own else self._first(range(left, self._largest + 1), is_open)
            if machine is None:
                smaller = range(min(left, self._largest), wish.candidate.node_gpus - 1, -1)
                machine = self._first(smaller, lambda one: one not in found and one not in closed)
            if machine is None:
                break
            self._take(found, machine, min(wish.nodes(self._free[machine]), left))

    def _first(self, counts: Iterable[int], test: Callable[[str], bool]) -> str | None:
        """Returns the first machine that passes a test: by its free GPUs in the given order, then by name."""
        return next((one for count in counts for one in self._having.get(count, ()) if test(one)), None)

    def _take(self, found: dict[str, int], machine: str, gpus: int) -> None:
        if gpus:
            found[machine] = found.get(machine, 0) + gpus
            self._change(machine, -gpus)

    def _change(self, machine: str, gpus: int) -> None:
        free = self._free[machine]
        same = self._having[free]
        del same[bisect.bisect_left(same, machine)]
        self._free[machine] = free + gpus
        bisect.insort(self._having.setdefault(free + gpus, []), machine)

    def _settle(self, wish: Wish, found: dict[str, int]) -> None:
        self.placements[wish.candidate.name] = found
        if len(found) > 1:
            self._spread.update(found)
