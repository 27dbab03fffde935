"""Policies of a simulation: GPUs where they are worth most, and the numbers of GPUs that jobs asked for."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_launcher.quota.allocation.allocate import allocate
from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.allocation.speeds import MeasuredSpeeds
from elastic_launcher.quota.allocation.worth import Candidate, Settings
from elastic_launcher.quota.simulation.simulate import Seen, State


class Elastic:
    """Gives GPUs where they are worth most, by the speeds that jobs measured, or by goodput where their batch adapts.

    Args:
        settings: How jobs are weighed, and what a change costs.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._speeds: dict[str, tuple[Mapping[tuple[int, int], float], MeasuredSpeeds]] = {}

    def __call__(self, state: State) -> dict[str, dict[str, int]]:
        """Returns the placements of a round."""
        machine_gpus = max(state.machines.values())
        candidates = [self._candidate(seen, machine_gpus) for seen in state.jobs]
        held = {seen.job.name: seen.held for seen in state.jobs}
        return allocate(candidates, state.machines, held, settings=self._settings)

    def _candidate(self, seen: Seen, machine_gpus: int) -> Candidate:
        job = seen.job
        speeds = self._measured(seen, machine_gpus) if seen.model is None else seen.model.speeds(machine_gpus)
        return Candidate(
            name=job.name,
            limit=job.limit,
            request=job.request,
            profiled=max((gpus for _, gpus in seen.measured), default=0),
            age=seen.age,
            changes=seen.changes,
            service=seen.service,
            delay=job.delay,
            work=seen.steps_left / speeds.one_gpu if seen.measured else None,
            submitted=job.submitted,
            speeds=speeds,
            minimum=job.minimum,
        )

    def _measured(self, seen: Seen, machine_gpus: int) -> MeasuredSpeeds:
        known = self._speeds.get(seen.job.name)
        if known is None or known[0] != seen.measured:
            known = self._speeds[seen.job.name] = (seen.measured, MeasuredSpeeds(seen.measured, machine_gpus))
        return known[1]


class Rigid:
    """Gives each job the GPUs that it asked for, or none: two queues by service received, as in Tiresias (Gu, 2019).

    A job goes from the first queue to the end of the second one when it has received some service. Jobs start in the
    order of the queues; one that does not fit does not keep others from starting.

    Args:
        threshold: That service, in GPU-seconds.
    """

    def __init__(self, threshold: float = 16 * 3600.0) -> None:
        self._threshold = threshold
        self._demoted: dict[str, float] = {}

    def __call__(self, state: State) -> dict[str, dict[str, int]]:
        """Returns the placements of a round."""
        for seen in state.jobs:
            if seen.service >= self._threshold:
                self._demoted.setdefault(seen.job.name, state.now)
        free, left = dict(state.machines), sum(state.machines.values())
        chosen = []
        for seen in sorted(state.jobs, key=lambda one: (self._demoted.get(one.job.name, -1.0), one.job.submitted)):
            if seen.job.request <= left:
                left -= seen.job.request
                chosen.append(seen)
        found = {one.job.name: dict(one.held) for one in chosen if sum(one.held.values()) == one.job.request}
        for placement in found.values():
            _take(free, placement)
        for seen in chosen:
            if seen.job.name not in found:
                found[seen.job.name] = _emptiest_first(free, seen.job.request)
                _take(free, found[seen.job.name])
        return found


def _take(free: dict[str, int], placement: Placement) -> None:
    for machine, gpus in placement.items():
        free[machine] -= gpus


def _emptiest_first(free: Mapping[str, int], gpus: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for machine in sorted(free, key=lambda one: (-free[one], one)):
        if gpus and free[machine]:
            found[machine] = min(free[machine], gpus)
            gpus -= found[machine]
    return found
