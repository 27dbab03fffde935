"""Divides what is guaranteed to projects among their jobs, as their hints say it.

It decides which of a job's nodes are within the guarantee, and so, where these can use other machines than those above
it, which machines new nodes come to. There, nodes within the guarantee are no more than find a place, and what is
guaranteed goes first to those jobs whose nodes above it would find none.

Invariants: jobs of a project are guaranteed no more together than the project, less what its pods that are not elastic
hold and what is guaranteed below it; a job is guaranteed no more than it is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.ledger import Account
from elastic_launcher.quota.rounds.members import Member
from elastic_launcher.quota.rounds.world import Bound, World, above_of, within_of


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What jobs have of their projects' guarantees.

    Attributes:
        gpus: By the job's id.
        lacking: By its id, GPUs that would be within the guarantee if their machines had room.
    """

    gpus: Mapping[str, int]
    lacking: Mapping[str, int]


def guaranteed_of(
    world: World, projects: Projects, members: Sequence[Member], accounts: Mapping[str, Account]
) -> Guarantees:
    """Returns what of each job's GPUs is within its project's guarantee: minimums first, in the order of service.

    Pods that are not elastic, and the projects below it, have their part of that before.

    Args:
        world: What is there.
        projects: The projects.
        members: The jobs, in the order of service.
        accounts: What they are allowed.
    """
    division = _Division(world, projects, members, accounts)
    division.make_room_above()
    division.keep_placed()
    for member in members:
        division.raise_to(member, member.job.minimum)
    for member in members:
        division.raise_to(member, accounts[member.job.id].allowed)
    lacking = {member.job.id: division.raise_to(member, member.job.maximum, new_alone=False) for member in members}
    return Guarantees(division.given, {name: gpus for name, gpus in lacking.items() if gpus})


class _Division:
    """A division in the making.

    Attributes:
        given: What each job has so far.
    """

    def __init__(
        self, world: World, projects: Projects, members: Sequence[Member], accounts: Mapping[str, Account]
    ) -> None:
        self.given = {member.job.id: 0 for member in members}
        self._left = {
            project.name: project.guaranteed
            - world.rigid.get(project.name, 0)
            - sum(projects.named(child).guaranteed for child in projects.children(project.name))
            for project in projects.projects
        }
        self._world = world
        self._members = members
        self._accounts = accounts
        self._placed = world.placed
        self._fewest_first = sorted(members, key=lambda member: world.placed.get(member.job.id, (0, 0))[0])
        self._bounds = {member.job.id: _of_one_kind(world.kinds, member.job.id) for member in members}
        self._room = {bound.name: bound.at_once.gpus for bound in world.kinds}
        for bound in world.kinds:
            self._room[bound.name] -= sum(self._asked(bound, name) for name in accounts)

    def make_room_above(self) -> None:
        """Gives jobs what the machines of their nodes above the guarantee do not have.

        Those come first that have the fewest nodes within the guarantee: such nodes are there whether it counts or not.
        """
        tried: set[str] = set()
        for bound in self._world.kinds:
            self._make_room(bound, -self._room[bound.name], tried)

    def _make_room(self, bound: Bound, lacks: int, tried: set[str]) -> None:
        """Has nodes of jobs be within the guarantee that would be above it on some machines.

        Args:
            bound: That of the machines.
            lacks: GPUs that they lack.
            tried: Bounds by name on which room was made for nodes that change their kind: each once, however many
                chains of jobs and machines lead to it.
        """
        enough = self._room[bound.name] + lacks
        for member in self._fewest_first:
            name, step = member.job.id, member.job.per_node
            if self._room[bound.name] >= enough:
                return
            if above_of(name) not in bound.jobs or within_of(name) in bound.jobs:
                continue
            there, lacks = self._within(name), enough - self._room[bound.name]
            if there < self.given[name] + self._left[member.project.name]:
                wanted = min(there + -(-lacks // step) * step, self._accounts[name].allowed - self._placed[name][1])
                if wanted <= self.given[name]:
                    continue
                for machines in self._bounds[name]:
                    more = wanted - there - self._room[machines.name]
                    if more > 0 and within_of(name) in machines.jobs and machines.name not in tried:
                        tried.add(machines.name)
                        self._make_room(machines, more, tried)
                self.raise_to(member, wanted)

    def keep_placed(self) -> None:
        """Gives jobs what their nodes within the guarantee hold already."""
        for member in self._members:
            self.raise_to(member, self._placed.get(member.job.id, (0, 0))[0])

    def raise_to(self, member: Member, gpus: int, *, new_alone: bool = True) -> int:
        """Gives a job more as far as its project is guaranteed that; returns what its machines lack for it.

        Args:
            member: The job.
            gpus: The most that it has then; never more than it is allowed.
            new_alone: Whether only nodes count that are still to get a place; else also those that would follow nodes
                above the guarantee which have one.
        """
        name, step = member.job.id, member.job.per_node
        most = min(gpus, self._accounts[name].allowed)
        if new_alone and name in self._placed:
            most = min(most, self._accounts[name].allowed - self._placed[name][1])
        more = most - self.given[name]
        wanted = max(0, min(more, self._left[member.project.name]))
        if name not in self._placed:
            self._give(member, wanted)
            return 0
        there = self._within(name) - self.given[name]  # these have a place
        room = [self._room[bound.name] for bound in self._bounds[name] if within_of(name) in bound.jobs]
        found = min([wanted, *(there + max(0, gpus) for gpus in room)]) // step * step
        self._give(member, found)
        return (wanted - found) // step * step

    def _give(self, member: Member, gpus: int) -> None:
        name = member.job.id
        if gpus <= 0:
            return
        for bound in self._bounds[name]:
            self._room[bound.name] += self._asked(bound, name)
        self.given[name] += gpus
        self._left[member.project.name] -= gpus
        for bound in self._bounds[name]:
            self._room[bound.name] -= self._asked(bound, name)

    def _within(self, name: str) -> int:
        """Returns what nodes within the guarantee have, or are to have."""
        return max(self.given[name], self._placed[name][0])

    def _asked(self, bound: Bound, name: str) -> int:
        """Returns what a job asks for of the machines of a bound."""
        account = self._accounts[name]
        if name in bound.jobs:
            return account.committed
        within, above = within_of(name) in bound.jobs, above_of(name) in bound.jobs
        if within and above:
            return account.committed
        if within:
            return self._within(name)
        return max(account.allowed - self._within(name), self._placed[name][1]) if above else 0


def _of_one_kind(bounds: Sequence[Bound], job: str) -> list[Bound]:
    """Returns those bounds where nodes of a job count that are of one of its kinds, and not of the other."""
    return [bound for bound in bounds if (within_of(job) in bound.jobs) != (above_of(job) in bound.jobs)]
