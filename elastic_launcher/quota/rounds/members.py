"""Finds the jobs that ask for GPUs, with what bounds each of them in a round."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elastic_launcher.hints.resolve import SKEW_SECONDS
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.ledger import Account, Ledger
from elastic_launcher.quota.rounds.room import Room
from elastic_launcher.quota.rounds.world import Bound, World


@dataclass(frozen=True, slots=True)
class Member:
    """A job of a project, with what bounds it in this round.

    Attributes:
        job: Its report.
        project: Its project.
        account: What it was promised.
        sizes: The counts that it may have, ascending; empty if no legal one is below the limits.
        floor: What it may not fall below now, for it has not run for long; 0 for nothing.
        floor_until: Until when, in seconds since the epoch.
        keeps: What it is not cut below now, for it has just grown, as far as others have their minimum; 0 for nothing.
        ceiling: What it may not grow above now, for it has just shrunk.
        fixed: What an entry written by hand gives it, or None.
        bounds: What others enforce for it and for other jobs, where that can matter.
    """

    job: Job
    project: Project
    account: Account
    sizes: tuple[int, ...]
    floor: int = 0
    floor_until: float = 0.0
    keeps: int = 0
    ceiling: int = 0
    fixed: int | None = None
    bounds: tuple[Bound, ...] = ()

    @property
    def by_hand(self) -> bool:
        """Whether an entry written by hand says what it gets."""
        return self.fixed is not None

    @property
    def is_deaf(self) -> bool:
        """Whether it does not follow the controller's hints."""
        return self.account.is_deaf and not self.by_hand

    @property
    def asked(self) -> int:
        """GPUs that it asks for."""
        return self.fixed if self.fixed is not None else max(self.sizes, default=0)

    def within(self, gpus: int) -> int:
        """Returns what it can use of so many GPUs; all of them while an entry written by hand gives it more."""
        if self.fixed is not None:
            return min(self.fixed, gpus)
        fitting = bisect_right(self.sizes, gpus)
        return self.sizes[fitting - 1] if fitting else 0

    @property
    def order(self) -> tuple[int, float, str]:
        """Sorts the jobs as they are served: by priority, then by age."""
        return -self.job.priority, self.job.submitted_at, self.job.id


def members_of(world: World, projects: Projects, ledger: Ledger, now: float) -> list[Member]:
    """Returns the jobs that ask for GPUs, in the order in which they are served."""
    members = []
    bounds = bounds_by_job(world, ledger)
    for job in world.jobs:
        account = ledger.accounts[job.id]
        project = projects.named(account.project)
        fixed = world.fixed.get(job.id)
        if job.finished:
            continue
        above = bounds.get(job.id, ())
        member = Member(job, project, account, _sizes(job, project, projects, above), fixed=fixed, bounds=above)
        members.append(_bounded(member, projects.grow_after, now))
    return sorted(members, key=lambda member: member.order)


def without_stuck(world: World, members: Sequence[Member]) -> tuple[World, list[Member]]:
    """Returns what is left to plan with while overdue jobs keep GPUs that they should have given back.

    What such a job keeps beyond what it is allowed counts as that of pods that are not elastic, and the job does not
    grow meanwhile. Of one that does not follow its hints, all counts so: whatever it is hinted, it has the same.
    """
    stuck = {member.job.id: member.account.stuck for member in members if member.account.stuck and not member.by_hand}
    if not stuck:
        return world, list(members)
    rigid = Counter(world.rigid)
    for member in members:
        rigid[member.project.name] += stuck.get(member.job.id, 0)
    left: dict[Bound, Bound] = {}
    for bound in {*world.bounds, *(bound for member in members for bound in member.bounds)}:
        left[bound] = bound.less(stuck, world.placed)
    found = []
    for member in members:
        if member.is_deaf:
            continue
        ceiling = min(member.ceiling, member.account.allowed) if member.job.id in stuck else member.ceiling
        found.append(replace(member, bounds=tuple(left[bound] for bound in member.bounds), ceiling=ceiling))
    return replace(world, rigid=rigid, bounds=tuple(left[bound] for bound in world.bounds)), found


def targets_of_deaf(world: World, projects: Projects, members: Sequence[Member]) -> dict[str, int]:
    """Returns the targets of jobs that do not follow their hints: what they are allowed, as far as all limits let them.

    Less would free nothing, and others would wait in vain for another grace period.
    """
    room = Room(projects, world.capacity)
    for name, gpus in world.rigid.items():
        room.take(name, gpus)
    targets = {}
    for member in sorted(members, key=lambda member: not member.by_hand):
        if member.by_hand or member.is_deaf:
            most = member.account.allowed if member.fixed is None else member.fixed
            gpus = member.job.usable(min(most, room.within(member.project.name, member.bounds)))
            room.take(member.project.name, gpus, member.bounds)
            if member.is_deaf:
                targets[member.job.id] = gpus
    return targets


def without_movable(world: World, projects: Projects, members: Sequence[Member]) -> tuple[World, Sequence[Member]]:
    """Returns what is there, and the members, as if no job held machines that others need which can use no others.

    Nor have they anything besides the machines of their nodes above the guarantee: that changes with where nodes are.
    """

    def emptied(bound: Bound) -> Bound:
        if not bound.movable and not any(one.within or one.above for one in bound.beside):
            return bound
        beside = tuple(replace(one, within=0, above=0) for one in bound.beside)
        return replace(bound, gpus=bound.gpus + bound.movable, movable=0, beside=beside)

    return with_bounds(world, projects, members, emptied)


def with_bounds(
    world: World, projects: Projects, members: Sequence[Member], change: Callable[[Bound], Bound]
) -> tuple[World, Sequence[Member]]:
    """Returns what is there, and the members, with bounds that have changed.

    Args:
        world: What is there.
        projects: The projects.
        members: The jobs.
        change: Returns a bound as it shall be.
    """
    bounds = {*world.bounds, *(bound for member in members for bound in member.bounds)}
    changed = {bound: other for bound in bounds if (other := change(bound)) is not bound}
    if not changed:
        return world, members
    found = []
    for member in members:
        if any(bound in changed for bound in member.bounds):
            own = tuple(changed.get(bound, bound) for bound in member.bounds)
            sizes, most = _sizes(member.job, member.project, projects, own), max(member.sizes, default=0)
            waits = member.fixed is not None or member.ceiling != most  # and not only for what is loosened
            ceiling = member.ceiling if waits else max(sizes, default=0)
            member = replace(member, bounds=own, sizes=sizes, ceiling=ceiling)
        found.append(member)
    return replace(world, bounds=tuple(changed.get(bound, bound) for bound in world.bounds)), found


def _sizes(job: Job, project: Project, projects: Projects, bounds: Sequence[Bound]) -> tuple[int, ...]:
    """Returns the counts that a job may have below its bounds and the limits of its project."""
    limits = [one.most(project.name) for one in bounds]
    if (limit := projects.limit_of(project.name)) is not None:
        limits.append(limit)
    return tuple(size for size in job.sizes if not limits or size <= min(limits))


def _bounded(member: Member, grow_after: float, now: float) -> Member:
    """Returns the member with its floor and ceiling."""
    account, job = member.account, member.job
    most_gpus = member.sizes[-1] if member.sizes else 0
    if member.fixed is not None:
        return replace(member, floor=member.fixed, ceiling=member.fixed)
    floor = keeps = 0
    until = _began(member, now) + member.project.min_run_seconds
    if account.allowed and job.training_since is not None and now < until:
        floor = min(job.minimum, job.usable(account.allowed))
    if account.grown_at is not None and now - account.grown_at < grow_after:
        keeps = job.usable(account.allowed)
    grows_from = account.grows_from(grow_after)
    waits = grows_from is not None and now < grows_from
    ceiling = account.allowed if waits else most_gpus
    return replace(member, floor=floor, floor_until=until if floor else 0.0, keeps=keeps, ceiling=ceiling)


def _began(member: Member, now: float) -> float:
    """Returns when a job began to train; by its account where that is to come, for a clock was set back since."""
    since = member.job.training_since or 0.0
    return since if since <= now + SKEW_SECONDS else member.account.changed_at


def bounds_by_job(world: World, ledger: Ledger) -> dict[str, tuple[Bound, ...]]:
    """Returns the bounds of each job, without those that leave all of their jobs the most that these can use."""
    most = {
        job.id: max(job.maximum, ledger.accounts[job.id].committed, world.fixed.get(job.id, 0)) for job in world.jobs
    }
    found: dict[str, tuple[Bound, ...]] = {}
    for bound in world.bounds:
        there = [name for name in bound.jobs if name in most]
        if sum(most[name] for name in there) > bound.at_once.gpus:
            for name in there:
                found[name] = (*found.get(name, ()), bound.of(name))
    return found
