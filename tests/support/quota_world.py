"""A small cluster whose jobs follow the hints of the quota controller, late or not at all, with a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import Decision, Grant, decide
from elastic_launcher.quota.rounds.world import Bound, World

ROUND_SECONDS = 30.0
NAMESPACES = ("ml", "research", "batch")


@dataclass
class SimulatedJob:
    """A job as it really is, and its last report.

    Attributes:
        report: What the controller sees of it.
        held: What it holds now.
        follows: The number that it follows now.
        generation: The hints that it read last.
        deaf: Whether it ignores hints.
        delivers: Whether its reports arrive.
    """

    report: Job
    held: int = 0
    follows: int | None = None
    generation: int | None = None
    deaf: bool = False
    delivers: bool = True
    began: float | None = None


@dataclass
class Cluster:
    """Jobs, pods that are not elastic, and the controller's ledger.

    Attributes:
        projects: The projects document.
        capacity: GPUs.
        bounds: What another enforcer leaves to the jobs of a project or namespace, by the match key and its value.
    """

    projects: Projects
    capacity: int
    now: float = 1000.0
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    rigid: dict[str, int] = field(default_factory=dict)
    bounds: dict[tuple[str, str], int] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    grants: dict[str, Grant] = field(default_factory=dict)
    stale: bool = False
    machines: tuple[int, ...] = ()
    decision: Decision | None = None

    def submit(
        self,
        name: str,
        project: str,
        minimum: int,
        maximum: int,
        step: int = 1,
        priority: int = 0,
        namespace: str = "ml",
    ) -> None:
        """Starts a job that waits for its first hint."""
        sizes = tuple(range(minimum, maximum + 1, step))
        match = {"project": project, "namespace": namespace, "id": name}
        report = Job(
            id=name, match=match, minimum=minimum, maximum=sizes[-1], sizes=sizes,
            priority=priority, submitted_at=self.now, held=0, following=None, following_generation=None, waits=86400.0,
            speeds={}, steps_left=None, start_seconds=None, changes=0, service=0.0, training_since=None, finished=False,
            reported_at=self.now,
        )  # fmt: skip
        self.jobs[name] = SimulatedJob(report)

    def free(self) -> int:
        """Returns the GPUs that nobody holds."""
        return self.capacity - sum(job.held for job in self.jobs.values()) - sum(self.rigid.values())

    def promised(self) -> int:
        """Returns what jobs hold or may still take, with the pods that are not elastic."""
        return sum(account.committed for account in self.ledger.accounts.values()) + sum(self.rigid.values())

    def world(self) -> World:
        """Returns what the controller sees."""
        reports = tuple(job.report for job in self.jobs.values())
        bounds = tuple(
            Bound(f"{key} {value}", frozenset(job.id for job in reports if job.match[key] == value), gpus)
            for (key, value), gpus in self.bounds.items()
        )
        return World(self.capacity, reports, dict(self.rigid), stale=self.stale, bounds=bounds, machines=self.machines)

    def round(self) -> Decision:
        """Lets the controller decide, and publishes the hints."""
        self.decision = decide(self.world(), self.projects, self.ledger, self.now)
        self.ledger = self.decision.ledger
        self.grants = {grant.job: grant for grant in self.decision.grants}
        return self.decision

    def follow(self, names: Callable[[str], bool] = lambda _: True) -> None:
        """Lets jobs do what their newest hint says; a job that grows never takes more than is free."""
        for name, job in self.jobs.items():
            grant = self.grants.get(name)
            if grant is None or job.deaf or not names(name):
                continue
            job.follows, job.generation = grant.allowed, self.ledger.generation
            job.held = min(job.held, grant.allowed) if grant.allowed <= job.held else grant.allowed
            job.began = None if not job.held else self.now if job.began is None else job.began
        self.deliver(names)

    def deliver(self, names: Callable[[str], bool] = lambda _: True) -> None:
        """Lets reports arrive."""
        for name, job in self.jobs.items():
            if job.delivers and names(name):
                job.report = replace(
                    job.report, held=job.held, following=job.follows, following_generation=job.generation,
                    training_since=job.began, reported_at=self.now,
                )  # fmt: skip

    def wait(self, seconds: float) -> None:
        """Lets time pass, with a round every 30 s that all jobs follow."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + ROUND_SECONDS)
            self.round()
            self.follow()

    def settle(self, seconds: float = 600.0) -> None:
        """Lets time pass until nothing changes any more."""
        for job in self.jobs.values():
            job.delivers = True
        self.wait(seconds)


def random_event(cluster: Cluster, random: Random) -> str:
    """Lets something happen, and returns its name."""
    names = sorted(cluster.jobs)
    projects = [project.name for project in cluster.projects.projects]
    kind = random.choice(
        (
            "submit",
            "submit",
            "end",
            "rigid",
            "free",
            "lose",
            "deaf",
            "machine",
            "tick",
            "tick",
            "stale",
            "bound",
            "unbound",
        )
    )
    if kind == "submit":
        minimum = random.choice((1, 1, 2, 4))
        step = random.choice((1, 1, minimum))
        name = f"job-{len(cluster.ledger.accounts)}-{cluster.now:g}-{len(names)}"
        maximum = minimum + step * random.randrange(6)
        cluster.submit(
            name, random.choice(projects), minimum, maximum, step, random.choice((0, 0, 5)), random.choice(NAMESPACES)
        )
    elif kind == "end" and names:
        del cluster.jobs[random.choice(names)]
    elif kind == "rigid" and cluster.capacity > cluster.promised():
        name = random.choice(projects)
        cluster.rigid[name] = cluster.rigid.get(name, 0) + random.randint(1, cluster.capacity - cluster.promised())
    elif kind == "free" and cluster.rigid:
        del cluster.rigid[random.choice(sorted(cluster.rigid))]
    elif kind == "lose" and names:
        job = cluster.jobs[random.choice(names)]
        job.delivers = not job.delivers
    elif kind == "deaf" and names:
        job = cluster.jobs[random.choice(names)]
        job.deaf = not job.deaf
    elif kind == "machine":
        cluster.capacity = max(0, cluster.capacity + random.choice((-4, 4)))
    elif kind == "stale":
        cluster.stale = not cluster.stale
    elif kind == "bound":
        whose = random.choice([("namespace", random.choice(NAMESPACES)), ("project", random.choice(projects))])
        cluster.bounds[whose] = random.randrange(10)
    elif kind == "unbound" and cluster.bounds:
        del cluster.bounds[random.choice(sorted(cluster.bounds))]
    cluster.now += random.choice((1.0, 10.0, 30.0, 90.0))
    return kind
