"""Bounds jobs with two kinds of nodes by the machines of each kind: nodes within the guarantee, and those above it.

The nodes of each kind count as a job of their own, so `usable` says what the machines leave to them. How many of a
job's nodes are within the guarantee is decided later, by what is guaranteed to its project. So in a bound on what jobs
may have in all, nodes above the guarantee count as all of the job's nodes, less what their projects are guaranteed.

Invariant: jobs within these bounds, and within those of all machines that they can use, can be divided into nodes of
the two kinds so that all of them find a place. Where machines of nodes within the guarantee are, for another job, those
of nodes above it, a few may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.rounds.world import Besides, Bound, above_of, within_of
from elastic_launcher.quota.sources.usable import MOST_UNIONS, Stock, bounds_by_machines

_Held = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Kinds:
    """The two kinds of a job's nodes.

    Attributes:
        within: The machines that nodes within the guarantee can use.
        above: Those that nodes above it can use.
        held_within: What nodes within the guarantee hold, by machine.
        held_above: What nodes above it hold.
        project: The job's project.
        guaranteed: What is left for jobs of what that is guaranteed.
    """

    within: frozenset[str]
    above: frozenset[str]
    held_within: _Held
    held_above: _Held
    project: str
    guaranteed: int

    @property
    def placed(self) -> tuple[int, int]:
        """GPUs of its nodes that have a place: within the guarantee, and above it."""
        return sum(self.held_within.values()), sum(self.held_above.values())

    def is_inside(self, job: str, bound: Bound) -> bool:
        """Returns whether a bound of machines holds for all of the nodes; a kind without machines has no nodes."""
        within, above = within_of(job) in bound.jobs, above_of(job) in bound.jobs
        return (within and (above or not self.above)) or (above and not self.within)


def bounds_of_kinds(
    stock: Stock,
    jobs: Sequence[Job],
    usable: Mapping[str, frozenset[str]],
    every: frozenset[str],
    kinds: Mapping[str, Kinds],
    spare: int = 0,
) -> list[Bound]:
    """Returns what machines leave to nodes of each kind; nodes of a kind are named by `within_of` and `above_of`.

    Args:
        stock: The GPUs.
        jobs: Those that count.
        usable: The machines that each job's pods can use, by the job's id.
        every: All machines that the capacity counts in full.
        kinds: The kinds of nodes, by the ids of the jobs where they can use different machines.
        spare: GPUs of machines that may come.
    """
    held = {job: gpus for job, gpus in stock.held.items() if job not in kinds}
    machines = {job: names for job, names in usable.items() if job not in kinds}
    nodes = [job for job in jobs if job.id not in kinds]
    for job in jobs:
        if (own := kinds.get(job.id)) is not None:
            for name, where, there in (
                (within_of(job.id), own.within, own.held_within),
                (above_of(job.id), own.above, own.held_above),
            ):
                nodes.append(replace(job, id=name))
                machines[name], held[name] = where, there
    both = [within | above for within, above in {(own.within, own.above) for own in kinds.values()}]
    stock = Stock(stock.gpus, stock.others, held)  # nodes of one kind are not asked to leave for the other one
    return bounds_by_machines(stock, nodes, machines, every, spare, both)


def bounds_above(bounds: Iterable[Bound], jobs: Iterable[Job], kinds: Mapping[str, Kinds]) -> list[Bound]:
    """Returns what jobs may have in all, so that their nodes above the guarantee have a place.

    Args:
        bounds: What machines leave to nodes of each kind.
        jobs: Those that count.
        kinds: The kinds of nodes, as for `bounds_of_kinds`.
    """
    per_node = {job.id: job.per_node for job in jobs}
    ids = {name: job for job in kinds for name in (within_of(job), above_of(job))}
    found: dict[tuple[frozenset[str], frozenset[str], int], Bound] = {}
    for bound in bounds:
        inside = frozenset(job for job in per_node if job in bound.jobs)
        inside |= frozenset(job for job, own in kinds.items() if own.is_inside(job, bound))
        above = frozenset(job for job in kinds if above_of(job) in bound.jobs) - inside
        if above:
            others = {
                job: one.placed[0]
                for job, one in kinds.items()
                if one.placed[0] and within_of(job) in bound.jobs and job not in inside
            }
            within = sum(others.values())
            left = replace(
                bound,
                jobs=inside | above,
                gpus=max(0, bound.gpus - within),
                taken=bound.taken + within,
                holders=_summed([*((ids.get(name, name), gpus) for name, gpus in bound.holders), *others.items()]),
                above=above,
                now=None if bound.now is None else max(0, bound.now - within),
            )
            key = inside, above, bound.per_node
            found[key] = _tighter(found.get(key, left), left)
    _join(found, kinds)
    return [_with_guarantees(bound, kinds) for bound in sorted(found.values(), key=lambda one: one.name)]


def _join(found: dict[tuple[frozenset[str], frozenset[str], int], Bound], kinds: Mapping[str, Kinds]) -> None:
    """Adds bounds of machines that have none in common, where jobs of one project share its guarantee."""
    each = list(found.items())
    most = len(each) + MOST_UNIONS
    projects = [{kinds[job].project for job in above} for (_, above, _), _ in each]
    for number, ((inside, above, step), bound) in enumerate(each):  # it grows meanwhile
        for place, ((others, others_above, other_step), other) in enumerate(each[:number]):
            if len(each) >= most:
                return
            if step != other_step or projects[number].isdisjoint(projects[place]) or bound.jobs & other.jobs:
                continue
            key = inside | others, above | others_above, step
            if key in found:
                continue
            joined = replace(
                bound,
                name=f"{other.name} + {bound.name}",
                jobs=bound.jobs | other.jobs,
                above=bound.above | other.above,
                gpus=bound.gpus + other.gpus,
                taken=bound.taken + other.taken,
                movable=bound.movable + other.movable,
                holders=_summed([*other.holders, *bound.holders]),
                smaller=bound.smaller + other.smaller,
                now=None if bound.now is None or other.now is None else bound.now + other.now,
            )
            found[key] = joined
            each.append((key, joined))
            projects.append(projects[number] | projects[place])


def _tighter(one: Bound, other: Bound) -> Bound:
    """Returns the tighter of two bounds of the same jobs; now, the tighter of both holds."""
    left = min(one, other, key=lambda bound: bound.gpus)
    return replace(left, now=min((bound.now for bound in (one, other) if bound.now is not None), default=None))


def _summed(holders: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Returns what each job holds, the most first."""
    found: dict[str, int] = {}
    for job, gpus in holders:
        found[job] = found.get(job, 0) + gpus
    return tuple(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def _with_guarantees(bound: Bound, kinds: Mapping[str, Kinds]) -> Bound:
    """Returns a bound with what jobs have besides: their guarantee in whole nodes, or what such nodes hold already."""
    found: dict[str, Besides] = {}
    for job in bound.above:
        own = kinds[job]
        within, above = own.placed
        guaranteed = own.guaranteed // bound.per_node * bound.per_node
        before = found.get(own.project, Besides(own.project, guaranteed))
        found[own.project] = replace(before, within=before.within + within, above=before.above + above)
    beside = tuple(found[project] for project in sorted(found))
    return replace(bound, name=f"{bound.name}, above the guarantee", beside=beside)
