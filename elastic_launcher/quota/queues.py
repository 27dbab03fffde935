"""Makes projects of the queues of another scheduler, with the projects document as settings on top.

Invariants: each queue is one project; a field that the document sets for a name holds as it is there, all others are
the queue's; parents make a tree, and no guarantee is above its own limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from elastic_launcher.quota.projects import Project, Projects, QuotaError, with_guarantees
from elastic_launcher.report.words import plural


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of another scheduler. All counts are GPUs.

    Attributes:
        name: Its name, which is the project's. Several queues with one name are one project, with the tighter numbers.
        guaranteed: What its jobs, and those of the queues below it, get whenever they ask for it.
        limit: The most that they may have, or None.
        weight: Its part of what is over quota.
        priority: What is over quota goes to the highest priority first.
        parent: The queue above it, or None.
        patterns: What its jobs are matched by; None for jobs that name the project.
    """

    name: str
    guaranteed: int = 0
    limit: int | None = None
    weight: float = 1.0
    priority: int = 0
    parent: str | None = None
    patterns: tuple[Mapping[str, str], ...] | None = None


def with_queues(document: Projects, queues: Iterable[Queue]) -> Projects:
    """Returns the projects of queues and of a document together.

    A project of the document that is no queue is one beside them. Of two that match the same jobs, the document's wins.

    Args:
        document: The projects document; ``given`` says which fields of a project hold for a queue of its name.
        queues: In any order.

    Returns:
        The projects; ``warnings`` has what is odd about them.

    Raises:
        QuotaError: If the parents make a circle.
    """
    found = {queue.name: _project(document, queue) for queue in _tightest(queues)}
    alone = [project for project in document.projects if project.name not in found]
    made = list(found.values()) + alone
    left_out = [one.name for one in alone if "guaranteed" not in document.given.get(one.name, ())]
    _refuse_circles(made)
    made = [_capped(project) for project in with_guarantees(made, left_out)]
    names = {project.name for project in made}
    projects = replace(
        document,
        projects=tuple(one if one.parent in names else replace(one, parent=None) for one in made),
        unmatched=document.unmatched if document.unmatched in names else None,
    )
    return replace(projects, warnings=tuple(_warnings(document, projects, made)))


def _tightest(queues: Iterable[Queue]) -> list[Queue]:
    """Returns one queue of each name, with the tightest numbers of those that have it."""
    found: dict[str, Queue] = {}
    for queue in queues:
        other = found.get(queue.name, queue)
        limits = [one.limit for one in (other, queue) if one.limit is not None]
        guaranteed = min(other.guaranteed, queue.guaranteed)
        found[queue.name] = replace(other, guaranteed=guaranteed, limit=min(limits, default=None))
    return sorted(found.values(), key=lambda queue: queue.name)


def _project(document: Projects, queue: Queue) -> Project:
    """Returns the project of a queue, with what the document sets for it."""
    of_queue = Project(
        queue.name,
        queue.guaranteed,
        queue.limit,
        queue.weight,
        queue.priority,
        queue.parent,
        grace_period=document.grace_period,
        patterns=queue.patterns,
        wait_seconds=document.wait_seconds,
    )
    given = document.given.get(queue.name, frozenset())
    settings: dict[str, Any] = {field: getattr(document.named(queue.name), field) for field in given}
    return replace(of_queue, **settings)


def _capped(project: Project) -> Project:
    """Returns the project with a guarantee within its own limit."""
    limit = project.limit
    return project if limit is None else replace(project, guaranteed=min(project.guaranteed, limit))


def _refuse_circles(projects: Iterable[Project]) -> None:
    parents = {project.name: project.parent for project in projects}
    for name in parents:
        chain, above = [name], parents[name]
        while above is not None and above not in chain:
            chain.append(above)
            above = parents.get(above)
        if above == name:
            raise QuotaError(f"the parents {' → '.join([*chain, name])} are a circle")


def _warnings(document: Projects, projects: Projects, made: Iterable[Project]) -> Iterator[str]:
    if document.unmatched != projects.unmatched:
        yield f"unmatched: no project or queue is named {document.unmatched}; jobs that no project matches are refused"
    for before, project in zip(made, projects.projects, strict=True):
        if before.parent != project.parent:
            yield f"project {project.name}: no project or queue is named {before.parent}; it has no parent"
        if project.limit == 0 or not (project.weight or project.guaranteed or projects.children(project.name)):
            why = "its limit is 0" if project.limit == 0 else "its weight and its guarantee are 0"
            yield f"project {project.name} never gets a GPU: {why}"
        below = sum(projects.named(name).guaranteed for name in projects.children(project.name))
        if below > project.guaranteed and project.guaranteed:
            yield (
                f"the projects below {project.name} are guaranteed {plural(below, 'GPU')}, and {project.name} itself "
                f"{project.guaranteed}; when not all of them are there, they are shared in proportion"
            )
