"""Divides GPUs among jobs where they are worth most, and chooses the machines.

A division assumes that each job is on the fewest machines. Where the places show that it can't be, the division is
repeated with what the place is worth.

Invariants: those of the division and of the places; while GPUs are free that a job can run on, no job that was to have
some is without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from elastic_launcher.quota.allocation.division import NOISE, Division
from elastic_launcher.quota.allocation.places import Machines, Placement, Wish
from elastic_launcher.quota.allocation.worth import LESS, Candidate, Options, Settings, after, stopping

_TRIES = 20  # divisions until each job has a place that is worth what was assumed
_BUDGET = 60  # divisions until the next round would change nothing

_DEFAULT = Settings()


def allocate(
    candidates: Sequence[Candidate],
    machines: Mapping[str, int],
    held: Mapping[str, Placement],
    *,
    total: int | None = None,
    floors: Mapping[str, int] | None = None,
    settings: Settings = _DEFAULT,
) -> dict[str, dict[str, int]]:
    """Returns the GPUs of each job by machine; jobs that get none are left out.

    Args:
        candidates: The jobs.
        machines: GPUs of each machine that these jobs may hold.
        held: GPUs that jobs hold, by machine.
        total: GPUs that these jobs may hold, where those are fewer than the machines have.
        floors: GPUs that jobs get at least, as far as there is a place for them.
        settings: The prices.

    Raises:
        ValueError: If the floors need more GPUs than there are.
    """
    there = sum(machines.values()) if total is None else min(total, sum(machines.values()))
    division = Division(candidates, there, floors or {}, settings)
    present = {job.name: _left(job, held.get(job.name, {}), machines) for job in division.jobs}
    possible = division.is_possible(_counts(present)) and _fit(present, machines)
    spent = 0
    while spent < _BUDGET:
        found, tries = _round(division, machines, present)
        spent += tries
        if found != present and possible and _gain(division, present, found) <= NOISE:
            found, tries = _round(division.keeping(_counts(present)), machines, present)
            spent += tries
            if _gain(division, present, found) <= NOISE:
                break
        if found == present:
            break
        present, possible = found, True
    return {name: placement for name, placement in present.items() if placement}


def _round(
    division: Division, machines: Mapping[str, int], held: Mapping[str, dict[str, int]]
) -> tuple[dict[str, dict[str, int]], int]:
    """Divides and places until each job has a place that is worth what was assumed; returns also how often."""
    present = _counts(held)
    choices, counts = division.begin(present, {job.name: _speed(job, held[job.name]) for job in division.jobs})
    first: set[str] = set()
    for tries in range(1, _TRIES + 1):
        wishes = [
            Wish(job, gpus, held[job.name], present[job.name], _stays(choices[job.name], gpus), job.name in first)
            for job in division.jobs
            if (gpus := counts[job.name])
        ]
        places = Machines(machines, division.settings.in_process)
        missing = places.place(wishes)
        learned = [_learn_missing(wish, choices[wish.candidate.name], first) for wish in missing]
        for job in division.jobs:
            placement = places.placements.get(job.name)
            if placement and placement != held[job.name]:
                worth = value(job, held[job.name], placement, division.settings)
                learned.append(_learn_worth(choices[job.name], counts[job.name], worth))
        if tries == _TRIES or not any(learned):
            break
        counts = division.solve(choices)
    places.squeeze(missing)
    return {job.name: places.placements.get(job.name, {}) for job in division.jobs}, tries


def _stays(options: Options, gpus: int) -> bool:
    """Returns whether the value of a number of GPUs is that of staying where it is."""
    return gpus == options.held and options.values[gpus] == options.staying


def _learn_missing(wish: Wish, options: Options, first: set[str]) -> bool:
    """Takes away the numbers of GPUs for which there is no place; a job's least one comes before others instead."""
    name, least = wish.candidate.name, min(options.values)
    if wish.gpus == least:
        learned = name not in first
        first.add(name)
        return learned
    options.values = {
        gpus: worth for gpus, worth in options.values.items() if gpus < wish.gpus or gpus in (least, options.held)
    }
    return True


def _learn_worth(options: Options, gpus: int, worth: float) -> bool:
    """Corrects what a number of GPUs is worth, where its place is worth less."""
    if gpus == options.held and options.staying is not None:
        worth = max(worth, options.staying)
    if worth >= options.values[gpus] - LESS:
        return False
    options.values = {**options.values, gpus: worth}
    return True


def value(candidate: Candidate, held: Placement, placement: Placement, settings: Settings) -> float:
    """Returns what a placement is worth to a job.

    Args:
        candidate: The job.
        held: What it holds.
        placement: What it is to hold.
        settings: The prices.
    """
    if not placement:
        return stopping(candidate, _speed(candidate, held), settings) if held else 0.0
    speed = _speed(candidate, placement)
    if placement == held or (not held and candidate.work is None):
        return math.log1p(speed)
    kept = {machine: min(held[machine], gpus) for machine, gpus in placement.items() if machine in held}
    going_on = _speed(candidate, kept) if settings.in_process else 0.0
    return math.log1p(after(candidate, np.array(speed), going_on, settings).item())


def _gain(division: Division, held: Mapping[str, Placement], found: Mapping[str, Placement]) -> float:
    """Returns what placements are worth more than that nothing changes."""
    gain = 0.0
    for job in division.jobs:
        one, other = held[job.name], found[job.name]
        if one != other:
            change = value(job, one, other, division.settings) - value(job, one, one, division.settings)
            gain += division.weights[job.name] * change
    return gain


def _speed(candidate: Candidate, placement: Placement) -> float:
    """Returns the speed of a job on a placement, over one GPU."""
    return candidate.speeds.at(len(placement), sum(placement.values())) if placement else 0.0


def _counts(placements: Mapping[str, Placement]) -> dict[str, int]:
    return {name: sum(placement.values()) for name, placement in placements.items()}


def _left(job: Candidate, placement: Placement, machines: Mapping[str, int]) -> dict[str, int]:
    """Returns what is left of a placement, in whole nodes on the machines that there are."""
    left = {machine: min(gpus, machines.get(machine, 0)) // job.node_gpus for machine, gpus in placement.items()}
    return {machine: nodes * job.node_gpus for machine, nodes in left.items() if nodes}


def _fit(placements: Mapping[str, Placement], machines: Mapping[str, int]) -> bool:
    """Returns whether placements leave no machine with more GPUs than it has."""
    left = dict(machines)
    for placement in placements.values():
        for machine, gpus in placement.items():
            left[machine] -= gpus
    return all(gpus >= 0 for gpus in left.values())
