"""A discrete-event simulation of jobs that share machines: who trains when, under any policy.

The clock is the simulation's own. A policy is a function from what a controller can see to the placements of the jobs.

Invariants: no policy gives away more GPUs than there are; the same jobs, machines and policy give the same results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.allocation.worth import Speeds
from elastic_launcher.quota.simulation.physics import Physics, Ranks, Spread, without
from elastic_launcher.quota.simulation.results import Outcome, Results

_PATIENCE = 100  # rounds while no job trains and nothing else is going to happen


class Course(Protocol):
    """What a job has to do, and how fast it is in truth."""

    @property
    def steps(self) -> float:
        """Optimizer steps of the whole training."""

    def rate(self, spread: Spread) -> float:
        """Returns the steps per second on GPUs that are spread over machines; their mean, where that changes."""

    def begin(self) -> Training:
        """Returns a training that has done nothing yet."""


class Model(Protocol):
    """What a job that chooses its batch by itself knows of its goodput."""

    def speeds(self, machine_gpus: int) -> RatedSpeeds:
        """Returns its speeds by that, on machines of so many GPUs."""


class RatedSpeeds(Speeds, Protocol):
    """Speeds over that on one GPU, which is known too."""

    @property
    def one_gpu(self) -> float:
        """Steps per second on one GPU."""


class Training(Protocol):
    """A course under way."""

    @property
    def steps_left(self) -> float:
        """Steps that it has still to do."""

    @property
    def model(self) -> Model | None:
        """What the job knows of its goodput; None if its batch stays the same, or before its first step."""

    def train(self, spread: Spread, seconds: float) -> float:
        """Trains for some seconds on GPUs that are spread over machines; returns the last steps per second."""

    def seconds_left(self, spread: Spread) -> float:
        """Returns how long it has still to train, all of that on the same GPUs."""

    def copy(self) -> Training:
        """Returns one that has come as far."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trace.

    Attributes:
        name: Its unique name.
        submitted: Seconds from the begin of the trace.
        course: What it has to do.
        request: GPUs that its owner asked for.
        limit: The most GPUs that it can use.
        minimum: The fewest GPUs that it runs on.
        delay: Seconds until new ranks train.
        project: Its project.
        priority: Its priority within the project.
    """

    name: str
    submitted: float
    course: Course
    request: int
    limit: int
    minimum: int = 1
    delay: float = 30.0
    project: str = "default"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as a controller sees it.

    Attributes:
        job: The job; its course is not to be looked at.
        held: GPUs that it holds, by machine.
        age: Seconds since it was submitted.
        changes: Changes of its GPUs so far, the first start excepted.
        service: GPU-seconds that it has held.
        steps_left: Steps that it has still to do.
        measured: Steps per second as it measured them, by machines and GPUs.
        model: What it knows of its goodput, if it chooses its batch by itself and has begun.
    """

    job: Job
    held: Placement
    age: float
    changes: int
    service: float
    steps_left: float
    measured: Mapping[tuple[int, int], float]
    model: Model | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What a controller sees.

    Attributes:
        now: Seconds from the begin of the trace.
        machines: GPUs of each machine.
        jobs: The jobs that are submitted and not yet complete, in order of submission.
    """

    now: float
    machines: Mapping[str, int]
    jobs: tuple[Seen, ...]


Policy = Callable[[State], Mapping[str, Placement]]


@dataclass(slots=True)
class _Run:
    """A job under way, as it is ``at`` a time."""

    job: Job
    at: float
    training: Training
    held: dict[str, int] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)
    changes: int = 0
    stopped: int = 0
    service: float = 0.0
    started: float = math.inf
    completion: float = math.inf  # if nothing changes
    measured: dict[tuple[int, int], float] = field(default_factory=dict)

    def advance(self, time: float) -> None:
        """Trains until a time."""
        for begin, end, spread in self.ranks.between(self.at, time):
            if spread:
                self.measured[len(spread), sum(spread)] = self.training.train(spread, end - begin)
        self.service += sum(self.held.values()) * (time - self.at)
        self.at = time

    def foresee(self) -> None:
        """Computes when it is complete if nothing changes."""
        self.completion = math.inf
        training = self.training.copy()
        for begin, end, spread in self.ranks.between(self.at, math.inf):
            if not spread:
                continue
            if (left := training.seconds_left(spread)) <= end - begin:
                self.completion = begin + left
                break
            training.train(spread, end - begin)

    def seen(self, now: float) -> Seen:
        """Returns what a controller sees of it."""
        age, training = now - self.job.submitted, self.training
        measured = dict(self.measured)
        return Seen(
            self.job, dict(self.held), age, self.changes, self.service, training.steps_left, measured, training.model
        )


class _Cluster:
    """Jobs and machines at one moment."""

    def __init__(
        self,
        jobs: Sequence[Job],
        machines: Mapping[str, int],
        physics: Physics,
        other_machines: Sequence[tuple[float, Mapping[str, int]]],
    ) -> None:
        self.runs: dict[str, _Run] = {}
        self.completed: list[_Run] = []
        self._machines = dict(machines)
        self._physics = physics
        self._waiting = sorted(jobs, key=lambda job: (job.submitted, job.name), reverse=True)
        self._other_machines = sorted(other_machines, key=lambda one: one[0], reverse=True)

    def next_event(self) -> float:
        """Returns when the next job is submitted or completes, or the machines change."""
        submitted = [job.submitted for job in self._waiting[-1:]]
        changed = [time for time, _ in self._other_machines[-1:]] if self._waiting or self.runs else []
        return min([math.inf, *submitted, *changed, *(run.completion for run in self.runs.values())])

    def advance(self, time: float) -> None:
        """Goes on to a time, over all that happens until then."""
        while (event := self.next_event()) <= time:
            for name, run in list(self.runs.items()):
                if run.completion <= event:
                    run.advance(event)
                    self.completed.append(self.runs.pop(name))
            while self._other_machines and self._other_machines[-1][0] <= event:
                self._replace_machines(event, self._other_machines.pop()[1])
            while self._waiting and self._waiting[-1].submitted <= event:
                job = self._waiting.pop()
                self.runs[job.name] = _Run(job, job.submitted, job.course.begin())
        for run in self.runs.values():
            run.advance(time)

    def _replace_machines(self, now: float, machines: Mapping[str, int]) -> None:
        """Takes from jobs what they hold on machines that are gone."""
        self._machines = dict(machines)
        left = dict(machines)
        placements = {}
        for name, run in self.runs.items():
            run.advance(now)
            kept = {machine: min(gpus, left.get(machine, 0)) for machine, gpus in run.held.items()}
            placements[name] = {machine: gpus for machine, gpus in kept.items() if gpus}
            left = {machine: gpus - kept.get(machine, 0) for machine, gpus in left.items()}
        self.place(now, placements)

    def state(self, now: float) -> State:
        """Returns what a controller sees."""
        return State(now, dict(self._machines), tuple(run.seen(now) for run in self.runs.values()))

    def place(self, now: float, placements: Mapping[str, Placement]) -> None:
        """Gives jobs their GPUs."""
        spare = dict(self._machines)
        for name in self.runs:
            for machine, gpus in placements.get(name, {}).items():
                spare[machine] = spare.get(machine, 0) - gpus
        if over := sorted(machine for machine, gpus in spare.items() if gpus < 0):
            raise ValueError(f"the policy gives away more GPUs than there are on {', '.join(over)}")
        for name, run in self.runs.items():
            placement = {machine: gpus for machine, gpus in placements.get(name, {}).items() if gpus}
            if placement != run.held:
                run.stopped += self._physics.change(run.ranks, now, placement, run.job.delay, spare)
                run.changes += bool(placement) and run.started < math.inf
                run.started = min(run.started, now) if placement else run.started
                run.held = placement
                run.foresee()
            elif without(run.ranks.bridge, spare):
                run.ranks.end_bridge(now)
                run.foresee()
            spare = without(spare, run.ranks.bridge)


def simulate(
    jobs: Sequence[Job],
    machines: Mapping[str, int],
    policy: Policy,
    physics: Physics,
    *,
    interval: float = 60.0,
    settle: float | None = None,
    other_machines: Sequence[tuple[float, Mapping[str, int]]] = (),
) -> Results:
    """Runs jobs to their completion.

    Args:
        jobs: The jobs of a trace; at least one.
        machines: GPUs of each machine.
        policy: Decides who holds what.
        physics: What a change does to a training.
        interval: Seconds between two rounds of the policy.
        settle: Seconds after which another round follows a submission, a completion or a change of machines; None for
            rounds at multiples of the interval alone.
        other_machines: From when the machines are other ones. Jobs lose what they hold on those that are gone.

    Raises:
        RuntimeError: If jobs are left to which the policy gives nothing.
        ValueError: If there are no jobs, or the policy gives away GPUs that are not there.
    """
    if not jobs:
        raise ValueError("there are no jobs to simulate")
    cluster = _Cluster(jobs, machines, physics, other_machines)
    now, rounds, in_vain = 0.0, 0, 0
    while cluster.runs or cluster.next_event() < math.inf:
        now = _next_round(now, cluster.next_event(), bool(cluster.runs), interval, settle)
        cluster.advance(now)
        if not cluster.runs:
            continue
        cluster.place(now, policy(cluster.state(now)))
        rounds += 1
        in_vain = in_vain + 1 if cluster.next_event() == math.inf else 0
        if in_vain == _PATIENCE:
            names = ", ".join(sorted(cluster.runs))
            raise RuntimeError(f"at {now:g} s the policy gives nothing to {names}, and nothing else is going to happen")
    return Results(_outcomes(cluster.completed, machines), rounds)


def _next_round(now: float, event: float, running: bool, interval: float, settle: float | None) -> float:
    """Returns when the policy is asked next; ``event`` is when the next thing happens."""
    if settle is not None:
        return min(now + interval, event + settle) if running else event + settle
    following = math.floor(now / interval) * interval + interval
    return following if running else max(following, math.ceil(event / interval) * interval)


def _outcomes(completed: Sequence[_Run], machines: Mapping[str, int]) -> tuple[Outcome, ...]:
    begins = np.array([run.job.submitted for run in completed])
    ends = np.array([run.at for run in completed])
    outcomes = []
    for run in completed:
        job, seconds = run.job, run.at - run.job.submitted
        overlap = np.maximum(np.minimum(ends, run.at) - np.maximum(begins, job.submitted), 0.0)
        rho = seconds / _alone(job, machines, float(overlap.sum()) / seconds)
        outcomes.append(
            Outcome(job.name, job.submitted, run.started, run.at, run.changes, run.stopped, run.service, rho)
        )
    return tuple(sorted(outcomes, key=lambda one: (one.submitted, one.name)))


def _alone(job: Job, machines: Mapping[str, int], active: float) -> float:
    """Returns the seconds that a job takes on an equal part of the machines, on as many of those as are fastest.

    Args:
        job: The job.
        machines: GPUs of each machine.
        active: How many jobs the machines are parted among; with less than a GPU each, a job has one for a time.
    """
    share = sum(machines.values()) / active
    largest = max(machines.values())
    rates = []
    for gpus in range(job.minimum, max(job.minimum, min(int(share), job.limit)) + 1):
        whole, rest = divmod(gpus, largest)
        rates.append(job.course.rate((*([rest] if rest else []), *[largest] * whole)))
    return job.delay + job.course.steps / (max(rates) * min(share / job.minimum, 1.0))
