"""Decides how many GPUs each job should have once every change has taken place.

Invariants: the targets and the pods that are not elastic fit into the capacity, and into the limit of each project and
of each project above it; the targets of the jobs of a bound fit into that once the nodes that are to leave have left; a
job's target is 0 or one of its sizes; the targets depend on the world, the documents and the ledger alone, and not on
the order of the jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from elastic_launcher.quota.allocation.candidates import candidate
from elastic_launcher.quota.allocation.division import Settings, divide
from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.demands import Portions, demands_of, expected, own_share, portions_of
from elastic_launcher.quota.rounds.departures import departures, still_leaving, without
from elastic_launcher.quota.rounds.groups import Group
from elastic_launcher.quota.rounds.members import Member
from elastic_launcher.quota.rounds.room import Room
from elastic_launcher.quota.rounds.world import Bound, Seat, World

LIFTS = 3
"""Attempts to meet all guarantees by changing jobs that have just changed; an attempt can show another lack."""
OWNERS = 8
"""For so many projects at a time, nodes of others leave machines that these need."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Who should have how many GPUs.

    Attributes:
        gpus: By the job's id.
        shares: The fair share of each project, with all projects below it.
        demands: What each project's own jobs and pods ask for.
        entitled: What each project may have within its guarantee: of what is left to it now, at most its share.
        owed: Projects that get their guarantee only because jobs change again that have just changed.
        leaving: Nodes that are to leave machines which projects need for what is guaranteed to them.
    """

    gpus: Mapping[str, int]
    shares: Mapping[str, int]
    demands: Mapping[str, int]
    entitled: Mapping[str, int]
    owed: frozenset[str] = frozenset()
    leaving: frozenset[Seat] = frozenset()


def decide_targets(world: World, projects: Projects, members: Sequence[Member], now: float) -> Targets:
    """Returns how many GPUs each job should have.

    Fair shares come first: what is guaranteed, then what is over quota. In each project, jobs get their minimum by
    priority and age, and the rest goes where it is worth most. What no project can use of its share goes to whoever
    can. A job that has just grown is not cut, unless that keeps a project from its guarantee. Where a project lacks
    guaranteed GPUs all the same, since others hold its machines which can use more, nodes of these are to leave.
    """
    leaving = still_leaving(world, members)
    world, members = without(world, projects, members, leaving)
    demands, portions = expected(world, projects, members)
    shares = fair_share(world.capacity, projects.claims(demands, world.rigid))
    entitled = {
        name: min(asked, own_share(projects, shares, name), projects.named(name).guaranteed)
        for name, asked in demands_of(world.rigid, members, portions).items()
    }

    def attempt(around: World, jobs: Sequence[Member], counted: Portions, owed: frozenset[str]) -> _Attempt:
        plan = _Plan(around, projects, jobs, counted, now)
        return _Attempt(plan, plan.made(shares), jobs, counted, owed)

    best = last = attempt(world, members, portions, frozenset())
    cost = _lacking(best.plan, entitled), 0
    tried = members
    for _ in range(LIFTS):
        lacking = best.owed | best.short(entitled)
        lifted = _lifted(world, members, entitled, last.gpus) if any(cost) or best.owed else tried
        if lifted == tried:
            break
        tried = lifted
        last = attempt(world, lifted, portions, lacking)
        found = _lacking(last.plan, entitled), _needless(last.plan, members, entitled, last.gpus)
        if found < cost or (best.owed and found == cost):  # then of equal ones the last: it knows best who is cut
            best, cost = last, found
    wanted = {  # if nobody held machines who can use others
        name: max(least, min(demands[name], own_share(projects, shares, name), projects.named(name).guaranteed))
        for name, least in entitled.items()
    }
    helped: list[bool] = []
    for name in () if leaving else sorted(best.short(wanted)):  # one after the other: some have not left yet
        if OWNERS in (helped.count(True), helped.count(False)):
            break
        spare = {other: best.plan.room.own(other) - least for other, least in wanted.items()}
        lacks = wanted[name] - best.plan.room.own(name)
        seats = departures(name, lacks, members, best.gpus, spare, leaving, world.stale)
        if seats == leaving:
            continue
        before = best
        lifts = () if best.members is members else ((best.members, best.owed),)
        for those, owed in ((members, frozenset[str]()), *lifts):
            emptied, shrunk = without(world, projects, those, seats)
            counted = portions_of(emptied, projects, shrunk)
            other = replace(attempt(emptied, shrunk, counted, owed), members=those)
            if _lacking(other.plan, wanted) < _lacking(best.plan, wanted):
                best, leaving = other, seats
                entitled = {**entitled, name: min(wanted[name], max(entitled[name], other.plan.room.own(name)))}
        helped.append(best is not before)
    return Targets(MappingProxyType(best.gpus), shares, demands, entitled, best.owed, leaving)


def _lacking(plan: _Plan, entitled: Mapping[str, int]) -> int:
    """Returns how many GPUs projects lack of what is guaranteed to them."""
    return sum(max(0, least - plan.room.own(name)) for name, least in entitled.items())


def _needless(plan: _Plan, members: Sequence[Member], entitled: Mapping[str, int], gpus: Mapping[str, int]) -> int:
    """Returns how many GPUs go to jobs that have just shrunk, in projects that have their guarantee without them."""
    early: dict[str, int] = {}
    for member in members:
        more = max(0, gpus[member.job.id] - member.ceiling)
        early[member.project.name] = early.get(member.project.name, 0) + more
    return sum(more for name, more in early.items() if plan.room.own(name) - more >= entitled[name])


def _lifted(
    world: World, members: Sequence[Member], entitled: Mapping[str, int], gpus: Mapping[str, int]
) -> list[Member]:
    """Returns the members without the waits after a change, where these keep projects from their guarantees.

    Jobs that have just shrunk may grow by what their project lacks without that, and no further. Those do not that were
    cut soon after they had grown several times: what they were given each time did not last.

    Args:
        world: What is there.
        members: The jobs, in the order in which they are served.
        entitled: What each project may have within its guarantee.
        gpus: What each job would have after the last attempt.
    """
    lacks = {name: least - world.rigid.get(name, 0) for name, least in entitled.items()}
    members = [_as_after(member, gpus[member.job.id]) for member in members]
    for member in members:
        lacks[member.project.name] -= min(member.ceiling, gpus[member.job.id])
    lifted = []
    for member in members:
        name, ceiling = member.project.name, member.ceiling
        if member.fixed is None and not member.account.kept and not member.account.is_restless:
            ceiling = max((size for size in member.sizes if ceiling < size <= ceiling + lacks[name]), default=ceiling)
        lacks[name] -= ceiling - member.ceiling
        lifted.append(replace(member, keeps=0, ceiling=ceiling))
    return lifted


def _as_after(member: Member, gpus: int) -> Member:
    """Returns a member as the next round would see it: a job that is cut in this one has just shrunk in that one."""
    return replace(member, ceiling=gpus) if gpus < member.account.allowed else member


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Targets, and what they were made with.

    Attributes:
        plan: What was handed out.
        gpus: By the job's id.
        members: The jobs, with the waits that they were given.
        portions: What each project counts on of each bound.
        owed: Projects that get their guarantee only because jobs change again that have just changed.
    """

    plan: _Plan
    gpus: Mapping[str, int]
    members: Sequence[Member]
    portions: Portions
    owed: frozenset[str]

    def short(self, least: Mapping[str, int]) -> frozenset[str]:
        """Returns the projects that get less than that."""
        return frozenset(name for name, gpus in least.items() if self.plan.room.own(name) < gpus)


class _Plan:
    """Targets in the making.

    First it sets what each project gets, then it divides that among the project's jobs, once. So the division of an
    earlier round stays possible, and stays, while nothing changes.

    Attributes:
        room: What is handed out so far.
    """

    def __init__(
        self, world: World, projects: Projects, members: Sequence[Member], portions: Portions, now: float
    ) -> None:
        self.room = Room(projects, world.capacity)
        self._capacity = world.capacity
        self._rigid = world.rigid
        self._projects = projects
        self._members = members
        self._portions = portions
        self._now = now
        self._counts = {member.job.id: 0 for member in members}
        self._by_project: dict[str, list[Member]] = {}
        self._groups: dict[str, dict[tuple[Bound, ...], Group]] = {}
        for name, gpus in sorted(world.rigid.items()):
            self.room.take(name, gpus)

    def made(self, shares: Mapping[str, int]) -> dict[str, int]:
        """Returns the targets.

        Args:
            shares: The fair share of each project, with all projects below it.
        """
        for member in self._members:
            self._by_project.setdefault(member.project.name, []).append(member)
            of_project = self._groups.setdefault(member.project.name, {})
            of_project.setdefault(member.bounds, Group(member.project, member.bounds)).members.append(member)
        self._keep_floors()
        within = {name: own_share(self._projects, shares, name) for name in sorted(self._groups)}
        first = {name for name, gpus in self._counts.items() if gpus}  # those whose GPUs are part of the share
        for name, share in within.items():
            first |= self._within_share(name, share)
        for waits in (False, True):  # a job that has just grown is cut for one that runs, and not for one that waits
            for member in self._members:
                if member.job.id in first and waits == (not member.account.allowed):
                    self._serve(member)
            for member in self._members:
                more = member.keeps - self._counts[member.job.id]
                if 0 < more <= self._within(member):
                    self._give(member, member.keeps)
        for name, share in within.items():
            late = []
            for member in self._by_project[name]:
                if member.job.id in first:
                    self._add(member)
                elif self._counts[member.job.id]:
                    late.append(member)
            beyond = sum(self._counts[member.job.id] for member in late)
            self._reserve(name, share - self.room.own(name) + beyond, within_portions=True)
            for member in late:
                self._add(member)
        lending = [name for name in self._groups if self._projects.named(name).weight > 0]
        for member in self._members:  # what a project can't use of its share serves a job that waits
            if member.project.weight > 0 and self._serve(member):
                self._add(member)
        for name, gpus in self._lent(lending).items():
            self._reserve(name, gpus)
        for name in sorted(lending, key=self._over_quota):
            self._reserve(name, self.room.within(name))
        for of_project in self._groups.values():
            for group in of_project.values():
                self._divide(group)
        return self._counts

    def _add(self, member: Member) -> None:
        """Has a job that has its minimum take part in the division of what is set apart."""
        self._groups[member.project.name][member.bounds].add(self._options(member), self._capacity)

    def _within(self, member: Member) -> int:
        """Returns how many more GPUs a job may have by the limits and bounds above it."""
        return self.room.within(member.project.name, member.bounds)

    def _lent(self, names: Sequence[str]) -> dict[str, int]:
        """Returns how many more GPUs each of the projects gets where what others can't use is shared fairly."""
        if not self.room.left or len(names) < 2:
            return {}
        has = {name: self.room.own(name) for name in sorted({*self._groups, *self._rigid})}
        asked = has | {name: has[name] + self._usable(name) for name in names}
        shares = fair_share(self._capacity, self._projects.claims(asked, has))
        return {name: own_share(self._projects, shares, name) - has[name] for name in names}

    def _usable(self, name: str) -> int:
        """Returns how many more GPUs a project's jobs that have their minimum could use, each without the others."""
        return sum(
            group.usable(group.gpus + max(0, self.room.within(name, group.bounds))) - group.gpus
            for group in self._groups[name].values()
        )

    def _over_quota(self, name: str) -> tuple[int, int, str]:
        """Sorts the projects as they get what others can't use: by priority, then by what they have over quota."""
        project = self._projects.named(name)
        return -project.priority, self.room.own(name) - project.guaranteed, name

    def _keep_floors(self) -> None:
        """Gives the jobs what they may not lose now, as far as the GPUs that are there go."""
        for member in sorted(self._members, key=lambda member: (member.fixed is None, member.order)):
            if 0 < member.floor <= self._within(member):
                self._give(member, member.floor)

    def _within_share(self, name: str, share: int) -> set[str]:
        """Returns the jobs whose minimum is within the share of their project and its portions, by priority and age."""
        budget, served = share - self.room.own(name), set()
        spoken_for: dict[str, int] = {}
        for member in self._by_project[name]:
            least = self._least(member)
            left = [self._of_portion(bound, name) - spoken_for.get(bound.name, 0) for bound in member.bounds]
            if least is not None and least <= min([budget, *left]):
                budget -= least
                spoken_for.update((bound.name, spoken_for.get(bound.name, 0) + least) for bound in member.bounds)
                served.add(member.job.id)
        return served

    def _of_portion(self, bound: Bound, name: str) -> int:
        """Returns how many more GPUs of a bound a project counts on."""
        return self._portions[bound.name, name] - self.room.part(bound, name)

    def _least(self, member: Member) -> int | None:
        """Returns what a job needs that has nothing yet; None where it can't have that."""
        if self._counts[member.job.id] or member.fixed is not None or not member.sizes:
            return None
        return member.sizes[0] if member.sizes[0] <= member.ceiling else None

    def _serve(self, member: Member) -> bool:
        """Gives a job that has nothing its minimum, if that is free and within the limits."""
        least = self._least(member)
        if least is None or least > self._within(member):
            return False
        self._give(member, least)
        return True

    def _give(self, member: Member, gpus: int) -> None:
        self.room.take(member.project.name, gpus - self._counts[member.job.id], member.bounds)
        self._counts[member.job.id] = gpus

    def _options(self, member: Member) -> tuple[int, ...]:
        """Returns the counts that a job that has GPUs may have in the end."""
        has = self._counts[member.job.id]
        if member.fixed is not None:
            return (has,)
        most = min(member.ceiling, self._capacity)
        return (has, *(size for size in member.sizes if has < size <= most))

    def _reserve(self, name: str, budget: int, *, within_portions: bool = False) -> None:
        """Sets apart as many GPUs as a project's jobs that have their minimum can use of the budget.

        Where the jobs are under different bounds, those under the same ones get the next GPUs that have the fewest for
        each job.

        Args:
            name: The project.
            budget: The most GPUs.
            within_portions: Whether the project gets no more of a bound than it counts on.
        """
        groups = list(self._groups[name].values())
        while groups:
            group = min(groups, key=lambda one: one.gpus / max(1, one.jobs))  # of several the one of the first job
            free = min(budget, self.room.within(name, group.bounds))
            if within_portions:
                free = min([free, *(self._of_portion(bound, name) for bound in group.bounds)])
            most = group.usable(group.gpus + max(0, free))
            more = (most if len(groups) == 1 else min(most, group.next_sum())) - group.gpus
            if not more or len(groups) == 1:
                groups.remove(group)
            group.gpus += more
            budget -= more
            self.room.take(name, more, group.bounds)

    def _divide(self, group: Group) -> None:
        """Divides the GPUs of a group among its jobs that have their minimum."""
        growing = [member for member in group.members if member.fixed is None and self._counts[member.job.id]]
        fixed = sum(self._counts[member.job.id] for member in group.members if member.fixed is not None)
        floors = {member.job.id: self._counts[member.job.id] for member in growing}
        candidates = [candidate(member.job, self._options(member), self._now) for member in growing]
        held = {member.job.id: member.account.planned for member in growing if member.account.planned}
        rules = Settings(fairness=self._projects.fairness)
        total = group.gpus - fixed
        counts = divide(candidates, total, held, floors=floors, fill=True, settings=rules) if growing else {}
        self._counts.update(counts)
        self.room.take(group.project.name, fixed + sum(counts.values()) - group.gpus, group.bounds)
