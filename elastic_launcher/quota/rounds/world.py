"""What one round of the controller sees: capacity, jobs, and pods that are not elastic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from elastic_launcher.quota.jobs import Job


def _nothing() -> Mapping[str, int]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class World:
    """The cluster, or the machine, at one moment. All counts are GPUs.

    Attributes:
        capacity: What projects may hold together; what pods of nobody's project hold is taken off already.
        jobs: The newest report of each job, in any order.
        rigid: What pods that are not elastic hold, by project.
        fixed: What an entry written by hand allows a job, by the job's id; the controller leaves these alone.
        stale: Whether something could not be read: what is known stays, and nothing grows.
    """

    capacity: int
    jobs: tuple[Job, ...]
    rigid: Mapping[str, int] = field(default_factory=_nothing)
    fixed: Mapping[str, int] = field(default_factory=_nothing)
    stale: bool = False
