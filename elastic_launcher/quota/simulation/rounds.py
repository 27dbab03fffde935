"""The quota controller as the policy of a simulation: whole rounds, with projects, guarantees and a ledger.

Jobs follow their hints at once, so GPUs that one gives up are another one's in the same round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.metrics.figures import own_figures
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import decide
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.simulation.simulate import Seen, State

_ROUNDS = 4  # one that shrinks, one that grows, and what the minimum of a job leaves


class Rounds:
    """Decides as the controller does, and chooses machines as a scheduler would: the fewest.

    Args:
        projects: The projects document.

    Attributes:
        short: Seconds for which each project lacked GPUs of its guarantee that its own jobs could use.
    """

    def __init__(self, projects: Projects) -> None:
        self.short: dict[str, float] = {}
        self._projects = projects
        self._ledger = Ledger()
        self._began: dict[str, float] = {}
        self._lacking: set[str] = set()
        self._at = 0.0

    def __call__(self, state: State) -> dict[str, dict[str, int]]:
        """Returns the placements of a round.

        Raises:
            QuotaError: If a job belongs to two projects.
        """
        for name in self._lacking:
            self.short[name] = self.short.get(name, 0.0) + state.now - self._at
        self._at = state.now
        capacity = sum(state.machines.values())
        held = {seen.job.name: sum(seen.held.values()) for seen in state.jobs}
        for _ in range(_ROUNDS):
            world = World(capacity, tuple(self._report(seen, held[seen.job.name], state) for seen in state.jobs))
            decision = decide(world, self._projects, self._ledger, state.now)
            self._ledger = decision.ledger
            held = {name: account.allowed for name, account in self._ledger.accounts.items()}
            if not decision.changes:
                break
        followed = {name: replace(one, held=one.allowed) for name, one in self._ledger.accounts.items()}
        settled = replace(decision, ledger=replace(self._ledger, accounts=followed))
        self._lacking = {name for name, own in own_figures(world, self._projects, settled).items() if own.lacks}
        self._began = {name: self._began.get(name, state.now) for name, gpus in held.items() if gpus}
        return placed(held, state)

    def _report(self, seen: Seen, held: int, state: State) -> Job:
        """Returns what a job reports that holds so many GPUs and follows its newest hint."""
        job = seen.job
        speeds: dict[int, float] = {}
        for (_, gpus), speed in seen.measured.items():
            speeds[gpus] = max(speed, speeds.get(gpus, 0.0))
        goodput: dict[int, float] = {}
        if seen.model is not None:
            counts = np.arange(job.minimum, job.limit + 1)
            known = seen.model.speeds(max(state.machines.values()))
            goodput = dict(zip(counts.tolist(), (known.one_gpu * known.curve(counts)).tolist(), strict=True))
        account = self._ledger.accounts.get(job.name)
        return Job(
            id=job.name,
            match={"id": job.name, "name": job.name, "project": job.project},
            minimum=job.minimum,
            maximum=job.limit,
            sizes=tuple(range(job.minimum, job.limit + 1)),
            priority=job.priority,
            submitted_at=job.submitted,
            held=held,
            following=None if account is None else account.allowed,
            following_generation=None if account is None else self._ledger.generation,
            waits=0.0,
            speeds=speeds,
            steps_left=round(seen.steps_left),
            start_seconds=job.delay,
            changes=seen.changes,
            service=seen.service,
            training_since=self._began.get(job.name),
            finished=False,
            reported_at=state.now,
            goodput=goodput,
        )


def placed(counts: Mapping[str, int], state: State) -> dict[str, dict[str, int]]:
    """Returns machines for numbers of GPUs: jobs stay where they are, and take the fewest machines for what is new.

    Args:
        counts: GPUs by job, which add up to what the machines have at most.
        state: What there is.
    """
    found = {seen.job.name: _kept(seen.held, counts.get(seen.job.name, 0)) for seen in state.jobs}
    free = dict(state.machines)
    for placement in found.values():
        for machine, gpus in placement.items():
            free[machine] -= gpus
    for name, placement in sorted(found.items(), key=lambda one: (-counts.get(one[0], 0), one[0])):
        while (more := counts.get(name, 0) - sum(placement.values())) > 0:
            machine = min((one for one in free if free[one]), key=lambda one: _order(one, placement, free[one], more))
            gpus = min(more, free[machine])
            placement[machine] = placement.get(machine, 0) + gpus
            free[machine] -= gpus
    return found


def _order(machine: str, placement: Placement, free: int, more: int) -> tuple[bool, bool, int, str]:
    """Sorts machines for further GPUs: those of the job, then the tightest that is enough, then the emptiest."""
    enough = free >= more
    return machine not in placement, not enough, free if enough else -free, machine


def _kept(held: Placement, gpus: int) -> dict[str, int]:
    """Returns what is left of a placement, the GPUs of the machines with the most of them first."""
    kept: dict[str, int] = {}
    for machine in sorted(held, key=lambda one: (-held[one], one)):
        if gpus:
            kept[machine] = min(held[machine], gpus)
            gpus -= kept[machine]
    return kept
