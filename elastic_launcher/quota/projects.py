"""Projects: what each is guaranteed, what bounds it, and which jobs belong to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from elastic_launcher.hints.match import ANY, matches, named, specificity, spelled
from elastic_launcher.quota.fair_share import Claim

GPU = "nvidia.com/gpu"
WAIT_SECONDS = 86_400.0
"""For so long jobs wait for quota if neither they nor the projects document say it."""
_NOTHING: Mapping[str, int] = MappingProxyType({})
_Items = tuple[tuple[str, str], ...]


class QuotaError(ValueError):
    """Projects that can't be used, or a job that can't be given to one of them.

    Attributes:
        path: What is wrong, such as ``projects[3].limit``; empty for the document as a whole.
        line: Where that is in the document, from 1, or None.
    """

    def __init__(self, message: str, path: str = "", line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.path = path
        self.line = line


@dataclass(frozen=True, slots=True)
class Project:
    """One project, or a department of several.

    Attributes:
        name: Its name; no other project has it.
        guaranteed: GPUs that its jobs, and those of the projects below it, get whenever they ask for them.
        limit: The most GPUs that they may have, or None.
        weight: Its part of the GPUs over quota; with 0 it gets none of them.
        priority: GPUs over quota go to the highest priority first.
        parent: The project above it, or None.
        min_run_seconds: For so long a job that has started is not paused, only cut to its minimum.
        grace_period: Seconds from "a GPU is taken back" to "it may be killed".
        patterns: What its own jobs are matched by; None for jobs that name the project.
        wait_seconds: Seconds that its jobs wait for quota unless they say it themselves; with 0 they end instead.
    """

    name: str
    guaranteed: int = 0
    limit: int | None = None
    weight: float = 1.0
    priority: int = 0
    parent: str | None = None
    min_run_seconds: float = 0.0
    grace_period: float = 30.0
    patterns: tuple[Mapping[str, str], ...] | None = None
    wait_seconds: float = WAIT_SECONDS

    @property
    def matched_by(self) -> tuple[Mapping[str, str], ...]:
        """What its own jobs are matched by."""
        return ({"project": self.name},) if self.patterns is None else self.patterns


@dataclass(frozen=True, slots=True)
class Autoscale:
    """How many GPUs a cluster autoscaler is led to provide.

    Attributes:
        max: GPUs that hints may add up to.
        low: The speed of all jobs over one GPU, by GPUs, below which machines are emptied.
        high: That above which more GPUs are asked for.
    """

    max: int
    low: float = 0.35
    high: float = 0.65


@dataclass(frozen=True, slots=True)
class Capacity:
    """Where the GPUs to divide are counted: a number, or the machines of the cluster; and who else bounds them.

    Attributes:
        gpus: The number, or None for the machines.
        resource: What a GPU is called in the machines' and pods' resources.
        resource_quotas: Whether the ResourceQuotas of the cluster bound the jobs of their namespaces.
        kai: Whether the queues of KAI are projects and bound their jobs.
        kueue: Whether the ClusterQueues of Kueue are projects and bound their jobs.
        autoscale: How machines come and go with what jobs make of them; None if they do not.
    """

    gpus: int | None = None
    resource: str = GPU
    resource_quotas: bool = False
    kai: bool = False
    kueue: bool = False
    autoscale: Autoscale | None = None

    @property
    def gives_projects(self) -> bool:
        """Whether another enforcer's queues are projects too."""
        return self.kai or self.kueue

    @property
    def others(self) -> tuple[str, ...]:
        """The other enforcers, which only a cluster has, by their keys in the projects document."""
        found = (("resourceQuotas", self.resource_quotas), ("kai", self.kai), ("kueue", self.kueue))
        return tuple(key for key, there in found if there)


@dataclass(frozen=True)
class Projects:
    """All projects, and what they have in common.

    Attributes:
        projects: In the order of the document.
        unmatched: The project of jobs that no other one matches, or None if such jobs are refused.
        capacity: Where the GPUs are counted, or None if the document leaves that open.
        grow_after: Seconds that lie at least between a growth and a shrink of one job, but for guarantees.
        ttl_seconds: For so long hints hold.
        warnings: What is allowed and yet odd.
        given: The fields of `Project` that the document sets, by project; empty unless queues are projects too, for
            which these fields are settings.
        grace_period: That of queues.
        wait_seconds: That of queues.
        fairness: How GPUs are divided among the jobs of a project: from 0, where those with less work come first, to 1,
            where all weigh the same.
    """

    projects: tuple[Project, ...]
    unmatched: str | None = None
    capacity: Capacity | None = None
    grow_after: float = 60.0
    ttl_seconds: float = 120.0
    warnings: tuple[str, ...] = ()
    given: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    grace_period: float = 30.0
    wait_seconds: float = WAIT_SECONDS
    fairness: float = 0.0

    def named(self, name: str) -> Project:
        """Returns the project of that name.

        Raises:
            KeyError: If there is none.
        """
        return self._by_name[name]

    def path(self, name: str) -> list[Project]:
        """Returns a project and those above it, itself first."""
        found = [self.named(name)]
        while found[-1].parent is not None:
            found.append(self.named(found[-1].parent))
        return found

    def children(self, name: str) -> tuple[str, ...]:
        """Returns the names of the projects right below one."""
        return self._children.get(name, ())

    def limit_of(self, name: str) -> int | None:
        """Returns the smallest limit of a project and those above it, or None if none has one."""
        return min((project.limit for project in self.path(name) if project.limit is not None), default=None)

    def claims(self, demands: Mapping[str, int], held: Mapping[str, int] = _NOTHING) -> list[Claim]:
        """Returns what all projects claim, for `fair_share`.

        Args:
            demands: GPUs that each project's own jobs and pods can use, without those of the projects below it.
            held: Those of them that can't be taken away, for they are of pods that are not elastic.

        Raises:
            KeyError: If there is no project of one of the names.
        """
        for name in (*demands, *held):
            self.named(name)
        return [
            Claim(
                one.name,
                demands.get(one.name, 0),
                one.guaranteed,
                one.limit,
                one.weight,
                one.priority,
                one.parent,
                held.get(one.name, 0),
            )
            for one in self.projects
        ]

    def project_of(self, match: Mapping[str, str]) -> Project | None:
        """Returns the project of a job: the most specific match wins, as it does among hints.

        Args:
            match: What the job is matched by.

        Returns:
            The project, or None if no project takes the job.

        Raises:
            QuotaError: If two projects match it equally well.
        """
        found: list[tuple[Mapping[str, str], Project]] = []
        best: tuple[int, ...] = ()
        for pattern, project in self._matching(match):
            rank = specificity(pattern)
            if rank > best:
                found, best = [], rank
            if rank == best:
                found.append((pattern, project))
        if not found:
            return None if self.unmatched is None else self.named(self.unmatched)
        pattern, project = found[0]
        for other_pattern, other in found[1:]:
            if other != project:
                raise QuotaError(
                    f"the job of {spelled(match)} is matched equally well by the projects {project.name} "
                    f"({spelled(pattern)}) and {other.name} ({spelled(other_pattern)}); "
                    "give one of them a match that is more specific"
                )
        return project

    def _matching(self, match: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], Project]]:
        """Yields the matches of projects that a job fits, without a look at each of the projects."""
        for keys in self._exact_keys:
            if all(key in match for key in keys):
                items = tuple((key, match[key]) for key in keys)
                if items in self._exact:
                    yield dict(items), self._exact[items]
        for pattern, project in self._wild:
            if matches(pattern, match):
                yield pattern, project

    def _patterns(self) -> Iterable[tuple[Mapping[str, str], Project]]:
        return ((named(pattern), project) for project in self.projects for pattern in project.matched_by)

    @cached_property
    def _by_name(self) -> dict[str, Project]:
        return {project.name: project for project in self.projects}

    @cached_property
    def _children(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for project in self.projects:
            if project.parent is not None:
                found[project.parent] = (*found.get(project.parent, ()), project.name)
        return found

    @cached_property
    def _exact(self) -> dict[_Items, Project]:
        """The projects by matches of whole names; no two projects have the same one."""
        found = ((tuple(sorted(pattern.items())), project) for pattern, project in self._patterns())
        return {items: project for items, project in found if not any(ANY in text for _, text in items)}

    @cached_property
    def _exact_keys(self) -> tuple[tuple[str, ...], ...]:
        return tuple(dict.fromkeys(tuple(key for key, _ in items) for items in self._exact))

    @cached_property
    def _wild(self) -> list[tuple[Mapping[str, str], Project]]:
        return [(one, project) for one, project in self._patterns() if any(ANY in text for text in one.values())]


def with_guarantees(projects: Sequence[Project], left_out: Collection[str]) -> list[Project]:
    """Returns the projects with guarantees that are left out: of a department, what is guaranteed below it.

    Args:
        projects: A tree.
        left_out: The names of those whose guarantee is.
    """
    names = {project.name for project in projects}
    tree = Projects(tuple(one if one.parent in names else replace(one, parent=None) for one in projects))
    guaranteed = {project.name: project.guaranteed for project in projects}
    for project in sorted(projects, key=lambda one: -len(tree.path(one.name))):
        if project.name in left_out:
            below = sum(guaranteed[name] for name in tree.children(project.name))
            guaranteed[project.name] = below if project.limit is None else min(below, project.limit)
    return [replace(project, guaranteed=guaranteed[project.name]) for project in projects]
