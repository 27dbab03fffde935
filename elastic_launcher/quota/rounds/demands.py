"""Sums up what each project asks for, as far as the bounds of other enforcers let it have that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.members import Member, without_movable
from elastic_launcher.quota.rounds.world import Bound, World

Portions = Mapping[tuple[str, str], int]
"""What each project counts on of a bound, by the names of the bound and of the project."""


def portions_of(
    bounds: Sequence[Bound],
    rigid: Mapping[str, int],
    projects: Projects,
    members: Sequence[Member],
    shares: Mapping[str, int],
    lacking: Collection[str] = (),
) -> Portions:
    """Returns the part of each bound that each project counts on: its fair share where several have jobs under it.

    It is guaranteed only what its other jobs can't use of its share: those come first that have no other way.

    Args:
        bounds: The bounds, off which others are taken already.
        rigid: What pods that are not elastic hold, by project: it is part of what the project is guaranteed.
        projects: The projects.
        members: The jobs, in the order in which they are served.
        shares: The share of each project, with all projects below it.
        lacking: Projects whose other jobs turned out not to use what they could.
    """
    own = {name: own_share(projects, shares, name) for name in shares}
    alike: dict[str, dict[tuple[Bound, ...], list[Member]]] = {}
    asked: dict[str, dict[str, int]] = {}
    for member in members:
        alike.setdefault(member.project.name, {}).setdefault(member.bounds, []).append(member)
        for bound in member.bounds:
            of_bound = asked.setdefault(bound.name, {})
            of_bound[member.project.name] = of_bound.get(member.project.name, 0) + member.asked
    freest = {name: sorted(found.values(), key=lambda group: len(group[0].bounds)) for name, found in alike.items()}
    portions = {}
    for bound in bounds:
        claimed = asked.get(bound.name, {})
        held = {name: rigid.get(name, 0) for name in claimed}
        parts: Mapping[str, int] = {}
        if len(claimed) > 1:
            most = {name: own[name] - held[name] if name not in lacking else 0 for name in claimed}
            besides = {name: _elsewhere(bound, freest[name], gpus) for name, gpus in most.items()}
            parts = _shares_of(bound, held, projects, claimed, shares, {**own, **besides})
        for name in claimed:
            part = max(0, parts[name] - held[name]) if parts else bound.gpus
            portions[bound.name, name] = bound.besides(name).most(part) if bound.above else part
    return portions


def _elsewhere(bound: Bound, groups: Sequence[Sequence[Member]], most: int) -> int:
    """Returns what those of a project's jobs that are not under a bound can use of so many GPUs.

    Args:
        bound: The bound.
        groups: The jobs, those together that are under the same bounds.
        most: The most GPUs that count.
    """
    found, left = 0, dict[str, int]()
    for members in groups:
        if found >= most:
            break
        bounds = members[0].bounds
        if any(one.name == bound.name for one in bounds):
            continue
        free = min([most - found, *(left.get(one.name, one.gpus) for one in bounds)])
        gpus = 0
        for member in members:
            gpus += member.within(free - gpus)
            if gpus >= free:
                break
        left.update((one.name, left.get(one.name, one.gpus) - gpus) for one in bounds)
        found += gpus
    return found


def _shares_of(
    bound: Bound,
    held: Mapping[str, int],
    projects: Projects,
    claimed: Mapping[str, int],
    shares: Mapping[str, int],
    besides: Mapping[str, int],
) -> dict[str, int]:
    """Returns the own fair shares of a bound, and of what is held, of the projects that ask."""
    names = {above.name for name in claimed for above in projects.path(name)}
    asked, apart = {}, dict.fromkeys(names, 0)
    for name, gpus in claimed.items():
        asked[name] = held[name] + (bound.besides(name).taken(gpus) if bound.above else gpus)
    for name, gpus in besides.items():
        more = gpus + max(0, claimed[name] + held[name] - asked[name]) if name in claimed else gpus
        for above in projects.path(name):
            if above.name in names:
                apart[above.name] += more
    claims = [
        replace(claim, guaranteed=max(0, min(claim.guaranteed or 0, shares[claim.name]) - apart[claim.name]))
        for claim in projects.claims(asked, held)
        if claim.name in names
    ]
    found = fair_share(bound.gpus + sum(held.values()), claims)
    return {name: own_share(projects, found, name) for name in claimed}


def demands_of(rigid: Mapping[str, int], members: Sequence[Member], portions: Portions) -> dict[str, int]:
    """Returns what each project's own jobs and pods ask for, as far as the bounds of its jobs let them have it.

    Args:
        rigid: What pods that are not elastic hold, by project.
        members: The jobs, in the order in which they are served.
        portions: What each project counts on of the bounds.
    """
    demands: dict[str, int] = dict(rigid)
    left = dict(portions)
    for member in members:
        name = member.project.name
        most = min([member.asked, *(left[bound.name, name] for bound in member.bounds)])
        asked = member.within(most)
        demands[name] = demands.get(name, 0) + asked
        for bound in member.bounds:
            left[bound.name, name] -= asked
    return demands


def demands_without_movable(world: World, projects: Projects, members: Sequence[Member]) -> dict[str, int]:
    """Returns what each project's own jobs and pods ask for, wherever jobs hold GPUs now that can use other machines.

    So what a job holds changes no fair share: else a job could get GPUs, and lose them in the next round for the fair
    shares have changed with it, and get them again.
    """
    world, members = without_movable(world, projects, members)
    guaranteed = {project.name: project.guaranteed for project in projects.projects}
    return demands_of(world.rigid, members, portions_of(world.bounds, world.rigid, projects, members, guaranteed))


def own_share(projects: Projects, shares: Mapping[str, int], name: str) -> int:
    """Returns a project's share without those of the projects below it."""
    return shares[name] - sum(shares.get(child, 0) for child in projects.children(name))
