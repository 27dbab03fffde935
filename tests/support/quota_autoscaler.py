"""A small cluster whose autoscaler adds machines while pods wait, and takes away those that are empty."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_launcher.quota.projects import Autoscale, Capacity, Projects
from elastic_launcher.quota.rounds.round import Decision
from tests.support.quota_world import ROUND_SECONDS, Cluster

MACHINE = 4


@dataclass
class AutoscaledCluster(Cluster):
    """Machines of 4 GPUs each, which come and go.

    Attributes:
        offered: Machines that the cloud has.
        scaling: What a second GPU and each further one costs a job of its speed, by the job's id; 0 for nothing.
        idle: Rounds for which a whole machine was empty.
    """

    offered: int = 100
    idle: int = 0

    def __post_init__(self) -> None:
        self.scaling: dict[str, float] = {}
        self.keep(self.capacity // MACHINE)

    def keep(self, count: int) -> None:
        """Sets the number of machines."""
        self.machines = (MACHINE,) * count
        self.capacity = MACHINE * count

    def held(self) -> int:
        """Returns the GPUs that jobs and other pods hold or wait for."""
        return sum(job.held for job in self.jobs.values()) + sum(self.rigid.values())

    def provide(self) -> None:
        """Adds the machines that pods wait for, or takes one away that has been empty for two rounds."""
        wanted, count = self.held(), len(self.machines)
        if wanted > self.capacity:
            self.keep(max(count, min(self.offered, -(-wanted // MACHINE))))
        self.idle = self.idle + 1 if self.capacity - wanted >= MACHINE else 0
        if self.idle > 2:
            self.keep(count - 1)

    def measure(self) -> None:
        """Lets the jobs measure how fast they are on what they hold."""
        for name, job in self.jobs.items():
            if job.held:
                speed = job.held / (1 + self.scaling.get(name, 0.0) * (job.held - 1))
                job.report = replace(job.report, speeds={**job.report.speeds, job.held: speed})

    def wait(self, seconds: float) -> None:
        """Lets time pass, with a round every 30 s that all jobs and the autoscaler follow."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + ROUND_SECONDS)
            self.round()
            self.follow()
            self.measure()
            self.provide()

    def round(self) -> Decision:
        """Lets the controller decide within its rule."""
        before, rule = self.promised(), self.rule
        decision = super().round()
        assert decision.capacity <= max(self.capacity, rule.max)
        assert self.stale or decision.capacity >= self.capacity - MACHINE
        assert self.promised() <= max(decision.capacity, before)
        return decision

    @property
    def rule(self) -> Autoscale:
        """The rule of the projects document."""
        assert self.projects.capacity is not None and self.projects.capacity.autoscale is not None
        return self.projects.capacity.autoscale


def autoscaled(projects: Projects, rule: Autoscale) -> Projects:
    """Returns projects in a cluster whose machines come and go."""
    return replace(projects, capacity=Capacity(autoscale=rule))
