"""Chooses the nodes that leave machines which a project needs for what is guaranteed to it.

Its jobs can use no other machines, and jobs of others that hold these can. So these shrink, and their hints name the
nodes that go first; they may grow again on other machines.

Invariants: a project gives up no more than it has over its guarantee; no job falls below its floor, nor is one cut that
has just grown, unless this round cuts it anyway; the same world gives the same nodes, also while they are leaving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace

from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.members import Member, with_bounds
from elastic_launcher.quota.rounds.world import Bound, Seat, Shared, World


def departures(
    owner: str,
    lacks: int,
    members: Sequence[Member],
    gpus: Mapping[str, int],
    spare: Mapping[str, int],
    before: Set[Seat],
    stale: bool = False,
) -> frozenset[Seat]:
    """Returns the nodes that are to leave for a project, with those that leave already.

    Args:
        owner: The project.
        lacks: How many GPUs it lacks of its guarantee.
        members: The jobs, in the order in which they are served.
        gpus: What each job gets without this.
        spare: What each project has over its guarantee then.
        before: Nodes that leave for other projects.
        stale: Whether what is there is not known now: then no job is cut further.
    """
    choice = _Choice(owner, members, gpus, spare, before, stale)
    planned = {member.job.id: (member.project.name, gpus[member.job.id]) for member in members}
    asked: Counter[tuple[Bound, ...]] = Counter()
    for member in members:
        has = gpus[member.job.id]
        if member.project.name == owner and any(has < size <= has + lacks for size in member.job.sizes):
            asked[member.bounds] += member.job.maximum - has if member.fixed is None else 0
    used = {bound.name: bound.at_once.taken_by(planned) for bounds in asked for bound in bounds}
    for bounds, more in asked.items():
        found, more = choice.with_room(bounds, used, min(lacks, more))
        if more:
            choice, lacks = found, lacks - more
            used.update({bound.name: used[bound.name] + more for bound in bounds})
    return frozenset(choice.seats)


def without(
    world: World, projects: Projects, members: Sequence[Member], seats: Set[Seat]
) -> tuple[World, Sequence[Member]]:
    """Returns what is there once some nodes have left, and the jobs, which have nothing in their place yet."""
    world, members = with_bounds(world, projects, members, lambda bound: bound.without(seats))
    gone = _held(seats)
    return world, [_without(member, gone[member.job.id]) if gone[member.job.id] else member for member in members]


def _without(member: Member, gone: int) -> Member:
    """Returns a job as it is without some of its GPUs: it neither grows nor keeps more than the rest."""
    left = _left(member, gone)
    return replace(member, keeps=min(member.keeps, left), ceiling=min(member.ceiling, left))


def still_leaving(world: World, members: Sequence[Member]) -> frozenset[Seat]:
    """Returns the nodes that earlier rounds have told to leave, and that are there: what was decided stays so."""
    told = {
        (member.job.id, node)
        for member in members
        if member.fixed is None and not member.account.kept
        for node in member.account.leave
    }
    seats = (seat for bound in world.bounds for machine in bound.shared for seat in machine.seats) if told else ()
    return frozenset(seat for seat in seats if (seat.job, seat.node) in told)


def _held(seats: Set[Seat]) -> Counter[str]:
    """Returns what nodes hold, by the job's id."""
    found: Counter[str] = Counter()
    for seat in seats:
        found[seat.job] += seat.gpus
    return found


def _left(member: Member, gone: int) -> int:
    """Returns what a job can use of what it holds, or may still take, without some of these GPUs."""
    return member.within(member.account.committed - gone)


@dataclass(frozen=True, slots=True)
class _Sum:
    """What some nodes come to.

    Attributes:
        gone: What they hold, by the job's id.
        given: What projects get less for that.
    """

    gone: Counter[str]
    given: Counter[str]


class _Choice:
    """A choice in the making.

    Attributes:
        seats: The nodes that leave.
    """

    def __init__(
        self,
        owner: str,
        members: Sequence[Member],
        gpus: Mapping[str, int],
        spare: Mapping[str, int],
        before: Set[Seat],
        stale: bool,
    ) -> None:
        self.seats = set(before)
        self._stale = stale
        others = [one for one in members if one.project.name != owner and one.fixed is None and not one.account.kept]
        self._places = {member.job.id: place for place, member in enumerate(others)}
        self._members = others
        self._gpus = gpus
        self._spare = spare
        self._sum = _Sum(_held(before), Counter())

    def copy(self) -> _Choice:
        """Returns the same choice, apart from this one."""
        other = copy(self)
        other.seats = set(self.seats)
        other._sum = _Sum(self._sum.gone.copy(), self._sum.given.copy())
        return other

    def with_room(self, bounds: Sequence[Bound], used: Mapping[str, int], gpus: int) -> tuple[_Choice, int]:
        """Returns the choice with the nodes that make room below bounds, and for how many GPUs they do.

        Args:
            bounds: The bounds.
            used: What is taken of each of them.
            gpus: The GPUs for which there should be room.
        """
        gpus = min([gpus, *(one.gpus - used[one.name] for one in bounds if not one.could_gain)])
        while gpus > 0:
            found = self.copy()
            for bound in bounds:
                if bound.could_gain:
                    found._make_room(bound, used[bound.name] + gpus)
            wished = gpus
            gpus = min([gpus, *(one.at_once.gpus + one.gained_at_once(found.seats) - used[one.name] for one in bounds)])
            if gpus == wished:
                return found, gpus
        return self, 0

    def _make_room(self, bound: Bound, gpus: int) -> None:
        """Has nodes leave until a bound leaves so many GPUs at once, if they can."""
        left = bound.at_once.gpus + bound.gained_at_once(self.seats)
        if left >= gpus:
            return
        ranked = []
        for number, machine in enumerate(bound.shared):
            if first := self._next(machine, bound.per_node):
                ranked.append((sum(seat.gpus for seat in first), number))
        for _, number in sorted(ranked):  # first where a whole node takes the place of the fewest GPUs
            machine = bound.shared[number]
            while left < gpus and (found := self._next(machine, bound.per_node)):
                left -= machine.gained_at_once(self.seats, bound.per_node)
                self.seats.update(found)
                left += machine.gained_at_once(self.seats, bound.per_node)
                for seat in found:
                    self._add(self._sum, seat)

    def _next(self, machine: Shared, per_node: int) -> list[Seat]:
        """Returns the nodes that give place to another whole node once they have left; none if they can't."""
        before = self.seats.intersection(machine.seats)
        could = [seat for seat in machine.seats if seat.job in self._places and seat not in before]
        gone = Counter({seat.job: self._sum.gone[seat.job] for seat in could})
        total, found = _Sum(gone, self._sum.given.copy()), list[Seat]()
        for seat in sorted(could, key=self._order):
            if self._add(total, seat):
                found.append(seat)
                if machine.gained_at_once(before.union(found), per_node) > machine.gained_at_once(before, per_node):
                    return found
        return []

    def _order(self, seat: Seat) -> tuple[bool, int, int, int]:
        """Sorts nodes as they leave: of jobs that shrink anyway, of the project with most over quota, of late jobs."""
        place = self._places[seat.job]
        member = self._members[place]
        stays = member.account.committed - self._sum.gone[seat.job] <= self._gpus[seat.job]
        return stays, -self._spare.get(member.project.name, 0), -place, -seat.node

    def _add(self, total: _Sum, seat: Seat) -> bool:
        """Adds a node to a sum, unless its job can't, or its project need not, do without."""
        member = self._members[self._places[seat.job]]
        name, gone, has = member.project.name, total.gone[seat.job], self._gpus[seat.job]
        if self._stale and gone + seat.gpus > member.account.committed - member.account.allowed:
            return False
        left = _left(member, gone + seat.gpus)
        less = max(0, has - left) - (max(0, has - _left(member, gone)) if gone else 0)
        if left < max(member.floor, member.keeps) or (less and total.given[name] + less > self._spare.get(name, 0)):
            return False
        total.gone[seat.job] += seat.gpus
        total.given[name] += less
        return True
