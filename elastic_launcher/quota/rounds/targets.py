"""Decides how many GPUs each job should have once every change has taken place.

Invariants: the targets and the pods that are not elastic fit into the capacity, and into the limit of each project and
of each project above it; a job's target is 0 or one of its sizes; the targets depend on the world, the documents and
the ledger alone, and not on the order of the jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from elastic_launcher.quota.allocation.candidates import candidate, thinned
from elastic_launcher.quota.allocation.division import divide
from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.ledger import Account, Ledger
from elastic_launcher.quota.rounds.room import Room
from elastic_launcher.quota.rounds.world import World

LIFTS = 3
"""Attempts to meet all guarantees by changing jobs that have just changed; an attempt can show another lack."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Who should have how many GPUs.

    Attributes:
        gpus: By the job's id.
        shares: The fair share of each project, with all projects below it.
        demands: What each project's own jobs and pods ask for.
        entitled: What each project may have within its guarantee: of what it asks for, at most its share.
        owed: Projects that get their guarantee only because jobs change again that have just changed.
    """

    gpus: Mapping[str, int]
    shares: Mapping[str, int]
    demands: Mapping[str, int]
    entitled: Mapping[str, int]
    owed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Member:
    """A job of a project, with what bounds it in this round.

    Attributes:
        job: Its report.
        project: Its project.
        account: What it was promised.
        sizes: The counts that it may have, ascending; empty if no legal one is below the limits.
        floor: What it may not fall below now, for it has not run for long; 0 for nothing.
        keeps: What it is not cut below now, for it has just grown, as far as others have their minimum; 0 for nothing.
        ceiling: What it may not grow above now, for it has just shrunk.
        fixed: What an entry written by hand gives it, or None.
    """

    job: Job
    project: Project
    account: Account
    sizes: tuple[int, ...]
    floor: int = 0
    keeps: int = 0
    ceiling: int = 0
    fixed: int | None = None

    @property
    def order(self) -> tuple[int, float, str]:
        """Sorts the jobs as they are served: by priority, then by age."""
        return -self.job.priority, self.job.submitted_at, self.job.id


def members_of(world: World, projects: Projects, ledger: Ledger, now: float) -> list[Member]:
    """Returns the jobs that ask for GPUs, in the order in which they are served."""
    members = []
    for job in world.jobs:
        account = ledger.accounts[job.id]
        project = projects.named(account.project)
        fixed = world.fixed.get(job.id)
        if job.finished:
            continue
        limit = projects.limit_of(project.name)
        sizes = tuple(size for size in job.sizes if limit is None or size <= limit)
        member = Member(job, project, account, sizes, fixed=fixed)
        members.append(_bounded(member, projects.grow_after, now))
    return sorted(members, key=lambda member: member.order)


def _bounded(member: Member, grow_after: float, now: float) -> Member:
    """Returns the member with its floor and ceiling."""
    account, job = member.account, member.job
    most_gpus = member.sizes[-1] if member.sizes else 0
    if member.fixed is not None:
        return replace(member, floor=member.fixed, ceiling=member.fixed)
    floor = keeps = 0
    since = job.training_since
    if account.allowed and since is not None and now - since < member.project.min_run_seconds:
        floor = min(job.minimum, account.allowed)
    if account.grown_at is not None and now - account.grown_at < grow_after:
        keeps = account.allowed
    shrank = account.shrunk_at is not None and now - account.shrunk_at < grow_after
    return replace(member, floor=floor, keeps=keeps, ceiling=account.allowed if shrank else most_gpus)


def decide_targets(world: World, projects: Projects, members: Sequence[Member], now: float) -> Targets:
    """Returns how many GPUs each job should have.

    Fair shares come first: what is guaranteed, then what is over quota. In each project, jobs get their minimum by
    priority and age, and the rest goes where it is worth most. What no project can use of its share goes to whoever
    can. A job that has just grown is not cut, unless that keeps a project from its guarantee.
    """
    demands: dict[str, int] = dict(world.rigid)
    for member in members:
        asked = member.fixed if member.fixed is not None else max(member.sizes, default=0)
        demands[member.project.name] = demands.get(member.project.name, 0) + asked
    shares = fair_share(world.capacity, projects.claims(demands, world.rigid))
    entitled = {
        name: min(asked, own_share(projects, shares, name), projects.named(name).guaranteed)
        for name, asked in demands.items()
    }
    best = _Plan(world, projects, members, now)
    gpus = best.made(shares)
    made, owed = gpus, frozenset[str]()
    for _ in range(LIFTS):
        if not _lacking(best, entitled):
            break
        other = _Plan(world, projects, _lifted(world, members, entitled, made), now)
        made = other.made(shares)
        if _lacking(other, entitled) < _lacking(best, entitled):
            owed |= {name for name, least in entitled.items() if best.room.own(name) < least}
            best, gpus = other, made
    return Targets(MappingProxyType(gpus), shares, demands, entitled, owed)


def own_share(projects: Projects, shares: Mapping[str, int], name: str) -> int:
    """Returns a project's share without those of the projects below it."""
    return shares[name] - sum(shares[child] for child in projects.children(name))


def _lacking(plan: _Plan, entitled: Mapping[str, int]) -> int:
    """Returns how many GPUs projects lack of what is guaranteed to them."""
    return sum(max(0, least - plan.room.own(name)) for name, least in entitled.items())


def _lifted(
    world: World, members: Sequence[Member], entitled: Mapping[str, int], gpus: Mapping[str, int]
) -> list[Member]:
    """Returns the members without the waits after a change, where these keep projects from their guarantees.

    A job that has just shrunk may grow by what its project lacks, and no further.

    Args:
        world: What is there.
        members: The jobs, in the order in which they are served.
        entitled: What each project may have within its guarantee.
        gpus: What each job would have after the last attempt.
    """
    lacks = {name: least - world.rigid.get(name, 0) for name, least in entitled.items()}
    for member in members:
        lacks[member.project.name] -= min(member.account.allowed, gpus[member.job.id])
    lifted = []
    for member in members:
        name, has = member.project.name, member.account.allowed
        ceiling = max((size for size in member.sizes if has < size <= has + lacks[name]), default=0)
        if member.fixed is not None or ceiling <= member.ceiling:
            ceiling = member.ceiling
        else:
            lacks[name] -= ceiling - max(has, member.ceiling)
        lifted.append(replace(member, keeps=0, ceiling=ceiling))
    return lifted


class _Plan:
    """Targets in the making.

    First it sets what each project gets, then it divides that among the project's jobs, once. So the division of an
    earlier round stays possible, and stays, while nothing changes.

    Attributes:
        room: What is handed out so far.
    """

    def __init__(self, world: World, projects: Projects, members: Sequence[Member], now: float) -> None:
        self.room = Room(projects, world.capacity)
        self._projects = projects
        self._members = members
        self._now = now
        self._counts = {member.job.id: 0 for member in members}
        self._groups: dict[str, _Group] = {}
        for name, gpus in sorted(world.rigid.items()):
            self.room.take(name, gpus)

    def made(self, shares: Mapping[str, int]) -> dict[str, int]:
        """Returns the targets.

        Args:
            shares: The fair share of each project, with all projects below it.
        """
        for member in self._members:
            self._groups.setdefault(member.project.name, _Group(member.project)).members.append(member)
        self._keep_floors()
        within = {name: own_share(self._projects, shares, name) for name in sorted(self._groups)}
        first = {name for name, gpus in self._counts.items() if gpus}  # those whose GPUs are part of the share
        for name, share in within.items():
            first |= self._within_share(self._groups[name], share)
        for waits in (False, True):  # a job that has just grown is cut for one that runs, and not for one that waits
            for member in self._members:
                if member.job.id in first and waits == (not member.account.allowed):
                    self._serve(member)
            for member in self._members:
                more = member.keeps - self._counts[member.job.id]
                if 0 < more <= self.room.within(member.project.name):
                    self._give(member, member.keeps)
        for name, share in within.items():
            group = self._groups[name]
            late = []
            for member in group.members:
                if member.job.id in first:
                    group.add(self._options(member))
                elif self._counts[member.job.id]:
                    late.append(member)
            beyond = sum(self._counts[member.job.id] for member in late)
            self._reserve(group, min(share - self.room.own(name) + beyond, self.room.within(name)))
            for member in late:
                group.add(self._options(member))
        lending = [group for group in self._groups.values() if group.project.weight > 0]
        for member in self._members:  # what a project can't use of its share serves a job that waits
            if member.project.weight > 0 and self._serve(member):
                self._groups[member.project.name].add(self._options(member))
        for group in sorted(lending, key=self._over_quota):
            self._reserve(group, self.room.within(group.project.name))
        for group in self._groups.values():
            self._divide(group)
        return self._counts

    def _over_quota(self, group: _Group) -> tuple[int, int, str]:
        """Sorts the projects as they get what others can't use: by priority, then by what they have over quota."""
        project = group.project
        return -project.priority, self.room.own(project.name) - project.guaranteed, project.name

    def _keep_floors(self) -> None:
        """Gives the jobs what they may not lose now, as far as the GPUs that are there go."""
        for member in sorted(self._members, key=lambda member: (member.fixed is None, member.order)):
            if 0 < member.floor <= self.room.within(member.project.name):
                self._give(member, member.floor)

    def _within_share(self, group: _Group, share: int) -> set[str]:
        """Returns the jobs whose minimum is within the share of their project, by priority and age."""
        budget, served = share - self.room.own(group.project.name), set()
        for member in group.members:
            least = self._least(member)
            if least is not None and least <= budget:
                budget -= least
                served.add(member.job.id)
        return served

    def _least(self, member: Member) -> int | None:
        """Returns what a job needs that has nothing yet; None where it can't have that."""
        if self._counts[member.job.id] or member.fixed is not None or not member.sizes:
            return None
        return member.sizes[0] if member.sizes[0] <= member.ceiling else None

    def _serve(self, member: Member) -> bool:
        """Gives a job that has nothing its minimum, if that is free and within the limits."""
        least = self._least(member)
        if least is None or least > self.room.within(member.project.name):
            return False
        self._give(member, least)
        return True

    def _give(self, member: Member, gpus: int) -> None:
        self.room.take(member.project.name, gpus - self._counts[member.job.id])
        self._counts[member.job.id] = gpus

    def _options(self, member: Member) -> tuple[int, ...]:
        """Returns the counts that a job that has GPUs may have in the end."""
        has = self._counts[member.job.id]
        if member.fixed is not None:
            return (has,)
        return (has, *thinned(tuple(size for size in member.sizes if has < size <= member.ceiling)))

    def _reserve(self, group: _Group, budget: int) -> None:
        """Sets apart as many GPUs as the jobs of a project that have their minimum can use of the budget."""
        more = group.usable(group.gpus + max(0, budget)) - group.gpus
        group.gpus += more
        self.room.take(group.project.name, more)

    def _divide(self, group: _Group) -> None:
        """Divides the GPUs of a project among its jobs that have their minimum."""
        growing = [member for member in group.members if member.fixed is None and self._counts[member.job.id]]
        fixed = sum(self._counts[member.job.id] for member in group.members if member.fixed is not None)
        floors = {member.job.id: self._counts[member.job.id] for member in growing}
        candidates = [candidate(member.job, self._options(member), self._now) for member in growing]
        held = {member.job.id: member.account.allowed for member in growing if member.account.allowed}
        counts = divide(candidates, group.gpus - fixed, held, floors=floors, fill=True) if growing else {}
        self._counts.update(counts)
        self.room.take(group.project.name, fixed + sum(counts.values()) - group.gpus)


@dataclass(slots=True)
class _Group:
    """The jobs of a project.

    Attributes:
        project: The project.
        members: Its jobs, in the order in which they are served.
        gpus: What is set apart for them.
        sums: The sums of GPUs that those can have which have their minimum, as the bits of a number.
    """

    project: Project
    members: list[Member] = field(default_factory=list)
    gpus: int = 0
    sums: int = 1

    def add(self, options: Iterable[int]) -> None:
        """Adds a job that has the least of its options."""
        sums, first = 0, None
        for size in options:
            first = size if first is None else first
            sums |= self.sums << size
        self.sums = sums
        self.gpus += first or 0

    def usable(self, budget: int) -> int:
        """Returns the largest sum that the jobs can have within a budget; what they have if there is none."""
        within = self.sums & ((1 << (budget + 1)) - 1)
        return max(self.gpus, within.bit_length() - 1)
