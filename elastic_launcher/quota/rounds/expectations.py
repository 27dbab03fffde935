"""Has projects count on less of a bound where their other jobs can have what is guaranteed to them all the same.

Fair shares of a bound alone would let a project keep its jobs there that can have other GPUs too, while the jobs of
another project can't have any others. So it counts on less of the bound where that brings the other one closer to its
guarantee, and nobody below theirs, nor a project above them. Only those above the one that gains may have less: its
guarantee is part of theirs.

Invariants: what projects count on does not depend on what jobs have, so it stays while some give way; where no project
lacks guaranteed GPUs, each counts on its fair share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.demands import Portions, demands_of, portions_of, within_guarantees
from elastic_launcher.quota.rounds.handout import Handout
from elastic_launcher.quota.rounds.members import Member, without_movable
from elastic_launcher.quota.rounds.room import Room
from elastic_launcher.quota.rounds.world import Bound, World

MOST = 3000
"""Jobs and projects that GPUs are handed out to in all trials of a round together: a trial takes as long as a plan."""


def expected(world: World, projects: Projects, members: Sequence[Member]) -> tuple[dict[str, int], Portions]:
    """Returns what each project asks for, and what it counts on of each bound.

    What jobs hold that can use other machines too does not matter to either: a job that moves would change the fair
    shares and what others count on, and they what it has.

    Args:
        world: What is there.
        projects: The projects.
        members: The jobs, in the order in which they are served.
    """
    world, members = without_movable(world, projects, members)
    portions = portions_of(world, projects, members)
    shared = _shared(world, portions)
    if shared:
        portions = _Trials(world, projects, members, shared).after_giving_way(portions)
    return demands_of(world.rigid, members, portions), portions


def _shared(world: World, portions: Portions) -> dict[Bound, frozenset[str]]:
    """Returns the bounds of other enforcers that several projects have jobs under, and these projects."""
    found: dict[str, set[str]] = {bound.name: set() for bound in world.bounds if not bound.per_node}
    for bound, name in portions:
        if bound in found:
            found[bound].add(name)
    return {bound: frozenset(found[bound.name]) for bound in world.bounds if len(found.get(bound.name, ())) > 1}


class _Trials:
    """Tries what projects would have if all of their jobs were new, by what they count on."""

    def __init__(
        self, world: World, projects: Projects, members: Sequence[Member], shared: Mapping[Bound, frozenset[str]]
    ) -> None:
        self._world = world
        self._projects = projects
        self._members = [_as_new(member) for member in members]
        self._shared = shared

    def after_giving_way(self, portions: Portions) -> Portions:
        """Returns what projects count on once some have given way to those that lack guaranteed GPUs."""
        (due, due_below), has = self._due(portions), self._handed_out(portions)
        left = MOST // (len(self._members) + len(self._projects.projects))
        pairs = sorted({pair for names in self._shared.values() for pair in permutations(names, 2)})
        for name, other, bounds in ((*pair, some) for pair in pairs for some in self._ways(*pair)):
            above = {one.name for one in self._projects.path(name)}  # for these, its guarantee is part of theirs
            more = _lacks(name, bounds, due[name], portions, has)
            while (
                left > 0 and more > 0 and (has.own(other) > due[other] or self._can_spare(other, name, portions, has))
            ):
                left -= 1
                moved = _moved(bounds, other, name, more, portions)
                room = self._handed_out(moved)
                kept = all(room.own(one) >= min(has.own(one), gpus) for one, gpus in due.items())
                kept &= all(
                    room.below(one) >= min(has.below(one), gpus) for one, gpus in due_below.items() if one not in above
                )
                if kept and room.own(name) > has.own(name):
                    portions, has, more = moved, room, _lacks(name, bounds, due[name], moved, room)
                else:
                    more //= 2
        return portions

    def _due(self, portions: Portions) -> tuple[dict[str, int], dict[str, int]]:
        """Returns what each project has at most within its guarantee if no other one has anything under its bounds.

        First without, then with the projects below it.
        """
        most = {bound.name: bound.gpus for bound in self._shared}
        demands, shares = self._shares({key: most.get(key[0], gpus) for key, gpus in portions.items()})
        own = within_guarantees(self._projects, shares, demands)
        return own, {one.name: min(shares[one.name], one.guaranteed) for one in self._projects.projects}

    def _shares(self, portions: Portions) -> tuple[dict[str, int], dict[str, int]]:
        """Returns what projects ask for, and the fair shares of that."""
        demands = demands_of(self._world.rigid, self._members, portions)
        return demands, fair_share(self._world.capacity, self._projects.claims(demands, self._world.rigid))

    def _handed_out(self, portions: Portions) -> Room:
        """Returns what each project gets."""
        handout = Handout(self._world, self._projects, self._members, portions)
        handout.hand_out(self._shares(portions)[1])
        return handout.room

    def _can_spare(self, other: str, name: str, portions: Portions, has: Room) -> bool:
        """Returns whether a project has jobs that are under no bound of another one's, or does not use its part."""
        common = {bound.name for bound in self._common(other, name)}
        if any(portions[bound.name, other] > has.part(bound, other) for bound in self._common(other, name)):
            return True
        own = (member for member in self._members if member.project.name == other)
        return any(common.isdisjoint(bound.name for bound in member.bounds) for member in own)

    def _common(self, *names: str) -> list[Bound]:
        """Returns the bounds that all of some projects have jobs under."""
        return [bound for bound, those in self._shared.items() if those.issuperset(names)]

    def _ways(self, name: str, other: str) -> list[list[Bound]]:
        """Returns the bounds under which a project may give way to another one: all that both are under, and each."""
        common = self._common(other, name)
        return [common, *([bound] for bound in common)] if len(common) > 1 else [common]


def _lacks(name: str, bounds: Sequence[Bound], due: int, portions: Portions, has: Room) -> int:
    """Returns how many more GPUs of some bounds a project would have to count on to have what is due to it; 0 if it
    has that. What it has there without counting on it is what nobody else took.
    """
    if has.own(name) >= due:
        return 0
    return due - has.own(name) + sum(max(0, has.part(bound, name) - portions[bound.name, name]) for bound in bounds)


def _moved(bounds: Sequence[Bound], other: str, name: str, gpus: int, portions: Portions) -> Portions:
    """Returns the portions where a project counts on fewer GPUs of some bounds, and another one on more."""
    moved = dict(portions)
    for bound in bounds:
        less = min(gpus, portions[bound.name, other])
        moved[bound.name, other] -= less
        moved[bound.name, name] += less
    return moved


def _as_new(member: Member) -> Member:
    """Returns a member as if its job had nothing yet, unless it can't be resized."""
    if member.by_hand or member.account.kept:
        return member
    return replace(member, account=replace(member.account, allowed=0), floor=0, keeps=0, ceiling=member.asked)
