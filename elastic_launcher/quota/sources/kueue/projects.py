"""Makes projects of Kueue's queues and cohorts: a queue is a project, a cohort a department of them.

Invariant: a parent is among them, no two have the same name, and what is guaranteed below a cohort is at most what the
cohort has.
"""

from __future__ import annotations

from elastic_launcher.quota.queues import Queue
from elastic_launcher.quota.sources.kueue.kueue import COHORT, QUEUE, Kueue
from elastic_launcher.quota.sources.kueue.objects import DEFAULT_QUEUE
from elastic_launcher.quota.sources.kueue.tree import downwards


def queues_of(kueue: Kueue) -> list[Queue]:
    """Returns the queues and cohorts as projects, parents before their children.

    A queue is guaranteed its nominal quota, and its limit is the most that its tree and its borrowing limit let it
    have. It takes the jobs of its LocalQueues.
    """
    trees = kueue.trees()
    found = []
    for node in downwards(kueue.children):
        parent = kueue.parents[node]
        found.append(
            Queue(
                _name(kueue, node),
                sum(tree.quota(node) for tree in trees.values()),
                sum(max(0, tree.room(node)) for tree in trees.values()),
                _weight(kueue, node),
                parent=None if parent is None else _name(kueue, parent),
                patterns=_patterns(kueue, node),
            )
        )
    return found


def _name(kueue: Kueue, node: str) -> str:
    """Returns the name of a queue's or cohort's project: its own one, but for a cohort that is called like a queue."""
    name = node.removeprefix(QUEUE).removeprefix(COHORT)
    return f"cohort-{name}" if node.startswith(COHORT) and QUEUE + name in kueue.parents else name


def _weight(kueue: Kueue, node: str) -> float:
    kind = kueue.queues if node.startswith(QUEUE) else kueue.cohorts
    found = kind.get(node.removeprefix(QUEUE).removeprefix(COHORT))
    return 1.0 if found is None else found.weight


def _patterns(kueue: Kueue, node: str) -> tuple[dict[str, str], ...]:
    """Returns what a queue's jobs are matched by; those that name no queue are the default one's."""
    found: list[dict[str, str]] = []
    for (namespace, name), one in sorted(kueue.local_queues.items()):
        if QUEUE + one.queue == node:
            found += [{"namespace": namespace}] if name == DEFAULT_QUEUE else []
            found.append({"namespace": namespace, "queue": name})
    return tuple(found)
