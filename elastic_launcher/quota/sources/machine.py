"""One machine of a cluster, and whether pods can come to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from elastic_launcher.engines.kubernetes.nodes.taints import NOTICES
from elastic_launcher.quota.scheduling import Scheduling, Taint

TOLERATED = frozenset({"nvidia.com/gpu", "amd.com/gpu"})
"""Taints of machines with GPUs that pods tolerate which ask for these; so is one named as the resource itself."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of the cluster.

    Attributes:
        name: Its name.
        resources: What pods may have of it, by extended resource.
        ready: Whether its kubelet reports, and it is not cordoned.
        taints: Those that keep pods away, and those that announce its end.
        labels: Its labels.
    """

    name: str
    resources: Mapping[str, int]
    ready: bool = True
    taints: frozenset[Taint] = frozenset()
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def goes(self) -> bool:
        """Whether it is announced that the machine will be taken away."""
        return any(taint.key in NOTICES for taint in self.taints)

    def takes_pods(self, resource: str, scheduling: Scheduling = Scheduling()) -> bool:  # noqa: B008 - frozen
        """Returns whether new pods that ask for a resource can come to it."""
        if not self.ready or self.goes:
            return False
        taints = [taint for taint in self.taints if taint.key not in TOLERATED and taint.key != resource]
        return scheduling.admits(self.name, self.labels, taints)
