"""What one round of the controller sees: capacity, jobs, pods that are not elastic, and what others enforce."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from elastic_launcher.quota.jobs import Job


def _nothing() -> Mapping[str, int]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Besides:
    """What the jobs of a project have besides machines for nodes above the guarantee.

    When such jobs shrink, nodes above the guarantee leave first; when they grow, those within it come first.

    Attributes:
        project: The project.
        guaranteed: What is guaranteed to it for these jobs.
        within: What their nodes within the guarantee hold.
        above: What those above it hold.
    """

    project: str
    guaranteed: int
    within: int = 0
    above: int = 0

    def taken(self, gpus: int) -> int:
        """Returns what nodes above the guarantee take of so many GPUs."""
        return max(0, min(gpus - self.within, max(self.above, gpus - self.guaranteed)))

    def most(self, taken: int) -> int:
        """Returns the most GPUs of which nodes above the guarantee take no more than that."""
        return taken + (max(self.within, self.guaranteed) if taken >= self.above else self.within)


@dataclass(frozen=True, slots=True)
class Seat:
    """A node of a job, on a machine.

    Attributes:
        job: The job's id.
        node: The node's number.
        gpus: What it holds there.
    """

    job: str
    node: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Shared:
    """A machine of a bound where jobs have nodes that can use other machines too.

    Attributes:
        free: GPUs that it leaves to the jobs of the bound; below 0 where it has fewer than pods hold.
        seats: The nodes of those jobs.
    """

    free: int
    seats: tuple[Seat, ...]

    def gained(self, seats: Set[Seat], per_node: int) -> int:
        """Returns how many GPUs more it leaves without some nodes, where the bound counts multiples."""
        gone = sum(seat.gpus for seat in self.seats if seat in seats)
        return (max(0, self.free + gone) // per_node - max(0, self.free) // per_node) * per_node


@dataclass(frozen=True, slots=True)
class Bound:
    """What some jobs may hold together: by the word of another enforcer, or on the machines that their pods can use.

    It comes on top of the projects' limits; the tighter one holds. A bound of a whole project, or of a part of the tree
    of projects, is one over all of its jobs.

    Attributes:
        name: What enforces it, as reasons name it: "ResourceQuota ml/gpus"; of machines, any name. No other
            bound has it.
        jobs: The ids of the jobs; those that are not reported don't matter.
        gpus: The most GPUs that they may hold together now, 0 or more. What pods that are not elastic take of the
            enforcer's number is taken off already; what the jobs hold themselves is not.
        per_node: Where machines bound the jobs: of how many GPUs their nodes have multiples. 0 for another enforcer.
        taken: GPUs of these machines that all others hold.
        holders: What jobs hold of that which can use other machines too, by their ids, the most first.
        movable: How many more ``gpus`` were without the jobs that hold some of the machines and can use others too.
        above: Those of the jobs of which only nodes above the guarantee count, for the others have machines besides.
        beside: What each project's jobs of these have besides.
        whole: Whether it is as it holds for one of the other jobs.
        now: What of ``gpus`` is there in whole nodes while others keep their smaller nodes; None for all.
        smaller: GPUs of these machines that such nodes hold.
        shared: Those of the machines that have nodes of others which could use other machines.
    """

    name: str
    jobs: frozenset[str]
    gpus: int
    per_node: int = 0
    taken: int = 0
    movable: int = 0
    holders: tuple[tuple[str, int], ...] = field(default=(), hash=False)  # it is long, and bounds are looked up often
    above: frozenset[str] = frozenset()
    beside: tuple[Besides, ...] = ()
    whole: bool = False
    now: int | None = None
    smaller: int = 0
    shared: tuple[Shared, ...] = field(default=(), hash=False)

    def gained(self, seats: Set[Seat]) -> int:
        """Returns how many more ``gpus`` there are once some nodes have left these machines."""
        return sum(machine.gained(seats, self.per_node) for machine in self.shared)

    @property
    def at_once(self) -> Bound:
        """The bound for those that grow now: no smaller node makes room for them."""
        if self.now is None or self.now >= self.gpus:
            return self
        return replace(self, gpus=self.now, taken=self.taken + self.smaller, now=None)

    def of(self, job: str) -> Bound:
        """Returns the bound as it holds for one of its jobs."""
        return replace(self, whole=True) if self.above and job not in self.above else self

    def besides(self, project: str) -> Besides:
        """Returns what jobs of a project have besides."""
        return next((one for one in self.beside if one.project == project), Besides(project, 0))

    def most(self, project: str) -> int:
        """Returns the most that jobs of a project may have, with what they have besides."""
        return self.gpus if self.whole else self.besides(project).most(self.gpus)

    def taken_by(self, jobs: Mapping[str, tuple[str, int]]) -> int:
        """Returns what jobs take of the bound.

        Args:
            jobs: The project and the GPUs of each job, by its id.
        """
        whole = 0
        above: dict[str, int] = {}
        for job in self.jobs & jobs.keys():
            project, gpus = jobs[job]
            if job in self.above:
                above[project] = above.get(project, 0) + gpus
            else:
                whole += gpus
        return whole + sum(self.besides(project).taken(gpus) for project, gpus in above.items())

    def less(self, held: Mapping[str, int], placed: Mapping[str, tuple[int, int]] = MappingProxyType({})) -> Bound:
        """Returns the bound without what some of its jobs hold, by their ids.

        Args:
            held: GPUs by the job's id.
            placed: As of `World`: where only nodes above the guarantee count, they hold no more than is there of these.
        """
        gpus = sum(
            min(held[name], placed[name][1]) if name in self.above and name in placed else held[name]
            for name in self.jobs & held.keys()
        )
        now = None if self.now is None else max(0, self.now - gpus)
        return replace(self, gpus=max(0, self.gpus - gpus), now=now, taken=self.taken + gpus)


def within_of(job: str) -> str:
    """Returns what a job's nodes within the guarantee are called in the bounds of `World.kinds`."""
    return f"{job} within the guarantee"


def above_of(job: str) -> str:
    """Returns what a job's nodes above the guarantee are called in the bounds of `World.kinds`."""
    return f"{job} above the guarantee"


@dataclass(frozen=True, slots=True)
class World:
    """The cluster, or the machine, at one moment. All counts are GPUs.

    Attributes:
        capacity: What projects may hold together; what pods of nobody's project hold is taken off already.
        jobs: The newest report of each job, in any order.
        rigid: What pods that are not elastic hold, by project.
        fixed: What an entry written by hand allows a job, by the job's id; the controller leaves these alone.
        stale: Whether something could not be read: what is known stays, and nothing grows.
        machines: Where machines come and go: the GPUs of each that could be emptied, for only jobs hold GPUs there.
        bounds: What other enforcers leave to some of the jobs. A job may be in several.
        leaving: GPUs that pods of others still have which are not counted any more, for they end. A round plans with
            these, and nobody grows onto them before they are free.
        foreign: What belongs to no project holds; the capacity is without it.
        kinds: What machines leave to the nodes of each kind, where those of a job within the guarantee can use other
            machines than those above it. They are called as `within_of` and `above_of` say.
        placed: What such nodes hold that have a place, within the guarantee and above it, by the job's id.
    """

    capacity: int
    jobs: tuple[Job, ...]
    rigid: Mapping[str, int] = field(default_factory=_nothing)
    fixed: Mapping[str, int] = field(default_factory=_nothing)
    stale: bool = False
    machines: tuple[int, ...] = ()
    bounds: tuple[Bound, ...] = ()
    leaving: int = 0
    foreign: int = 0
    kinds: tuple[Bound, ...] = ()
    placed: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
