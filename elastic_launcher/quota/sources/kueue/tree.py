"""Kueue's quota arithmetic: what the queues and cohorts of a tree may still take of one flavor of a resource.

Invariants: without lending and borrowing limits, all queues
of a cohort have the same number available; what a queue does not lend is available to that queue alone.

Source: Kueue 0.17, ``pkg/cache/scheduler/resource_node.go``; the numbers of its tables are in the test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of a queue or a cohort in one flavor. All counts are GPUs.

    Attributes:
        nominal: What it owns.
        borrowing: The most that it may borrow from its cohort, or None for no limit.
        lending: The most that it lends to its cohort, or None for all that it has.
    """

    nominal: int = 0
    borrowing: int | None = None
    lending: int | None = None


NO_QUOTA = Quota()


class FlavorTree:
    """The queues and cohorts of one flavor.

    Args:
        parents: The cohort of each queue, and the parent of each cohort; None at a root. A parent is a key itself, and
            no node is its own ancestor.
        quotas: The quota of each node that has one.
        usage: What is reserved in each queue.
    """

    def __init__(
        self, parents: Mapping[str, str | None], quotas: Mapping[str, Quota], usage: Mapping[str, int]
    ) -> None:
        self._parents = parents
        self._quotas = quotas
        self._children = children_of(parents)
        self._subtree: dict[str, int] = {}
        self._used: dict[str, int] = {}
        for name in reversed(list(downwards(self._children))):
            self._sum(name, usage.get(name, 0))

    def _sum(self, name: str, own_usage: int) -> None:
        below = self._children.get(name, ())
        self._subtree[name] = self._quota(name).nominal + sum(self._subtree[one] - self._local(one) for one in below)
        self._used[name] = own_usage + sum(max(0, self._used[one] - self._local(one)) for one in below)

    def _quota(self, name: str) -> Quota:
        return self._quotas.get(name, NO_QUOTA)

    def _local(self, name: str) -> int:
        """Returns what a node does not lend to its parent."""
        lending = self._quota(name).lending
        return 0 if lending is None or self._parents[name] is None else max(0, self._subtree[name] - lending)

    def quota(self, name: str) -> int:
        """Returns what a node and all below it own together, what they don't lend included."""
        return self._subtree[name] + sum(self._local(one) for one in self._below(name))

    def available(self, name: str) -> int:
        """Returns how much more a node may take; below 0 where it has too much, such as after a cut of its quota."""
        parent, local = self._parents[name], self._local(name)
        if parent is None:
            return self._subtree[name] - self._used[name]
        above = self.available(parent)
        borrowing = self._quota(name).borrowing
        if borrowing is not None:
            above = min(above, self._subtree[name] - local - max(0, self._used[name] - local) + borrowing)
        return max(0, local - self._used[name]) + above

    def room(self, name: str, use: Mapping[str, int] | None = None) -> int:
        """Returns how much more a node and all below it may take together.

        Args:
            name: The node.
            use: The most that each queue would take; what a node does not lend counts up to that. None for any number.
        """
        kept = 0
        for one in self._below(name):
            most = max(0, self._local(one) - self._used[one])
            kept += most if use is None else min(most, self._useful(one, use))
        return self.available(name) + kept

    def _useful(self, name: str, use: Mapping[str, int]) -> int:
        return use.get(name, 0) + sum(use.get(one, 0) for one in self._below(name))

    def _below(self, name: str) -> Iterator[str]:
        for child in self._children.get(name, ()):
            yield child
            yield from self._below(child)


def children_of(parents: Mapping[str, str | None]) -> Mapping[str | None, tuple[str, ...]]:
    """Returns the children of each node; those of None are the roots."""
    found: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        found.setdefault(parent, []).append(name)
    return MappingProxyType({name: tuple(sorted(children)) for name, children in found.items()})


def downwards(children: Mapping[str | None, tuple[str, ...]]) -> Iterator[str]:
    """Yields all nodes, parents before their children."""
    ordered = list(children.get(None, ()))
    for name in ordered:  # it grows by the children of those that are in it
        ordered += children.get(name, ())
        yield name
