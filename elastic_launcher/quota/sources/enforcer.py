"""What the controller asks of another enforcer of a cluster, such as ResourceQuotas or a scheduler with queues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.queues import Queue
from elastic_launcher.quota.rounds.world import Bound
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

    def bounds(self, projects: Projects, jobs: Sequence[Job], pods: Sequence[Pod]) -> Sequence[Bound]:
        """Returns what it leaves to some of the jobs.

        Args:
            projects: All projects.
            jobs: Those that count, with what they hold. Their match keys have the namespace.
            pods: Those of the whole cluster that have not ended, with extended resources or of a job.
        """
