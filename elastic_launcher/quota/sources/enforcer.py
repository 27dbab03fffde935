"""What the controller asks of another enforcer of a cluster, such as ResourceQuotas or a scheduler with queues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Projects, QuotaError
from elastic_launcher.quota.queues import Queue
from elastic_launcher.quota.rounds.world import Bound, World
from elastic_launcher.quota.sources.machines import Pod
from elastic_launcher.quota.sources.watched import Watched


@dataclass(frozen=True, slots=True)
class Following:
    """How a source follows the cluster; an enforcer's watches are made with it.

    Attributes:
        namespaces: Those whose jobs count; none for all.
        lock: Held while what is known changes, and while an enforcer is asked.
        changed: Called after a change that a round depends on.
    """

    namespaces: Sequence[str]
    lock: threading.Lock
    changed: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Word:
    """What an enforcer says.

    Attributes:
        bounds: What it leaves to some of the jobs.
        taken: GPUs of others whose pods are not counted, by namespace and queue.
        refused: What of it can't be used, a line each; nothing grows while there is any.
        leaving: GPUs that pods of others still have which are not in ``taken`` any more, for they end, by machine.
        remarks: What an admin should know of it, a line each.
    """

    bounds: Sequence[Bound]
    taken: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))
    refused: Sequence[str] = ()
    leaving: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    remarks: Sequence[str] = ()


class Enforcer(Protocol):
    """Another enforcer. It is followed, and asked, only if the projects document names it.

    Attributes:
        key: Its key under ``capacity`` in the projects document.
        watched: What is followed of it; all of it was read before it is asked.
    """

    key: str
    watched: Sequence[Watched[Any]]

    def queues(self, document: Projects) -> Sequence[Queue]:
        """Returns its queues, which are projects; none if it has no such thing."""

    def marked(self, projects: Projects, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Returns the pods, with those marked that its own objects count."""

    def word(self, projects: Projects, jobs: Sequence[Job], pods: Sequence[Pod]) -> Word:
        """Returns what it says of the jobs.

        Args:
            projects: All projects.
            jobs: Those that count, with what they hold. Their match keys have the namespace.
            pods: Those of the whole cluster that have not ended, with extended resources or of a job.
        """


def with_words(
    world: World, projects: Projects, words: Iterable[Word], is_open: Mapping[str, bool] | None = None
) -> World:
    """Returns the world with what enforcers say: their bounds, and what others have by them.

    What nobody's project has is off the capacity. So is what pods that end have on a machine which counts for what is
    held there; nobody can have it after them.

    Args:
        world: What is there.
        projects: The projects.
        words: Those of the enforcers.
        is_open: Which machines count, and whether new pods can come to them; None where no machines are counted.
    """
    rigid, capacity, bounds = dict(world.rigid), world.capacity, list(world.bounds)
    stale, leaving, foreign = world.stale, world.leaving, world.foreign
    for word in words:
        bounds += word.bounds
        stale |= bool(word.refused)
        for machine, gpus in word.leaving.items():
            if is_open is None or is_open.get(machine, False):
                leaving += gpus
            elif machine in is_open:
                capacity = max(0, capacity - gpus)
        for (namespace, queue), gpus in word.taken.items():
            try:
                project = projects.project_of({"namespace": namespace, "queue": queue})
            except QuotaError:
                project = None
            if project is None:
                foreign += min(gpus, capacity)
                capacity = max(0, capacity - gpus)
            else:
                rigid[project.name] = rigid.get(project.name, 0) + gpus
    return replace(
        world, capacity=capacity, rigid=rigid, bounds=tuple(bounds), stale=stale, leaving=leaving, foreign=foreign
    )
