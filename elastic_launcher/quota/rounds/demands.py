"""Sums up what each project asks for, as far as the bounds of other enforcers let it have that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.members import Member
from elastic_launcher.quota.rounds.world import Bound, World

Portions = Mapping[tuple[str, str], int]
"""What each project counts on of a bound, by the names of the bound and of the project."""


def portions_of(world: World, projects: Projects, members: Sequence[Member]) -> Portions:
    """Returns the part of each bound that each project counts on: its fair share where several have jobs under it.

    Pods that are not elastic are part of what their project is guaranteed.
    """
    asked: dict[str, dict[str, int]] = {}
    for member in members:
        for bound in member.bounds:
            of_bound = asked.setdefault(bound.name, {})
            of_bound[member.project.name] = of_bound.get(member.project.name, 0) + member.asked
    portions = {}
    for bound in world.bounds:
        claimed = asked.get(bound.name, {})
        held = {name: world.rigid.get(name, 0) for name in claimed}
        shares = _shares_of(bound, held, projects, claimed) if len(claimed) > 1 else {}
        for name in claimed:
            own = max(0, own_share(projects, shares, name) - held[name]) if shares else bound.gpus
            portions[bound.name, name] = bound.besides(name).most(own) if bound.above else own
    return portions


def _shares_of(
    bound: Bound, held: Mapping[str, int], projects: Projects, claimed: Mapping[str, int]
) -> Mapping[str, int]:
    """Returns the fair shares of a bound and of what is held, of the projects that ask and of those above them."""
    names = {above.name for name in claimed for above in projects.path(name)}
    asked, besides = {}, dict.fromkeys(names, 0)
    for name, gpus in claimed.items():
        taken = bound.besides(name).taken(gpus) if bound.above else gpus
        asked[name] = taken + held[name]
        for above in projects.path(name):
            besides[above.name] += gpus - taken
    claims = [
        claim if claim.guaranteed is None else replace(claim, guaranteed=max(0, claim.guaranteed - besides[claim.name]))
        for claim in projects.claims(asked, held)
        if claim.name in names
    ]
    shares = fair_share(bound.gpus + sum(held.values()), claims)
    return {**dict.fromkeys((project.name for project in projects.projects), 0), **shares}


def demands_of(rigid: Mapping[str, int], members: Sequence[Member], portions: Portions) -> dict[str, int]:
    """Returns what each project's own jobs and pods ask for, as far as the bounds of its jobs let them have it.

    Args:
        rigid: What pods that are not elastic hold, by project.
        members: The jobs, in the order in which they are served.
        portions: What each project counts on of the bounds.
    """
    left = dict(portions)
    gpus: dict[str, int] = {}
    for grows in (False, True):  # as GPUs are handed out: jobs get their minimum before others get more
        for member in members:
            has = gpus.get(member.job.id, 0)
            if grows and not has:
                continue
            name = member.project.name
            most = min([member.asked, *(has + left[bound.name, name] for bound in member.bounds)])
            if not grows and member.fixed is None:
                most = min(most, min(member.sizes, default=0))
            gpus[member.job.id] = asked = member.within(most)
            for bound in member.bounds:
                left[bound.name, name] -= asked - has
    demands: dict[str, int] = dict(rigid)
    for member in members:
        demands[member.project.name] = demands.get(member.project.name, 0) + gpus[member.job.id]
    return demands


def within_guarantees(projects: Projects, shares: Mapping[str, int], demands: Mapping[str, int]) -> dict[str, int]:
    """Returns what each project has of its demand within its guarantee, at most its own share."""
    return {
        name: min(asked, own_share(projects, shares, name), projects.named(name).guaranteed)
        for name, asked in demands.items()
    }


def own_share(projects: Projects, shares: Mapping[str, int], name: str) -> int:
    """Returns a project's share without those of the projects below it."""
    return shares[name] - sum(shares[child] for child in projects.children(name))
