"""Bounds jobs by the machines that their pods can use.

Some jobs have a place for all of their GPUs if, and only if, for each union of the machines that some of them can use,
the jobs that can use no others have one there (Hall's theorem). So each such union is a bound. Where one set contains
the other, or both have no machine in common, the bounds of the two imply that of their union, and it is left out. Of
others there are at most `MOST_UNIONS`; beyond that, jobs may be allowed GPUs together that only one of them finds.

What a job holds on machines that it can share is not counted on to move: of a union, it is taken off for those jobs
that can use no other machines. What smaller nodes of others hold keeps whole nodes away as long as it is held: these
don't grow before it is gone.

Invariants: a job is bound by what its machines have, less what pods hold there that are not elastic, in whole nodes;
what jobs hold on machines that they could not use any more counts for them as long as they do, and for no others; with
jobs that can all use all machines, there is no bound but that of whole nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.rounds.world import Bound, Seat, Shared

MOST_UNIONS = 64
"""Bounds of unions beside those of the jobs' own machines; each costs a round a little time."""


@dataclass(frozen=True, slots=True)
class Stock:
    """The GPUs of machines.

    Attributes:
        gpus: What each machine has, by its name; machines that will be taken away are left out.
        others: What pods hold there that are of no job.
        held: What each job holds there, by its id and the machine's name.
        seats: The nodes of the jobs whose numbers are known, by the machine's name.
    """

    gpus: Mapping[str, int]
    others: Mapping[str, int]
    held: Mapping[str, Mapping[str, int]]
    seats: Mapping[str, Sequence[Seat]] = field(default_factory=lambda: MappingProxyType({}))


def bounds_by_machines(
    stock: Stock,
    jobs: Sequence[Job],
    usable: Mapping[str, frozenset[str]],
    every: frozenset[str],
    spare: int = 0,
    also: Iterable[frozenset[str]] = (),
) -> list[Bound]:
    """Returns what machines leave to those jobs that can use these alone.

    Args:
        stock: The GPUs.
        jobs: Those that count.
        usable: The machines that each job's pods can use, by the job's id.
        every: All machines that the capacity counts in full.
        spare: GPUs of machines that may come; nobody knows yet who can use them.
        also: Further machines that bound the jobs which can use no others.
    """
    machines = _Machines(stock, jobs, usable)
    whole = machines.mask(every)
    stray = machines.elsewhere(whole, frozenset(name for name, found in usable.items() if not found))
    bounds = []
    for mask in _unions({*machines.masks, *map(machines.mask, also)}):
        union, holders = machines.union(mask), machines.holders(mask)
        for per_node, those in union.jobs():
            gpus, now = union.left(per_node), union.now(per_node)
            if mask != whole or now < union.left(1) or stray:
                more = machines.elsewhere(mask, those) + spare
                found = Bound(
                    name=f"machines {mask:x}, {per_node} GPUs a node",
                    jobs=those,
                    gpus=gpus + more,
                    per_node=per_node,
                    taken=union.taken,
                    movable=union.left(per_node, emptied=True) - gpus,
                    holders=holders,
                    now=now + more,
                    smaller=sum(union.smaller(per_node)),
                    shared=tuple(union.shared(per_node)),
                )
                bounds.append(found)
    return bounds


def _unions(masks: Iterable[int]) -> list[int]:
    """Returns sets of machines, as the bits of numbers, with the unions of those that overlap in part."""
    known = set(masks)
    wide = sorted(one for one in known if one & (one - 1))  # one machine is within another set, or apart from it
    most = len(wide) + MOST_UNIONS
    for number, one in enumerate(wide):  # it grows meanwhile
        for other in wide[:number]:
            union = one | other
            if one & other and union not in known and len(wide) < most:
                known.add(union)
                wide.append(union)
    return sorted(known)


@dataclass(frozen=True, slots=True)
class _Union:
    """Machines, and the jobs that can use no others.

    Attributes:
        inside: The ids of these jobs, by the GPUs of a node.
        free: What each machine leaves to them.
        emptied: What it would leave to them without the jobs that can use others too.
        taken: What all others hold there.
        held: What these jobs hold on each machine, by the GPUs of a node.
        bare: What each machine leaves to them; below 0 where it has fewer than pods hold.
        seats: The nodes on each machine of jobs that can use others too, and those of these jobs.
    """

    inside: Sequence[tuple[int, Sequence[str]]]
    free: Sequence[int]
    emptied: Sequence[int]
    taken: int
    held: Mapping[int, Sequence[int]]
    bare: Sequence[int]
    seats: Sequence[tuple[Sequence[Seat], Sequence[Seat]]]

    def jobs(self) -> Iterator[tuple[int, frozenset[str]]]:
        """Yields numbers of GPUs, and the jobs whose nodes have multiples of it; the same jobs once, with the most."""
        seen = set()
        for step in sorted({1, *(per_node for per_node, _ in self.inside)}, reverse=True):
            those = frozenset(name for per_node, names in self.inside if per_node % step == 0 for name in names)
            if those not in seen:
                seen.add(those)
                yield step, those

    def left(self, per_node: int, *, emptied: bool = False) -> int:
        """Returns what the machines leave to these jobs, in whole nodes: now, or without jobs that can use others."""
        return sum(free // per_node * per_node for free in (self.emptied if emptied else self.free))

    def now(self, per_node: int) -> int:
        """Returns what they leave in whole nodes while those of these jobs that are smaller, or odd, stay."""
        free = (max(0, free - gpus) for free, gpus in zip(self.free, self.smaller(per_node), strict=True))
        return sum(gpus // per_node * per_node for gpus in free)

    def shared(self, per_node: int) -> Iterator[Shared]:
        """Yields those machines that leave more whole nodes to these jobs once some of the nodes there have left."""
        for free, smaller, (others, own) in zip(self.bare, self.smaller(per_node), self.seats, strict=True):
            small = tuple(seat for seat in own if seat.gpus % per_node) if smaller else ()
            if others or small:
                yield Shared(free, tuple(others), smaller, small)

    def smaller(self, per_node: int) -> Sequence[int]:
        """Returns what nodes hold on each machine that have no multiple of some GPUs."""
        odd = [held for size, held in self.held.items() if size % per_node]
        return [sum(there) for there in zip(*odd, strict=True)] or [0] * len(self.free)


class _Machines:
    """Machines as the bits of numbers, and the jobs by the machines that they can use."""

    def __init__(self, stock: Stock, jobs: Sequence[Job], usable: Mapping[str, frozenset[str]]) -> None:
        self._stock = stock
        self._names = sorted(stock.gpus)
        self._bits = {name: 1 << number for number, name in enumerate(self._names)}
        known: dict[frozenset[str], int] = {}
        self._alike: dict[tuple[int, int], list[str]] = {}  # jobs by their machines, and by the GPUs of their nodes
        self._held: dict[tuple[int, int], dict[str, int]] = {}  # as above, and by where it is
        self._on: dict[str, list[tuple[str, int, int]]] = {}  # jobs with their machines and GPUs, by where these are
        self._mask_of: dict[str, int] = {}
        for job in jobs:
            mask = known.setdefault(usable[job.id], -1)
            if mask < 0:
                mask = known[usable[job.id]] = self.mask(usable[job.id])
            self._mask_of[job.id] = mask
            self._alike.setdefault((mask, job.per_node), []).append(job.id)
            _add(self._held.setdefault((mask, job.per_node), {}), stock.held.get(job.id, {}))
            for name, gpus in stock.held.get(job.id, {}).items():
                self._on.setdefault(name, []).append((job.id, mask, gpus))
        self._all_held: dict[str, int] = {}
        for held in self._held.values():
            _add(self._all_held, held)

    @property
    def masks(self) -> Iterable[int]:
        """The sets of machines that jobs can use."""
        return {mask for mask, _ in self._held}

    def mask(self, names: Iterable[str]) -> int:
        """Returns a set of machines."""
        return sum(self._bits[name] for name in names)

    def union(self, mask: int) -> _Union:
        """Returns machines, with those jobs that can use no others."""
        own: dict[str, int] = {}
        by_size: dict[int, dict[str, int]] = {}
        for (other, per_node), held in self._held.items():
            if _is_within(other, mask):
                _add(own, held)
                _add(by_size.setdefault(per_node, {}), held)
        bare, emptied, seats, taken = [], [], [], 0
        for name in self._of(mask):
            there, rigid = self._stock.gpus[name], self._stock.others.get(name, 0)
            foreign = rigid + self._all_held.get(name, 0) - own.get(name, 0)
            bare.append(there - foreign)
            emptied.append(max(0, there - rigid))
            taken += min(there, foreign)
            seats.append(self._seats_on(name, mask))
        inside = [(per_node, names) for (other, per_node), names in self._alike.items() if _is_within(other, mask)]
        on = {per_node: [held.get(name, 0) for name in self._of(mask)] for per_node, held in by_size.items()}
        return _Union(inside, [max(0, gpus) for gpus in bare], emptied, taken, on, bare, seats)

    def _seats_on(self, machine: str, mask: int) -> tuple[Sequence[Seat], Sequence[Seat]]:
        """Returns the nodes on a machine of jobs that can use machines beyond some, and those of jobs that can't."""
        others, own = list[Seat](), list[Seat]()
        for seat in self._stock.seats.get(machine, ()):
            (own if _is_within(self._mask_of[seat.job], mask) else others).append(seat)
        return others, own

    def holders(self, mask: int) -> tuple[tuple[str, int], ...]:
        """Returns what jobs hold on machines that can use others too, the most first."""
        found: dict[str, int] = {}
        for name in self._of(mask):
            for job, own, gpus in self._on.get(name, ()):
                if not _is_within(own, mask):
                    _add(found, {job: gpus})
        return tuple(sorted(found.items(), key=lambda one: (-one[1], one[0])))

    def elsewhere(self, mask: int, jobs: frozenset[str]) -> int:
        """Returns what jobs hold on other machines."""
        held: dict[str, int] = {}
        for job in jobs:
            _add(held, self._stock.held.get(job, {}))
        return sum(
            min(gpus, self._stock.gpus[name])
            for name, gpus in held.items()
            if name in self._bits and not mask & self._bits[name]
        )

    def _of(self, mask: int) -> Iterator[str]:
        while mask:
            lowest = mask & -mask
            yield self._names[lowest.bit_length() - 1]
            mask -= lowest


def _is_within(some: int, machines: int) -> bool:
    """Returns whether machines are some of others; no machines are within none alone."""
    return some & machines == some and bool(some) == bool(machines)


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, gpus in more.items():
        counts[name] = counts.get(name, 0) + gpus
