"""Decides with how many GPUs a round plans where a cluster autoscaler adds and removes machines.

The utility of a capacity is the speed of all jobs together, each over its speed on one GPU, divided by the GPUs; a GPU
of a pod that is not elastic counts as 1. It stays within a band, as with AdaptDL's autoscaler: above the band the round
plans with GPUs that are not there yet, as many as leave the utility at the band's top; below it, one machine is to be
emptied, and the next one once that is gone. Within the band the plan stays as it is.

Invariants: a plan is at most the larger of what is there and ``max``; it is at least what is guaranteed and asked for,
together with the minimum of each job, as far as ``max`` and machines that come allow; it is lower than what is there by
one machine at most. With nothing changing, a second plan is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from elastic_launcher.quota.allocation.candidates import candidate
from elastic_launcher.quota.allocation.worth import thinned
from elastic_launcher.quota.fair_share import fair_share
from elastic_launcher.quota.projects import Autoscale, Projects
from elastic_launcher.quota.rounds.expectations import expected
from elastic_launcher.quota.rounds.ledger import Ledger, Plan
from elastic_launcher.quota.rounds.members import Member
from elastic_launcher.quota.rounds.room import Room
from elastic_launcher.quota.rounds.world import World

ARRIVAL_SECONDS = 600.0
"""For so long a plan waits for GPUs that are not there; machines with GPUs start in 2 to 8 minutes."""
PAUSE_SECONDS = 1800.0
"""After a vain wait, for so long a plan has no GPUs but those that are there, unless one comes."""


class SpeedCurve:
    """The speed of all jobs together by the number of GPUs: minimums first, then where a GPU adds most.

    Args:
        steps: GPUs and speed that each step adds.
        least: GPUs that are planned for whatever the utility is.
    """

    def __init__(self, steps: Iterable[tuple[int, float]], least: int) -> None:
        found = np.array([(0.0, 0.0), *steps])
        self._gpus, self._speeds = found.cumsum(axis=0).T
        self.least = least

    @property
    def most(self) -> int:
        """GPUs beyond which no job can use more."""
        return int(self._gpus[-1])

    def utility(self, gpus: int) -> float:
        """Returns the speed by GPUs; 0 without any."""
        return float(self._utilities(np.array([gpus]))[0]) if gpus else 0.0

    def last_at(self, utility: float, first: int, last: int) -> int:
        """Returns how far a capacity can rise, from one number of GPUs to another, without falling below a utility."""
        counts = np.arange(first + 1, last + 1)
        low = np.flatnonzero(self._utilities(counts) < utility)
        return first + (int(low[0]) if len(low) else len(counts))

    def _utilities(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        speeds: NDArray[np.float64] = np.interp(counts, self._gpus, self._speeds)
        return speeds / counts


def speed_curve_of(
    world: World, projects: Projects, members: Sequence[Member], rule: Autoscale, now: float
) -> SpeedCurve:
    """Returns how fast the jobs would be.

    Args:
        world: What is there.
        projects: The projects document.
        members: The jobs, in the order in which they are served.
        rule: What the projects document says.
        now: Seconds since the epoch.
    """
    most = max(world.capacity, rule.max)
    room = Room(projects, most)
    for name, gpus in world.rigid.items():
        room.take(name, gpus)
    rigid = sum(world.rigid.values())
    steps, more = [(rigid, float(rigid))] if rigid else [], []
    for member in members:
        sizes = member.sizes if member.fixed is None else (member.fixed,) * (member.fixed > 0)
        if not sizes or sizes[0] > _within(room, member):
            continue
        room.take(member.project.name, sizes[0], member.bounds)
        sizes = thinned(sizes)
        speeds = _speeds(member, np.array(sizes), rule, now)
        steps.append((sizes[0], float(speeds[0])))
        more += [(gain, gpus, member) for gpus, gain in _gains(sizes, speeds)]
    minimums = sum(gpus for gpus, _ in steps)
    for gain, gpus, member in sorted(more, key=lambda one: -one[0]):
        gpus = min(gpus, _within(room, member))
        if gpus > 0:
            room.take(member.project.name, gpus, member.bounds)
            steps.append((gpus, gain * gpus))
    demands, _ = expected(replace(world, capacity=most), projects, members)
    claims = projects.claims(demands, world.rigid)
    shares = fair_share(most, [replace(claim, weight=0.0) for claim in claims])  # what is guaranteed, and no more
    guaranteed = sum(shares[claim.name] for claim in claims if claim.parent is None)
    return SpeedCurve(steps, min(most, max(minimums, guaranteed)))


def _speeds(member: Member, sizes: NDArray[np.int64], rule: Autoscale, now: float) -> NDArray[np.float64]:
    """Returns the speeds of a job; beyond its minimum, one that has measured none yet is amid the band."""
    if not (member.job.speeds or member.job.goodput):
        unknown: NDArray[np.float64] = sizes[0] + (rule.low + rule.high) / 2 * (sizes - sizes[0])
        return unknown
    return candidate(member.job, tuple(sizes.tolist()), now).speeds.curve(sizes)


def _within(room: Room, member: Member) -> int:
    """Returns how many more GPUs a job may have, with all that its project may have over quota."""
    project = member.project
    within = room.within(project.name, member.bounds)
    return within if project.weight else min(within, project.guaranteed - room.own(project.name))


def _gains(sizes: Sequence[int], speeds: NDArray[np.float64]) -> list[tuple[int, float]]:
    """Returns how many GPUs a job can have beyond its minimum, and what each adds, those first that add most."""
    corners = [0]
    while corners[-1] < len(sizes) - 1:
        here = corners[-1]
        slopes = (speeds[here + 1 :] - speeds[here]) / (np.array(sizes[here + 1 :]) - sizes[here])
        corners.append(here + 1 + int(slopes.argmax()))
    return [
        (sizes[after] - sizes[before], float(speeds[after] - speeds[before]) / (sizes[after] - sizes[before]))
        for before, after in zip(corners, corners[1:], strict=False)
    ]


def plan_of(world: World, projects: Projects, members: Sequence[Member], ledger: Ledger, now: float) -> Plan | None:
    """Returns with how many GPUs a round plans; None where the projects document has no ``autoscale``."""
    rule = projects.capacity.autoscale if projects.capacity is not None else None
    if rule is None:
        return None
    promised = sum(world.rigid.values())
    for name, one in ledger.accounts.items():
        promised += one.committed - (0 if name in world.fixed else one.stuck)  # what is stuck is among the rigid
    curve = speed_curve_of(world, projects, members, rule, now)
    return plan_capacity(world, promised, curve, rule, ledger.plan, now)


def plan_capacity(
    world: World, promised: int, curve: SpeedCurve, rule: Autoscale, before: Plan | None, now: float
) -> Plan:
    """Returns with how many GPUs a round plans.

    Args:
        world: What is there.
        promised: GPUs that jobs and other pods hold or may take; pods wait for those above what is there.
        curve: How fast the jobs would be.
        rule: What the projects document says.
        before: The last plan, or None.
        now: Seconds since the epoch.
    """
    there = world.capacity
    if before is None:
        before = Plan(there, there)
    elif world.stale:
        return replace(before, gpus=min(before.gpus, max(there, rule.max)))
    came = there > before.there
    pauses = None if came or before.pauses_until is None or now >= before.pauses_until else before.pauses_until
    gpus = _planned(world, curve, rule, before, there if pauses else max(there, rule.max))
    waits = None
    if min(gpus, promised) > there:
        waits = now if came or before.waits_since is None else before.waits_since
        if now - waits >= ARRIVAL_SECONDS:
            waits, pauses = None, now + PAUSE_SECONDS
            gpus = _planned(world, curve, rule, before, there)
    return Plan(gpus, there, waits, pauses)


def _planned(world: World, curve: SpeedCurve, rule: Autoscale, before: Plan, most: int) -> int:
    """Returns how many GPUs to plan with: as many as before while that is within the band and its bounds."""
    there = world.capacity
    most = max(there, min(most, curve.most))
    least = min(curve.least, most)
    gpus = min(before.gpus, most)
    empties = there == before.there and there - gpus in world.machines
    if gpus < least or (gpus < there and not empties):
        gpus = max(there, least)
    if gpus > max(there, least) and curve.utility(gpus) < rule.low:
        gpus = max(there, least)
    if curve.utility(gpus) > rule.high:
        return curve.last_at(rule.high, max(gpus, there), most)
    machine = min(world.machines, default=0)
    if gpus == there and machine and curve.utility(there) < rule.low:
        if there - machine >= least and curve.utility(there - machine) <= rule.high:
            return there - machine
    return gpus
