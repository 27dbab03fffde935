"""Says in one line why a job gets, loses or waits for GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.demands import own_share
from elastic_launcher.quota.rounds.ledger import Account, Ledger, Plan, allowed_by_project
from elastic_launcher.quota.rounds.members import Member
from elastic_launcher.quota.rounds.targets import Targets
from elastic_launcher.quota.rounds.world import Bound, World
from elastic_launcher.report.words import plural

Cause = Literal["guarantee", "fair_share", "capacity", "limit", "project", "free", "hand"]
"""Why a job's number changed: a project's guarantee; a share of what is over quota; machines that are gone; a limit, of
a project or of another enforcer; other jobs of its project; GPUs that nobody uses; an entry written by hand."""

SHOWN = 3
"""Of several jobs, so many are named."""


class _Taken:
    """What jobs take of bounds, each summed up once.

    Args:
        accounts: The promises to the jobs.
        counts: The GPUs of each.
    """

    def __init__(self, accounts: Mapping[str, Account], counts: Mapping[str, int]) -> None:
        self._jobs = {name: (accounts[name].project, count) for name, count in counts.items()}
        self._found: dict[tuple[str, tuple[object, ...]], int] = {}

    def of(self, bound: Bound) -> int:
        """Returns what the jobs of a bound have."""
        return self._sum(bound, (), {})

    def with_minimum(self, bound: Bound, job: Job) -> int:
        """Returns the same as if one of the jobs had its minimum, and no more."""
        project, count = self._jobs[job.id]
        if not bound.above:
            return self.of(bound) - count + job.minimum
        alike = project, count, job.minimum, job.id in bound.above
        return self._sum(bound, alike, {job.id: (project, job.minimum)})

    def _sum(self, bound: Bound, key: tuple[object, ...], changed: Mapping[str, tuple[str, int]]) -> int:
        if (bound.name, key) not in self._found:
            self._found[bound.name, key] = bound.taken_by({**self._jobs, **changed})
        return self._found[bound.name, key]


class After:
    """The state after a round, as far as those need it that wait.

    Attributes:
        ledger: The promises from now on.
        now: Seconds since the epoch.
        late: Jobs that keep GPUs which were to be free by now.
        until: When the last GPUs are to be free that are being taken back, in seconds since the epoch, or None.
        taken: What jobs hold or may still take of bounds.
        protected: Jobs that may not be paused yet: until when, their ids and their projects, the earliest first.
    """

    def __init__(self, ledger: Ledger, now: float, members: Sequence[Member]) -> None:
        accounts = ledger.accounts
        self.ledger = ledger
        self.protected = sorted(
            (one.floor_until, one.job.id, one.project.name) for one in members if one.floor and not one.by_hand
        )
        self.now = now
        self.late = sorted(name for name, account in accounts.items() if account.is_late(now))
        frees = (one.reclaim_by for one in accounts.values() if one.committed > one.allowed)
        self.until = max((time for time in frees if time is not None), default=None)
        self.taken = _Taken(accounts, {name: account.committed for name, account in accounts.items()})


class Reasons:
    """The reasons of one round, from the state before it."""

    def __init__(self, world: World, projects: Projects, ledger: Ledger, targets: Targets) -> None:
        self._world = world
        self._projects = projects
        self._targets = targets
        self._accounts = ledger.accounts
        self._allowed = allowed_by_project(ledger.accounts.values(), world.rigid)
        self._capacity = _capacity(world, ledger.plan)
        self._counted = _Taken(ledger.accounts, {name: one.counted for name, one in ledger.accounts.items()})
        self._targeted = _Taken(ledger.accounts, targets.gpus)
        self._planned = Counter(world.rigid)
        for name, count in targets.gpus.items():
            account = ledger.accounts[name]
            self._planned[account.project] += count + account.kept

    def lacks(self, project: str) -> int:
        """Returns how many GPUs a project is to get within its guarantee; 0 if none."""
        entitled = min(self._targets.entitled.get(project, 0), self._planned[project])
        return max(0, entitled - self._allowed.get(project, 0))

    def of_shrink(self, member: Member, after: int) -> tuple[Cause, str]:
        """Returns why a job has to give up GPUs, and which others have not given up theirs in time."""
        cause, reason = self._of_shrink(member, after)
        keeping = sorted(name for name, one in self._accounts.items() if one.kept and name != member.job.id)
        if keeping and cause not in ("hand", "limit"):
            reason += f"; {_still_held(keeping)}"
        return cause, reason

    def _of_shrink(self, member: Member, after: int) -> tuple[Cause, str]:
        own = member.project.name
        change = f"{member.account.allowed:,} → {plural(after, 'GPU')}"
        if not after:
            change += ", paused by quota"
        if member.fixed is not None:
            return "hand", f"{change}: an entry written by hand gives it {member.fixed:,}"
        if sum(self._allowed.values()) > self._world.capacity:
            return "capacity", f"{change}: {self._capacity}{_not_elastic(self._world)}"
        for above in self._projects.path(own):
            has = self._with_those_below(above.name)
            if above.limit is not None and has > above.limit:
                return "limit", f"{change}: the limit of project {above.name} is {above.limit:,}, and it has {has:,}"
        for bound in member.bounds:
            if self._counted.of(bound) > bound.gpus:
                return "capacity" if bound.per_node else "limit", f"{change}: {self._left_by(bound, member)}"
        short = {name for name in self._targets.entitled if self.lacks(name)} | self._targets.owed
        short = (short - {own}) or (short & self._targets.owed)
        if short:
            most = min(short, key=lambda name: (-self.lacks(name), name))
            asked, guaranteed = self._targets.demands[most], self._projects.named(most).guaranteed
            return "guarantee", f"{change}: project {most} asks for {_of(asked, guaranteed)} guaranteed"
        share = own_share(self._projects, self._targets.shares, own)
        if self._allowed.get(own, 0) > share:
            return "fair_share", f"{change}: the fair share of project {own} is {plural(share, 'GPU')} now"
        if not after:
            return "project", f"{change}: other jobs of project {own} come first"
        return "project", f"{change}: another job of project {own} makes more of them"

    def _with_those_below(self, name: str) -> int:
        """Returns what a project and all below it are allowed, with their pods that are not elastic."""
        below = sum(self._with_those_below(child) for child in self._projects.children(name))
        return self._allowed.get(name, 0) + below

    def of_growth(self, member: Member, after: int, has: int) -> tuple[Cause, str]:
        """Returns why a job gets GPUs.

        Args:
            member: The job.
            after: What it is allowed now.
            has: What its project is allowed without this growth, and with the changes of this round before it.
        """
        own = member.project.name
        change = f"{member.account.allowed:,} → {plural(after, 'GPU')}"
        if member.fixed is not None:
            return "hand", f"{change}: an entry written by hand gives it {member.fixed:,}"
        lacks, more = max(0, self._targets.entitled[own] - has), after - member.account.allowed
        if 0 < lacks < more:
            return (
                "guarantee",
                f"{change}: {lacks:,} of them are guaranteed to project {own}, {more - lacks:,} are free",
            )
        if lacks:
            asked, guaranteed = self._targets.demands[own], self._projects.named(own).guaranteed
            return "guarantee", f"{change}: project {own} asks for {_of(asked, guaranteed)} guaranteed"
        share = own_share(self._projects, self._targets.shares, own)
        if has + more <= share:
            return "fair_share", f"{change}: the fair share of project {own} is {plural(share, 'GPU')}"
        return "free", f"{change}: nobody else can use them"

    def of_wait(self, member: Member, after: After) -> str:
        """Returns why a job has no GPU after the round."""
        ledger, late, now = after.ledger, after.late, after.now
        name, own, least = member.job.id, member.project.name, member.job.minimum
        needs = f"waits: it needs {plural(least, 'GPU')}"
        if member.fixed is not None:
            return f"waits: an entry written by hand gives it {member.fixed:,}"
        targeted = self._targets.gpus[name]  # with what others are to leave to it
        for bound in member.bounds:
            if bound.most(own) < least and not targeted:
                return f"{needs}, and {self._left_by(bound, member)}"
        if not member.sizes and not targeted:
            limit = self._projects.limit_of(own)
            return f"{needs}, and the limit of project {own} is {limit:,}"
        if least > self._world.capacity:
            return f"{needs}, and {self._capacity}"
        account = ledger.accounts[name]
        if account.is_late(now):
            return f"waits: it still holds {plural(member.account.committed, 'GPU')} that were to be free by now"
        if late and self._allowed.get(own, 0) < min(self._targets.demands[own], member.project.guaranteed):
            return f"waits: {_still_held(late)}"
        if not targeted:
            keeping = [one for one in late if ledger.accounts[one].project == own and ledger.accounts[one].kept]
            if keeping and sum(ledger.accounts[one].kept for one in keeping) >= least:
                return f"waits: {_still_held(keeping)}"
            if account.was_paused(now - self._projects.grow_after):
                return account.reason
            grows_from = account.grows_from(self._projects.grow_after)
            if account.brief > 1 and grows_from is not None and now < grows_from:
                briefly = f"what it was given was soon taken back {account.brief} times in a row"
                return f"waits: {briefly}; it gets GPUs from {_clock(grows_from)} on"
            for bound in member.bounds:
                if self._targeted.with_minimum(bound, member.job) > bound.gpus:
                    return f"{needs}; {self._left_by(bound, member)}, and other jobs come first"
            if sum(self._world.rigid.values()) + least > self._world.capacity:
                return f"{needs}; {self._capacity}{_not_elastic(self._world)}"
            guaranteed = min(self._targets.demands[own], member.project.guaranteed)
            if self._planned[own] + least <= guaranteed and (protected := _of_others(after.protected, own)):
                return f"waits: minRunSeconds protects {protected}"
            share = own_share(self._projects, self._targets.shares, own)
            return f"{needs}; the fair share of project {own} is {share:,}, and other jobs come first"
        for bound, at_once in ((one, one.at_once) for one in member.bounds):
            if at_once is not bound and after.taken.with_minimum(bound, member.job) > at_once.gpus:
                return f"{needs}, and {self._left_by(at_once, member)}"
        if self._world.stale:
            return "waits: what the cluster holds could not be read, and nothing grows before it can"
        if late:
            return f"waits: {_still_held(late)}"
        if after.until is not None:
            return f"waits: GPUs are being taken back for it, by {_clock(after.until)}"
        if self._world.leaving:
            return f"{needs}; pods that are about to end still hold {self._world.leaving:,}"
        rigid = sum(self._world.rigid.values())
        return f"{needs}; pods that are not elastic hold {rigid:,}"

    def _left_by(self, bound: Bound, member: Member) -> str:
        """Returns what a bound leaves to a job, in words."""
        job, left = member.job, bound.most(member.project.name)
        if not bound.per_node:
            return f"{bound.name} leaves {bound.gpus:,}"
        above = job.id in bound.above
        asked = job.scheduling[-1:] if above else job.scheduling
        matched = "its " + " or ".join(one.words for one in asked) + " of nodes above the guarantee" * above
        whose = self._whose(bound)
        if left:
            beside = ", with what is guaranteed" if above else ""
            return f"the machines that match {matched} leave {left:,}{beside}{whose if bound.holders else ''}"
        if bound.per_node > 1:
            return f"no machine that matches {matched} has {bound.per_node:,} free GPUs, which a node needs{whose}"
        return f"no {'free ' if bound.taken else ''}machine matches {matched}{whose}"

    def _whose(self, bound: Bound) -> str:
        """Returns who else holds the machines of a bound, in words."""
        held = [
            (f"{name} (project {self._accounts[name].project})" if name in self._accounts else name, count)
            for name, count in bound.holders[:SHOWN]
        ]
        rest = bound.taken - sum(count for _, count in held)
        held += [("others", rest)] if rest > 0 else []
        if not held:
            return ""
        (who, count), *more = held
        hold = "hold" if who == "others" else "holds"
        return "".join(
            (f": {who} {hold} {plural(count, 'GPU')} there", *(f", {other} {less:,}" for other, less in more))
        )


def _capacity(world: World, plan: Plan | None) -> str:
    """Returns what bounds all jobs together, in words."""
    if plan is not None and plan.gpus < plan.there:
        return f"a machine is to be emptied, so that {plural(world.capacity, 'GPU')} remain"
    there = f"the capacity is {plural(world.capacity, 'GPU')} now"
    if world.foreign:
        there += f" ({world.foreign:,} more are held, by what is of no project)"
    if plan is not None and plan.pauses_until is not None:
        there += "; machines that were asked for did not come"
    return there


def _not_elastic(world: World) -> str:
    """Returns what of the capacity others than elastic jobs have, in words, after the capacity."""
    if not world.rigid:
        return ""
    names = sorted(world.rigid, key=lambda name: (-world.rigid[name], name))
    projects = "project" if len(names) == 1 else "projects"
    return f", and others than elastic jobs have {sum(world.rigid.values()):,} of them ({projects} {_listed(names)})"


def without_machines(job: Job, lacking: int) -> str:
    """Returns that GPUs of a job are above the guarantee for want of machines, in words that follow a reason."""
    return (
        f"; {plural(lacking, 'GPU')} of what is guaranteed must be above the guarantee: no free machine matches its "
        f"{job.scheduling[0].words} of nodes within it"
    )


def _of(asked: int, guaranteed: int) -> str:
    return f"{asked:,} of its {guaranteed:,}" if asked <= guaranteed else f"its {guaranteed:,}"


def _still_held(late: Sequence[str]) -> str:
    return f"{_listed(late)} still hold{'s' if len(late) == 1 else ''} GPUs that were to be free by now"


def _of_others(protected: Sequence[tuple[float, str, str]], project: str) -> str:
    """Returns the jobs of other projects that may not be paused yet, and until when; empty if there are none."""
    others = [(until, name) for until, name, of in protected if of != project]
    if not others:
        return ""
    first = ", the first of them" if len(others) > 1 else ""
    return f"{_listed([name for _, name in others])}{first} until {_clock(others[0][0])}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%SZ")
