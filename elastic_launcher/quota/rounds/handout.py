"""Hands GPUs out: first to projects, by fair shares and what these count on of bounds, then to their jobs.

Invariants: what is handed out fits, with the pods that are not elastic, into the capacity, the limits of projects and
the bounds; what a project gets does not depend on how it is divided among its jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from elastic_launcher.quota.allocation.candidates import candidate
from elastic_launcher.quota.allocation.division import Settings, divide
from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.demands import Portions, own_share
from elastic_launcher.quota.rounds.groups import Group
from elastic_launcher.quota.rounds.members import Member
from elastic_launcher.quota.rounds.room import Room
from elastic_launcher.quota.rounds.world import Bound, World

Divisions = dict[tuple[tuple[tuple[str, tuple[int, ...]], ...], int], Mapping[str, int]]
"""What jobs get of a sum, by the counts that each may have, and the sum."""


class Handout:
    """GPUs as they are handed out.

    First it sets what each project gets, then it divides that among the project's jobs, once. So the division of an
    earlier round stays possible, and stays, while nothing changes.

    Attributes:
        room: What is handed out so far.
    """

    def __init__(self, world: World, projects: Projects, members: Sequence[Member], portions: Portions) -> None:
        self.room = Room(projects, world.capacity)
        self._capacity = world.capacity
        self._rigid = world.rigid
        self._projects = projects
        self._members = members
        self._portions = portions
        self._counts = {member.job.id: 0 for member in members}
        self._by_project: dict[str, list[Member]] = {}
        self._groups: dict[str, dict[tuple[Bound, ...], Group]] = {}
        for name, gpus in sorted(world.rigid.items()):
            self.room.take(name, gpus)

    def hand_out(self, shares: Mapping[str, int]) -> None:
        """Sets what each project gets.

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

    def divided(self, now: float, known: Divisions) -> dict[str, int]:
        """Returns what each job gets of what its project does.

        Args:
            now: Seconds since the epoch.
            known: Divisions of this round so far; those that are made now come to them.
        """
        for of_project in self._groups.values():
            for group in of_project.values():
                self._divide(group, now, known)
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
        waiting = [(group.gpus_each, place) for place, group in enumerate(groups)]  # of several, the first
        heapq.heapify(waiting)
        while waiting:
            group = groups[waiting[0][1]]
            free = min(budget, self.room.within(name, group.bounds))
            if within_portions:
                free = min([free, *(self._of_portion(bound, name) for bound in group.bounds)])
            most = group.usable(group.gpus + max(0, free))
            last = len(waiting) == 1
            more = (most if last else min(most, group.next_sum())) - group.gpus
            group.gpus += more
            budget -= more
            self.room.take(name, more, group.bounds)
            if last or not more:
                heapq.heappop(waiting)
            else:
                heapq.heapreplace(waiting, (group.gpus_each, waiting[0][1]))

    def _divide(self, group: Group, now: float, known: Divisions) -> None:
        """Divides the GPUs of a group among its jobs that have their minimum."""
        growing = [member for member in group.members if member.fixed is None and self._counts[member.job.id]]
        fixed = sum(self._counts[member.job.id] for member in group.members if member.fixed is not None)
        key = tuple((member.job.id, self._options(member)) for member in growing), group.gpus - fixed
        if key not in known:
            options, total = dict(key[0]), key[1]
            floors = {member.job.id: self._counts[member.job.id] for member in growing}
            candidates = [candidate(member.job, options[member.job.id], now) for member in growing]
            held = {member.job.id: member.account.planned for member in growing if member.account.planned}
            rules = Settings(fairness=self._projects.fairness)
            known[key] = divide(candidates, total, held, floors=floors, fill=True, settings=rules) if growing else {}
        counts = known[key]
        self._counts.update(counts)
        self.room.take(group.project.name, fixed + sum(counts.values()) - group.gpus, group.bounds)
