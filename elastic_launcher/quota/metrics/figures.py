"""Computes what the controller's metrics say: of each project after a round, and of its waits for its guarantee.

Invariant: a project lacks GPUs of its guarantee only where other sizes of its jobs would use more of it than they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.round import Decision
from elastic_launcher.quota.rounds.world import World


@dataclass(frozen=True, slots=True)
class Own:
    """What a project's own jobs have, without those of the projects below it. All counts are GPUs, but for ``waiting``.

    Attributes:
        held: What its jobs and its pods that are not elastic hold.
        wanted: The most of its guarantee that these can use.
        waiting: Jobs that may hold nothing now.
    """

    held: int
    wanted: int
    waiting: int

    @property
    def lacks(self) -> int:
        """What it could use of its guarantee, and does not hold."""
        return max(0, self.wanted - self.held)


@dataclass(frozen=True, slots=True)
class Figures:
    """A project, with all projects below it. All counts are GPUs, but for ``waiting``.

    Attributes:
        guaranteed: What is guaranteed to it.
        fair_share: Its share by this decision.
        held: What its jobs and its pods that are not elastic hold.
        over_quota: What of it is above the guarantee.
        lacking: What they could use of their guarantees, and do not hold.
        waiting: Jobs that may hold nothing now.
    """

    guaranteed: int
    fair_share: int
    held: int
    over_quota: int
    lacking: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A project that waits for GPUs of its guarantee.

    Attributes:
        since: When it first lacked some, in seconds.
        wanted: What it has to hold before the wait is over, in GPUs.
    """

    since: float
    wanted: int


def own_figures(world: World, projects: Projects, decision: Decision) -> dict[str, Own]:
    """Returns what each project's own jobs have.

    Args:
        world: What the round was made of.
        projects: The projects document.
        decision: The outcome of the round.
    """
    held: dict[str, int] = {}
    for account in decision.ledger.accounts.values():
        held[account.project] = held.get(account.project, 0) + account.held
    waiting: dict[str, int] = {}
    for grant in decision.grants:
        waiting[grant.project] = waiting.get(grant.project, 0) + (not grant.allowed)
    sizes: dict[str, list[tuple[int, ...]]] = {}
    for job in world.jobs:
        if job.id in decision.ledger.accounts and not job.finished:
            sizes.setdefault(decision.ledger.accounts[job.id].project, []).append(job.sizes)
    found = {}
    for project in projects.projects:
        name = project.name
        rigid, limit = world.rigid.get(name, 0), projects.limit_of(name)
        below = sum(projects.named(child).guaranteed for child in projects.children(name))
        guarantee = min(max(0, project.guaranteed - below), decision.targets.demands.get(name, 0))
        budget = guarantee if limit is None else min(guarantee, limit)
        holds = rigid + held.get(name, 0)
        enough = holds >= budget
        wanted = budget if enough else rigid + _most(sizes.get(name, ()), budget - rigid)
        found[name] = Own(holds, wanted, waiting.get(name, 0))
    return found


def _most(jobs: Iterable[tuple[int, ...]], budget: int) -> int:
    """Returns the most GPUs within a budget that jobs can use together; each has none, or one of its sizes."""
    sums, within = 1, (1 << (budget + 1)) - 1  # the sums that are possible, as the bits of a number
    for sizes in jobs:
        more = sums
        for size in sizes:
            if size > budget:
                break
            more |= sums << size
        sums = more & within
        if sums >> budget:
            break
    return sums.bit_length() - 1


def figures_of(projects: Projects, own: Mapping[str, Own], shares: Mapping[str, int]) -> dict[str, Figures]:
    """Returns the figures of each project, with those of all projects below it.

    Args:
        projects: The projects document.
        own: What each project's own jobs have.
        shares: The fair share of each project, with all projects below it.
    """
    sums = {name: (one.held, one.lacks, one.waiting) for name, one in own.items()}
    for project in sorted(projects.projects, key=lambda one: -len(projects.path(one.name))):
        if project.parent is not None:
            parts = zip(sums[project.parent], sums[project.name], strict=True)
            held, lacking, waiting = (above + below for above, below in parts)
            sums[project.parent] = held, lacking, waiting
    figures = {}
    for project in projects.projects:
        held, lacking, waiting = sums[project.name]
        over = max(0, held - project.guaranteed)
        figures[project.name] = Figures(project.guaranteed, shares[project.name], held, over, lacking, waiting)
    return figures


def follow_lacks(
    before: Mapping[str, Shortfall], own: Mapping[str, Own], now: float
) -> tuple[dict[str, Shortfall], list[float]]:
    """Returns which projects wait for GPUs of their guarantees, and how long each wait took that is over now.

    A wait that ends because less is asked for is left out.

    Args:
        before: Those that waited after the round before.
        own: What each project's own jobs have now.
        now: Seconds, by the clock of ``before``.
    """
    waits, over = {}, []
    for name, one in own.items():
        lack = before.get(name)
        if one.lacks:
            waits[name] = Shortfall(now if lack is None else lack.since, one.wanted)
        elif lack is not None and one.held >= lack.wanted:
            over.append(now - lack.since)
    return waits, over
