"""One round of the quota controller: from what is there, and what was promised, to what each job may hold.

Invariants: a shrink is hinted at once, and growth only for GPUs that are seen to be free: what jobs hold or may still
take, together with the pods that are not elastic, never grows above the capacity, nor above a limit of a project, nor
above what another enforcer leaves to some of the jobs. With autoscaling, the capacity is what `autoscale` plans with,
and pods wait for the GPUs of it that are not there yet.
A job is never hinted fewer GPUs than its minimum, but for 0. With nothing changing, a second round changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import WAIT_SECONDS, Projects, QuotaError
from elastic_launcher.quota.rounds.autoscale import plan_of
from elastic_launcher.quota.rounds.guarantees import guaranteed_of
from elastic_launcher.quota.rounds.ledger import (
    NOTICED,
    Account,
    Ledger,
    allowed_by_project,
    caught_up,
    set_back,
    settle,
)
from elastic_launcher.quota.rounds.members import Member, members_of, targets_of_deaf, without_stuck
from elastic_launcher.quota.rounds.reasons import After, Cause, Reasons, without_machines
from elastic_launcher.quota.rounds.room import Room
from elastic_launcher.quota.rounds.targets import Targets, decide_targets
from elastic_launcher.quota.rounds.world import Seat, World

_TOO_OLD = (
    "its launcher is of an older version, which reads no entry of its own, so what it holds counts as that of pods "
    "that are not elastic; start it with a newer one"
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of what a job may hold.

    Attributes:
        job: The job's id.
        project: Its project.
        before: GPUs that it was allowed.
        after: GPUs that it is allowed now.
        cause: What made the change necessary, in a word.
        reason: The same in one line.
    """

    job: str
    project: str
    before: int
    after: int
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class Grant:
    """What a job may hold, as its hint says it. All counts are GPUs.

    Attributes:
        job: The job's id.
        project: Its project.
        guaranteed: What nobody takes back.
        allowed: What it may hold now.
        limit: What it never exceeds, or None.
        holds: What it holds or may still take of an earlier hint.
        reclaim_by: When what it holds above ``allowed`` may be killed, in seconds since the epoch, or None.
        reason: Why it has what it has, or why it waits.
        wait_seconds: Seconds that it waits for quota unless its user has said it.
        leave: The numbers of the nodes that go first.
    """

    job: str
    project: str
    guaranteed: int
    allowed: int
    limit: int | None
    holds: int
    reclaim_by: float | None
    reason: str
    wait_seconds: float = WAIT_SECONDS
    leave: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a round.

    Attributes:
        ledger: The promises from now on, under the generation of the hints that say so.
        grants: One for each job that is not over, by id.
        changes: What this round changed, shrinks first.
        targets: What each job should have once all changes have taken place.
        capacity: GPUs that were divided.
        refused: Why jobs get no hint that belong to no project, or to two, or can't read one, by their ids.
    """

    ledger: Ledger
    grants: tuple[Grant, ...]
    changes: tuple[Change, ...]
    targets: Targets
    capacity: int
    refused: Mapping[str, str]


def decide(world: World, projects: Projects, ledger: Ledger, now: float) -> Decision:
    """Decides what each job may hold from now on.

    Args:
        world: What is there.
        projects: The projects document.
        ledger: The promises so far.
        now: Seconds since the epoch.
    """
    owners, refused = _owners(world, projects)
    older = (job.id for job in world.jobs if job.id in owners and "id" not in job.match and not job.finished)
    refused |= dict.fromkeys(older, _TOO_OLD)
    world = _without(world, [job for job in world.jobs if job.id in refused], owners)
    seen = (job if job.reported_at <= now else replace(job, reported_at=now) for job in world.jobs)  # by own clocks
    ledger = settle(set_back(ledger, now), seen, owners, now - projects.grow_after, now - NOTICED)
    members = members_of(world, projects, ledger, now)
    around, elastic = without_stuck(world, members)
    plan = plan_of(around, projects, elastic, ledger, now)
    if plan is not None:
        world, around = replace(world, capacity=plan.gpus), replace(around, capacity=plan.gpus)
    targets = decide_targets(around, projects, elastic, now)
    deaf = targets_of_deaf(world, projects, members)
    targets = replace(targets, gpus=MappingProxyType({**targets.gpus, **deaf}))
    reasons = Reasons(world, projects, replace(ledger, plan=plan), targets)
    accounts = dict(ledger.accounts)
    generation = caught_up(ledger, world.jobs).generation + 1
    hints = _Hints(accounts, generation, now, [])
    _shrink(members, targets, hints, reasons)
    if not world.stale:
        _grow(world, projects, members, targets, hints, reasons)
    after = Ledger(generation, MappingProxyType(accounts), plan)
    grants = _grants(world, projects, members, after, reasons, targets.leaving, now)
    after = _with_reasons(after, grants, targets, now - projects.grow_after)
    return Decision(after, grants, tuple(hints.changes), targets, world.capacity, refused)


def _owners(world: World, projects: Projects) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the name of each job's project, and why the other jobs have none, by the jobs' ids."""
    owners, refused = {}, {}
    for job in world.jobs:
        try:
            project = projects.project_of(job.match)
        except QuotaError as error:
            refused[job.id] = str(error)
            continue
        if project is None:
            refused[job.id] = "no project matches it, and jobs of no project are refused"
        else:
            owners[job.id] = project.name
    return owners, refused


def _without(world: World, jobs: Sequence[Job], owners: Mapping[str, str]) -> World:
    """Returns the world without some jobs; what they hold is that of pods that are not elastic, or nobody's."""
    held = {job.id: job.held for job in jobs}
    rigid = Counter(world.rigid)
    for name in held.keys() & owners.keys():
        rigid[owners[name]] += held[name]
    foreign = min(world.capacity, sum(gpus for name, gpus in held.items() if name not in owners))
    return replace(
        world,
        jobs=tuple(job for job in world.jobs if job.id not in held),
        rigid=rigid,
        capacity=world.capacity - foreign,
        foreign=world.foreign + foreign,
        bounds=tuple(bound.less(held) for bound in world.bounds),
        kinds=tuple(bound.less(held) for bound in world.kinds),
    )


@dataclass(frozen=True, slots=True)
class _Hints:
    """The hints in the making: the accounts as they change, under the generation that says so."""

    accounts: dict[str, Account]
    generation: int
    now: float
    changes: list[Change]

    def allow(self, name: str, gpus: int, why: tuple[Cause, str], reclaim_by: float | None = None) -> None:
        """Allows a job another number."""
        before, (cause, reason) = self.accounts[name], why
        self.accounts[name] = before.change(gpus, self.generation, self.now, reason, reclaim_by)
        self.changes.append(Change(name, before.project, before.allowed, gpus, cause, reason))


def _shrink(members: Sequence[Member], targets: Targets, hints: _Hints, reasons: Reasons) -> None:
    for member in members:
        name, target = member.job.id, targets.gpus[member.job.id]
        account = hints.accounts[name]
        if target < account.allowed:
            by = hints.now + member.project.grace_period if account.committed > target else None
            hints.allow(name, target, reasons.of_shrink(member, target), by)


def _grow(
    world: World,
    projects: Projects,
    members: Sequence[Member],
    targets: Targets,
    hints: _Hints,
    reasons: Reasons,
) -> None:
    """Raises what jobs are allowed as far as GPUs are free, those first whose project lacks what is guaranteed.

    While GPUs are being taken back, those that are free are kept for the jobs that come first.
    """
    accounts, now = hints.accounts, hints.now
    room = Room(projects, world.capacity - world.leaving)
    for name, gpus in world.rigid.items():
        room.take(name, gpus)
    bounds = {member.job.id: tuple(one.at_once for one in member.bounds) for member in members}
    for name, account in accounts.items():
        room.take(account.project, account.committed, bounds.get(name, ()))
    reclaiming = any(account.reclaim_by is not None and account.reclaim_by > now for account in accounts.values())
    has = allowed_by_project(accounts.values(), world.rigid)

    def raise_allowed(member: Member) -> None:
        name, target = member.job.id, targets.gpus[member.job.id]
        account = accounts[name]
        free = account.committed + room.within(account.project, bounds[name])
        steps = [size for size in {*member.sizes, target} if account.allowed < size <= min(target, free)]
        if not steps:
            if reclaiming:
                room.take(account.project, max(0, min(room.left, target - account.committed)), bounds[name])
            return
        allowed = max(steps)
        room.take(account.project, max(0, allowed - account.committed), bounds[name])
        hints.allow(name, allowed, reasons.of_growth(member, allowed, has[account.project]))
        has[account.project] += allowed - account.allowed

    growing = [member for member in members if targets.gpus[member.job.id] > accounts[member.job.id].allowed]
    late = []
    for member in growing:
        if has[member.project.name] < targets.entitled[member.project.name]:
            raise_allowed(member)
        else:
            late.append(member)
    for member in late:
        raise_allowed(member)


def _grants(
    world: World,
    projects: Projects,
    members: Sequence[Member],
    ledger: Ledger,
    reasons: Reasons,
    leaving: Iterable[Seat],
    now: float,
) -> tuple[Grant, ...]:
    leave: dict[str, list[int]] = {}
    for seat in leaving:
        leave.setdefault(seat.job, []).append(seat.node)
    guaranteed = guaranteed_of(world, projects, members, ledger.accounts)
    after, grants = After(ledger, now, members), []
    for member in members:
        name = member.job.id
        account = ledger.accounts[name]
        reason = account.reason if account.allowed else reasons.of_wait(member, after)
        if lacking := guaranteed.lacking.get(name, 0):
            reason += without_machines(member.job, lacking)
        grants.append(
            Grant(
                name,
                account.project,
                guaranteed.gpus[name],
                account.allowed,
                projects.limit_of(account.project),
                account.committed,
                account.reclaim_by,
                reason,
                member.project.wait_seconds,
                tuple(sorted(leave.get(name, account.leave if account.kept else ()))),
            )
        )
    return tuple(sorted(grants, key=lambda grant: grant.job))


def _with_reasons(ledger: Ledger, grants: Sequence[Grant], targets: Targets, since: float) -> Ledger:
    """Returns the ledger with why each job waits that has nothing, and with notes: people read it there.

    The reason of a pause after that time stays. Jobs that wait for GPUs have their targets there, so that the next
    round does not divide again what this one has divided.
    """
    accounts = dict(ledger.accounts)
    for grant in grants:
        account = accounts[grant.job]
        reason = account.reason if grant.allowed or account.was_paused(since) else grant.reason
        note = grant.reason.removeprefix(reason) if grant.allowed else ""
        target = targets.gpus[grant.job]
        awaited = target if target > grant.allowed else 0
        accounts[grant.job] = replace(account, reason=reason, note=note, awaited=awaited, leave=grant.leave)
    return replace(ledger, accounts=MappingProxyType(accounts))
