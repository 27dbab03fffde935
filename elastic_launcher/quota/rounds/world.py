"""What one round of the controller sees: capacity, jobs, pods that are not elastic, and what others enforce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
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
    """A machine of a bound that leaves its jobs more once some nodes have left it.

    Attributes:
        free: GPUs that it leaves to the jobs of the bound; below 0 where it has fewer than pods hold.
        seats: The nodes of jobs that can use other machines too.
        smaller: GPUs of ``free`` that smaller nodes of jobs hold which can use none but the bound's machines.
        small: Those of these nodes whose numbers are known.
    """

    free: int
    seats: tuple[Seat, ...]
    smaller: int = 0
    small: tuple[Seat, ...] = ()

    def gained(self, seats: Set[Seat], per_node: int) -> int:
        """Returns how many GPUs more it leaves without some nodes, where the bound counts multiples."""
        return _whole(self.free + _of(self.seats, seats), per_node) - _whole(self.free, per_node)

    def gained_at_once(self, seats: Set[Seat], per_node: int) -> int:
        """Returns the same while smaller nodes that stay keep whole nodes away."""
        left, gone = self.free - self.smaller, _of(self.seats, seats) + _of(self.small, seats)
        return _whole(left + gone, per_node) - _whole(left, per_node)

    def without(self, seats: Set[Seat]) -> Shared:
        """Returns the machine as it is once some nodes have left it."""
        gone, small = _of(self.seats, seats), _of(self.small, seats)
        return Shared(
            self.free + gone,
            tuple(seat for seat in self.seats if seat not in seats),
            self.smaller - small,
            tuple(seat for seat in self.small if seat not in seats),
        )


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
        shared: Those of the machines that leave more without some of the nodes there.
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

    @property
    def could_gain(self) -> bool:
        """Whether there are more ``gpus`` once some nodes have left these machines."""
        return any(machine.seats for machine in self.shared)

    def gained(self, seats: Set[Seat]) -> int:
        """Returns how many more ``gpus`` there are once some nodes have left these machines."""
        return sum(machine.gained(seats, self.per_node) for machine in self.shared)

    def gained_at_once(self, seats: Set[Seat]) -> int:
        """Returns the same of the GPUs for those that grow now."""
        return sum(machine.gained_at_once(seats, self.per_node) for machine in self.shared)

    def without(self, seats: Set[Seat]) -> Bound:
        """Returns the bound as it is once some nodes have left these machines."""
        gained, at_once = self.gained(seats), self.gained_at_once(seats)
        if not gained and not at_once:
            return self
        return replace(
            self,
            gpus=self.gpus + gained,
            movable=max(0, self.movable - gained),
            now=None if self.now is None else self.now + at_once,
            shared=tuple(machine.without(seats) for machine in self.shared),
        )

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


def _of(seats: Sequence[Seat], some: Set[Seat]) -> int:
    return sum(seat.gpus for seat in seats if seat in some)


def _whole(gpus: int, per_node: int) -> int:
    return max(0, gpus) // per_node * per_node


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
