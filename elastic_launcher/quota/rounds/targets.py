"""Decides how many GPUs each job should have once every change has taken place.

Invariants: the targets and the pods that are not elastic fit into the capacity, and into the limit of each project and
of each project above it; the targets of the jobs of a bound fit into that once the nodes that are to leave have left; a
job's target is 0 or one of its sizes; the targets depend on the world, the documents and the ledger alone, and not on
the order of the jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.demands import Portions, demands_of, within_guarantees
from elastic_launcher.quota.rounds.departures import departures, still_leaving, without
from elastic_launcher.quota.rounds.expectations import expected
from elastic_launcher.quota.rounds.handout import Divisions, Handout
from elastic_launcher.quota.rounds.members import Member
from elastic_launcher.quota.rounds.world import Seat, World

LIFTS = 3
"""Attempts to meet all guarantees by changing jobs that have just changed; an attempt can show another lack."""
MOST = 2000
"""Jobs that GPUs are handed out to while waits begin to count one after the other; then all count at once."""
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
    rules = _Rules(projects, shares, portions, now)
    entitled = rules.entitled(world, members)
    best = rules.best(world, members, entitled)
    besides = within_guarantees(projects, shares, demands)  # if nobody held machines who can use others
    wanted = {name: max(least, besides[name]) for name, least in entitled.items()}
    helped: list[bool] = []
    for name in () if leaving else sorted(best.short(wanted)):  # one after the other: some have not left yet
        if OWNERS in (helped.count(True), helped.count(False)):
            break
        spare = {other: best.plan.room.own(other) - least for other, least in wanted.items()}
        lacks = wanted[name] - best.plan.room.own(name)
        after = [_as_after(member, best.gpus[member.job.id]) for member in members]
        seats = departures(name, lacks, after, best.gpus, spare, leaving, world.stale)
        if seats == leaving:
            continue
        emptied, shrunk = without(world, projects, after, seats)
        least = rules.entitled(emptied, shrunk)
        other = rules.best(emptied, shrunk, least)
        helped.append(_lacking(other.plan, wanted) < _lacking(best.plan, wanted))
        if helped[-1]:
            best, leaving, entitled = other, seats, least
    return Targets(MappingProxyType(best.gpus), shares, demands, entitled, best.owed, leaving)


@dataclass(frozen=True, slots=True)
class _Rules:
    """What the GPUs are divided by.

    Attributes:
        projects: The projects.
        shares: The fair share of each project, with all projects below it.
        portions: What each project counts on of each bound.
        now: Seconds since the epoch.
        divisions: Those of the attempts so far.
    """

    projects: Projects
    shares: Mapping[str, int]
    portions: Portions
    now: float
    divisions: Divisions = field(default_factory=dict)

    def entitled(self, world: World, members: Sequence[Member]) -> dict[str, int]:
        """Returns what each project may have within its guarantee."""
        return within_guarantees(self.projects, self.shares, demands_of(world.rigid, members, self.portions))

    def best(self, world: World, members: Sequence[Member], entitled: Mapping[str, int]) -> _Attempt:
        """Returns the targets with which projects lack the least, where need be with jobs that have just changed."""
        best = last = self._attempt(world, members, frozenset())
        cost = _lacking(best.plan, entitled), 0
        tried = members
        for _ in range(LIFTS if best.waiting else 0):
            lacking = best.owed | best.short(entitled)
            lifted = _lifted(world, members, entitled, last.gpus) if any(cost) or best.owed else tried
            if lifted == tried:
                break
            tried = lifted
            last = self._attempt(world, lifted, lacking)
            found = _lacking(last.plan, entitled), _needless(last.plan, members, entitled, last.gpus)
            if found < cost or (best.owed and found == cost):  # then of equal ones the last: it knows best who is cut
                best, cost = last, found
        return best

    def _attempt(self, world: World, members: Sequence[Member], owed: frozenset[str]) -> _Attempt:
        """Returns targets that keep the waits after a change, where only those count that would be broken else.

        The oldest count first. So the next round takes the same steps to the same targets, and these keep the waits
        that begin in this one.
        """
        waiting: set[str] = set()
        left = MOST
        while True:
            left -= len(members)
            jobs = [member if member.job.id in waiting else _without_waits(member) for member in members]
            plan = Handout(world, self.projects, jobs, self.portions)
            plan.hand_out(self.shares)
            gpus = plan.divided(self.now, self.divisions)
            broken = {
                member.job.id: member.account.changed_at
                for member in members
                if member.job.id not in waiting and not member.keeps <= gpus[member.job.id] <= member.ceiling
            }
            if not broken:
                return _Attempt(plan, gpus, owed, frozenset(waiting))
            if left < len(members):
                waiting.update(member.job.id for member in members)
            else:
                waiting.update(name for name, since in broken.items() if since == min(broken.values()))


def _without_waits(member: Member) -> Member:
    """Returns a member that may grow and be cut though it has just changed, down to its floor."""
    most = member.ceiling if member.by_hand else max(member.sizes, default=0)
    return replace(member, keeps=0, ceiling=most) if member.keeps or member.ceiling < most else member


def _lacking(plan: Handout, entitled: Mapping[str, int]) -> int:
    """Returns how many GPUs projects lack of what is guaranteed to them."""
    return sum(max(0, least - plan.room.own(name)) for name, least in entitled.items())


def _needless(plan: Handout, members: Sequence[Member], entitled: Mapping[str, int], gpus: Mapping[str, int]) -> int:
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
    """Returns a member as the next round would see it: a job that is cut in this one has just shrunk in that one, and
    one that gets its minimum runs.
    """
    if gpus and not member.account.allowed:
        return replace(member, account=replace(member.account, allowed=gpus))
    if gpus >= member.account.allowed:
        return member
    return replace(member, keeps=min(member.keeps, gpus), ceiling=gpus)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Targets, and what was handed out for them.

    Attributes:
        plan: What was handed out.
        gpus: By the job's id.
        owed: Projects that get their guarantee only because jobs change again that have just changed.
        waiting: Jobs, by their ids, whose waits after a change count.
    """

    plan: Handout
    gpus: Mapping[str, int]
    owed: frozenset[str]
    waiting: frozenset[str]

    def short(self, least: Mapping[str, int]) -> frozenset[str]:
        """Returns the projects that get less than that."""
        return frozenset(name for name, gpus in least.items() if self.plan.room.own(name) < gpus)
