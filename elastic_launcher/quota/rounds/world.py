"""What one round of the controller sees: capacity, jobs, pods that are not elastic, and what others enforce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from elastic_launcher.quota.jobs import Job


def _nothing() -> Mapping[str, int]:
    return MappingProxyType({})


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
        above: Whether these are the machines of nodes above the guarantee; then what is guaranteed is part of ``gpus``.
        movable: How many more ``gpus`` were without the jobs that hold some of the machines and can use others too.
    """

    name: str
    jobs: frozenset[str]
    gpus: int
    per_node: int = 0
    taken: int = 0
    above: bool = False
    movable: int = 0
    holders: tuple[tuple[str, int], ...] = field(default=(), hash=False)  # it is long, and bounds are looked up often


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
