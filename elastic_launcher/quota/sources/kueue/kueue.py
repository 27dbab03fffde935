"""The tree of Kueue's queues and cohorts for one resource.

Invariant: the tree has the queues that have the resource and the cohorts above them, and no circle: a Cohort that is
its own ancestor is taken for a root, and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from elastic_launcher.quota.sources.kueue.objects import ClusterQueue, Cohort, LocalQueue, Workload
from elastic_launcher.quota.sources.kueue.tree import FlavorTree, Quota, children_of
from elastic_launcher.quota.sources.machines import Pod

QUEUE = "ClusterQueue "
COHORT = "Cohort "
"""What a node of the tree is called begins with one of these: a queue and a cohort may have the same name."""


@dataclass(frozen=True)
class Kueue:
    """Kueue's objects, as far as they are about one resource.

    Attributes:
        resource: The resource.
        queues: All ClusterQueues, by name.
        cohorts: All Cohorts, by name.
        local_queues: All LocalQueues, by namespace and name.
        workloads: All Workloads that are not finished.
    """

    resource: str
    queues: Mapping[str, ClusterQueue] = field(default_factory=dict)
    cohorts: Mapping[str, Cohort] = field(default_factory=dict)
    local_queues: Mapping[tuple[str, str], LocalQueue] = field(default_factory=dict)
    workloads: Sequence[Workload] = ()

    def queue_of(self, namespace: str, local_queue: str) -> str:
        """Returns the ClusterQueue that a LocalQueue leads to; "" where there is none with the resource."""
        found = self.local_queues.get((namespace, local_queue))
        return found.queue if found is not None and QUEUE + found.queue in self.parents else ""

    def workload_of(self, pod: Pod) -> Workload | None:
        """Returns the Workload that a pod is part of; None where that can't be told."""
        owners = sorted(pod.owners, key=lambda owner: ("/" in owner, owner))  # a uid is certain
        found = (self._named.get((pod.namespace, owner)) for owner in owners)
        return self._named.get((pod.namespace, pod.workload)) or next(filter(None, found), None)

    @cached_property
    def _named(self) -> Mapping[tuple[str, str], Workload]:
        """The Workloads by namespace and by their names, and by what they are about."""
        return {(one.namespace, key): one for one in self.workloads for key in (one.name, *one.owners)}

    @cached_property
    def circles(self) -> tuple[str, ...]:
        """The Cohorts that are their own ancestors."""
        found = []
        for name in sorted(self.cohorts):
            seen, above = {name}, self.cohorts[name].parent
            while above in self.cohorts and above not in seen:
                seen.add(above)
                above = self.cohorts[above].parent
            if above == name:
                found.append(name)
        return tuple(found)

    @cached_property
    def parents(self) -> Mapping[str, str | None]:
        """The nodes of the tree: queues that have the resource, and the cohorts above these."""
        found: dict[str, str | None] = {}
        for queue in self.queues.values():
            if any(resource == self.resource for resource, _ in queue.quotas):
                found[QUEUE + queue.name] = COHORT + queue.cohort if queue.cohort else None
        for name in [parent for parent in found.values() if parent is not None]:
            node: str | None = name
            while node is not None and node not in found:
                cohort = self.cohorts.get(node.removeprefix(COHORT))
                parent = cohort.parent if cohort is not None and cohort.name not in self.circles else ""
                found[node] = COHORT + parent if parent else None
                node = found[node]
        return MappingProxyType(found)

    @cached_property
    def children(self) -> Mapping[str | None, tuple[str, ...]]:
        """The nodes right below each node; the roots below None."""
        return children_of(self.parents)

    @cached_property
    def quotas(self) -> Mapping[str, Mapping[str, Quota]]:
        """The quotas of the resource: by flavor, and then by node."""
        found: dict[str, dict[str, Quota]] = {}
        for node in self.parents:
            kind = self.queues if node.startswith(QUEUE) else self.cohorts
            owner = kind.get(node.removeprefix(QUEUE).removeprefix(COHORT))
            for (resource, flavor), quota in owner.quotas.items() if owner is not None else ():
                if resource == self.resource:
                    found.setdefault(flavor, {})[node] = quota
        return found

    def trees(self, usage: Mapping[str, Mapping[str, int]] = MappingProxyType({})) -> Mapping[str, FlavorTree]:
        """Returns the tree of each flavor.

        Args:
            usage: What each node has, by flavor.
        """
        return {
            flavor: FlavorTree(
                self.parents, quotas, {node: used[flavor] for node, used in usage.items() if flavor in used}
            )
            for flavor, quotas in self.quotas.items()
        }

    def root(self, node: str) -> str:
        """Returns the uppermost node above a node."""
        above = self.parents[node]
        return node if above is None else self.root(above)

    def below(self, node: str) -> list[str]:
        """Returns the queues of a node: itself, or those of a cohort."""
        children = self.children.get(node, ())
        return [node] if node.startswith(QUEUE) else [one for child in children for one in self.below(child)]
