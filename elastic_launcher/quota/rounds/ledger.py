"""Keeps what the controller has promised to each job, so that no GPU is promised twice.

Invariant: a job is committed to at least what it holds, what its newest hint allows, and what it may still follow of an
earlier hint. A lower number frees GPUs only when the job reports that it follows it and no longer holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from elastic_launcher.quota.jobs import Job

_Count = Annotated[int, Meta(ge=0)]
ENDED = "it has ended"
BRIEF = 600.0
"""A growth that is taken back within so many seconds has been brief."""
NOTICED = 10.0
"""So many seconds a hint takes at most to be followed and reported: launchers report every 5 s."""
RESTLESS = 3
"""After so many brief growths in a row, not even a guarantee makes a job grow before its wait is over."""
LONGEST_WAIT = 64
"""The most that a job waits before it grows again, in multiples of the set time."""
NEWER = "overdue", "note", "awaited", "brief", "leave"
"""Fields that an earlier controller, after a rollback, refuses: only accounts that need them have them."""


@dataclass(frozen=True, slots=True)
class Account:
    """The promises to one job. GPUs are whole numbers, times are seconds since the epoch.

    Attributes:
        project: The project that the job belongs to.
        allowed: What its newest hint allows.
        outstanding: The largest number that the job may still follow; never below ``allowed``.
        generation: The hints document that first had ``allowed``.
        held: What it held by its newest report.
        reported_at: When that report was made.
        grown_at: When ``allowed`` last rose, or None.
        shrunk_at: When ``allowed`` last fell, or None.
        reclaim_by: When GPUs above ``allowed`` may be killed; None while nothing is being taken back.
        overdue: GPUs that the job has kept since long after that.
        reason: Why the job has what it has, in one line.
        note: What follows the reason: GPUs of its guarantee that find no machine of their kind.
        awaited: What it is to be allowed once GPUs are free; 0 where it waits for none.
        brief: How many times in a row what it had grown by was soon taken back.
        leave: The numbers of its nodes that it was told to end first.
    """

    project: str
    allowed: _Count
    outstanding: _Count
    generation: _Count
    held: _Count = 0
    reported_at: float = 0.0
    grown_at: float | None = None
    shrunk_at: float | None = None
    reclaim_by: float | None = None
    reason: str = ""
    overdue: _Count = 0
    note: str = ""
    awaited: _Count = 0
    brief: _Count = 0
    leave: tuple[int, ...] = ()

    @property
    def committed(self) -> int:
        """GPUs that the job holds or may still take."""
        return max(self.held, self.outstanding)

    @property
    def kept(self) -> int:
        """GPUs beyond what it is allowed that it has kept since long after its grace period."""
        return min(self.overdue, max(0, self.committed - self.allowed))

    @property
    def is_deaf(self) -> bool:
        """Whether the job has not followed its hint since long after its grace period."""
        return self.kept > 0 and self.outstanding > self.allowed

    @property
    def stuck(self) -> int:
        """GPUs that no hint moves: what it has kept for so long, or all that it has if it ignores its hints."""
        return self.committed if self.is_deaf else self.kept

    @property
    def planned(self) -> int:
        """GPUs that the last round gave it, some of which may not be free yet."""
        return max(self.allowed, self.awaited)

    @property
    def counted(self) -> int:
        """GPUs that its project has by it."""
        return self.allowed + self.kept

    def is_late(self, time: float) -> bool:
        """Returns whether the job keeps GPUs that were to be free by a time, in seconds since the epoch."""
        return self.committed > self.allowed and self.reclaim_by is not None and self.reclaim_by <= time

    def was_paused(self, since: float) -> bool:
        """Returns whether the job was paused after a time, in seconds since the epoch, and its reason says why."""
        return not self.allowed and self.shrunk_at is not None and self.shrunk_at > since and self.reason != ENDED

    @property
    def changed_at(self) -> float:
        """When ``allowed`` last rose or fell, in seconds since the epoch; 0 if it never has."""
        return max(self.grown_at or 0.0, self.shrunk_at or 0.0)

    @property
    def is_restless(self) -> bool:
        """Whether what the job was given did not last, several times in a row."""
        return self.brief >= RESTLESS

    def grows_from(self, grow_after: float) -> float | None:
        """Returns when it may grow again after it has shrunk, in seconds since the epoch; None if it never has.

        The wait doubles with each brief growth after the first, as a restart does that fails again and again.

        Args:
            grow_after: Seconds that growth waits after a shrink.
        """
        if self.shrunk_at is None:
            return None
        return self.shrunk_at + grow_after * min(LONGEST_WAIT, 1 << max(0, self.brief - 1))

    def change(self, allowed: int, generation: int, now: float, reason: str, reclaim_by: float | None) -> Account:
        """Returns the account after a hint that allows another number."""
        grows = allowed > self.allowed
        brief = self.brief
        if not grows:
            brief = brief + 1 if self.grown_at is not None and now - self.grown_at < BRIEF else 0
        return replace(
            self,
            allowed=allowed,
            outstanding=max(self.outstanding, allowed),
            generation=generation,
            grown_at=now if grows else self.grown_at,
            shrunk_at=self.shrunk_at if grows else now,
            reclaim_by=reclaim_by,
            reason=reason,
            brief=brief,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """With how many GPUs a round plans. Times are seconds since the epoch.

    Attributes:
        gpus: That many.
        there: GPUs that were there.
        waits_since: Since when pods wait for GPUs that are not there without any that came; None if none do.
        pauses_until: Until when it has no more GPUs than are there; None if it may.
    """

    gpus: _Count
    there: _Count
    waits_since: float | None = None
    pauses_until: float | None = None


AHEAD = 10**6
"""A job that says it follows hints by more than so many generations newer than the ledger's is not believed."""


class _Stored(Struct):
    """A ledger as it is stored."""

    generation: _Count = 0
    accounts: dict[str, Account] = {}
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The accounts of all jobs.

    Attributes:
        generation: Of the newest hints document.
        accounts: By the job's id.
        plan: With how many GPUs the last round planned; None without autoscaling.
    """

    generation: int = 0
    accounts: Mapping[str, Account] = field(default_factory=lambda: MappingProxyType({}))
    plan: Plan | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the ledger as it is stored beside the hints."""
        return {
            "generation": self.generation,
            "accounts": {name: _as_json(account) for name, account in sorted(self.accounts.items())},
            **({} if self.plan is None else {"plan": asdict(self.plan)}),
        }


def _as_json(account: Account) -> dict[str, Any]:
    row = asdict(account)
    for name in NEWER:
        if not row[name]:
            del row[name]
    return row


def ledger_of(found: Mapping[str, Any]) -> Ledger:
    """Returns the ledger that ``as_json`` made.

    Fields of a later controller are left out.

    Raises:
        ValidationError: If a field is missing, or is not what it must be.
    """
    read = convert(found, _Stored)
    return Ledger(read.generation, MappingProxyType(read.accounts), read.plan)


def allowed_by_project(accounts: Iterable[Account], rigid: Mapping[str, int]) -> dict[str, int]:
    """Returns what each project's own jobs are allowed or keep, with its pods that are not elastic."""
    allowed = dict(rigid)
    for account in accounts:
        allowed[account.project] = allowed.get(account.project, 0) + account.counted
    return allowed


def caught_up(ledger: Ledger, jobs: Iterable[Job]) -> Ledger:
    """Returns the ledger under the newest generation that jobs follow: they ignore what has an older one.

    The hints, with the ledger in them, may have been emptied, or an old copy put in their place.

    Args:
        ledger: The promises so far.
        jobs: The reports.
    """
    seen = (job.following_generation or 0 for job in jobs)
    newest = max((one for one in seen if one <= ledger.generation + AHEAD), default=0)
    return ledger if newest <= ledger.generation else replace(ledger, generation=newest)


def set_back(ledger: Ledger, now: float) -> Ledger:
    """Returns the ledger as it is by a clock that was set back since: nothing in it happened later than now.

    Else reports would count as older than the last one, and waits would last, until that time has come again.

    Args:
        ledger: The promises so far.
        now: Seconds since the epoch.
    """
    return replace(
        ledger, accounts=MappingProxyType({name: _set_back(one, now) for name, one in ledger.accounts.items()})
    )


def _set_back(account: Account, now: float) -> Account:
    if account.reported_at > now:
        account = replace(account, reported_at=now)
    ahead = account.changed_at - now
    if ahead <= 0:
        return account
    grown_at, shrunk_at, reclaim_by = (
        None if moment is None else moment - ahead
        for moment in (account.grown_at, account.shrunk_at, account.reclaim_by)
    )
    return replace(account, grown_at=grown_at, shrunk_at=shrunk_at, reclaim_by=reclaim_by)


def settle(ledger: Ledger, jobs: Iterable[Job], projects: Mapping[str, str], patience: float, noticed: float) -> Ledger:
    """Returns the ledger after the jobs' reports.

    A job that the controller has not promised anything is taken over with what it holds. A job that is no longer
    reported loses its account: its pods are counted where they run. A report older than one that was seen changes
    nothing.

    Args:
        ledger: The promises so far.
        jobs: The reports, one for each job.
        projects: The name of each job's project, by the job's id.
        patience: When GPUs had to be given back by at the latest that are overdue now, in seconds since the epoch.
        noticed: When hints were written at the latest that jobs know by now, likewise.
    """
    accounts = {}
    for job in jobs:
        known = ledger.accounts.get(job.id)
        if known is None:
            follows = 0 if ledger.accounts else min(job.following or 0, job.maximum)  # a hint of before the ledger
            may_follow = max(job.held, follows)
            known = Account(projects[job.id], job.held, may_follow, ledger.generation, reason="it held them already")
        if job.reported_at >= known.reported_at:
            known = replace(known, held=job.held, reported_at=job.reported_at, outstanding=_outstanding(known, job))
        if job.finished:
            known = replace(known, allowed=0, awaited=0, outstanding=0, reason=ENDED, note="")
        if known.committed <= known.allowed and (known.reclaim_by is not None or known.overdue):
            known = replace(known, reclaim_by=None, overdue=0)
        elif known.is_late(patience) and (known.shrunk_at or 0.0) <= noticed:
            known = replace(known, overdue=known.committed - known.allowed)
        elif known.overdue:
            known = replace(known, overdue=known.kept)
        accounts[job.id] = replace(known, project=projects[job.id])
    return replace(ledger, accounts=MappingProxyType(accounts))


def _outstanding(account: Account, job: Job) -> int:
    """Returns what a job may still follow: the newest number alone once it follows that, or a later document.

    An entry written by hand may allow a number that the job can't use: it follows what it uses of that.
    """
    seen = job.following_generation
    if seen is None or seen < account.generation or job.following is None:
        return account.outstanding
    follows = account.allowed in (job.following, job.usable(job.following))
    return account.allowed if follows else account.outstanding
