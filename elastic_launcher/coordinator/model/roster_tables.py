"""Immutable tables of nodes, members and ranks, with the answers that each observation needs precomputed.

A job of thousands of members gets thousands of reports for one event, so what is asked at each of them takes no search
through all members: the rank of a member, who of them has left, which nodes are in which phase. A changed copy of a
table costs one copy of a dict (2 ns an entry).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, SupportsIndex

from elastic_launcher.coordinator.model.roster import Member, Node, Phase

THERE = (Phase.STARTING, Phase.WARM, Phase.ADMITTED)


class Ranks(tuple[int, ...]):
    """Members in rank order."""

    @cached_property
    def _rank(self) -> dict[int, int]:
        return {member: rank for rank, member in enumerate(self)}

    def __contains__(self, member: object) -> bool:
        return member in self._rank

    def index(self, value: Any, start: SupportsIndex = 0, stop: SupportsIndex = 2**63 - 1) -> int:
        """Returns the rank of a member."""
        return self._rank[value] if value in self._rank else super().index(value, start, stop)


class Nodes(dict[int, Node]):
    """All nodes so far, by number, oldest first; not to be changed in place.

    Attributes:
        phases: The numbers of the nodes in each phase, those first that came to it first.
        leaving: Those of them that are there and have to leave.
    """

    def __init__(self, nodes: Mapping[int, Node] = {}) -> None:  # noqa: B006 (never changed)
        super().__init__(nodes)
        self.phases: dict[Phase, dict[int, None]] = {phase: {} for phase in Phase}
        for node in sorted(nodes.values(), key=lambda one: (one.since, one.number)):
            self.phases[node.phase][node.number] = None
        self.leaving = frozenset(number for number, node in nodes.items() if _leaves(node))

    def replaced(self, node: Node) -> Nodes:
        """Returns the table in which one node differs."""
        before = self[node.number]
        other = Nodes.__new__(Nodes)
        dict.update(other, self)
        dict.__setitem__(other, node.number, node)
        other.phases, other.leaving = self.phases, self.leaving
        if before.phase is not node.phase:
            left = self.phases[before.phase].copy()
            del left[node.number]
            other.phases = {
                **self.phases,
                before.phase: left,
                node.phase: {**self.phases[node.phase], node.number: None},
            }
        if _leaves(before) != _leaves(node):
            other.leaving = self.leaving ^ {node.number}
        return other

    def count(self, *phases: Phase) -> int:
        """Returns how many nodes are in one of ``phases``."""
        return sum(len(self.phases[phase]) for phase in phases)

    @property
    def staying(self) -> int:
        """How many are there and need not leave."""
        return self.count(*THERE) - len(self.leaving)


class Members(dict[int, Member]):
    """All members so far, by number; not to be changed in place.

    Attributes:
        departed: Those that left the training, or were lost.
        exited: Those whose process has ended.
        ended: Those whose script has ended.
        early: Those of which either is so, without an exception, and their training loop was not over.
    """

    def __init__(self, members: Mapping[int, Member] = {}) -> None:  # noqa: B006 (never changed)
        super().__init__(members)
        for name, belongs in _SETS:
            setattr(self, name, frozenset(number for number, one in members.items() if belongs(one)))

    departed: frozenset[int]
    exited: frozenset[int]
    ended: frozenset[int]
    early: frozenset[int]

    def replaced(self, member: Member) -> Members:
        """Returns the table in which one member differs."""
        before, number = self[member.number], member.number
        other = Members.__new__(Members)
        dict.update(other, self)
        dict.__setitem__(other, number, member)
        for name, belongs in _SETS:
            known: frozenset[int] = getattr(self, name)
            setattr(other, name, known if belongs(before) == belongs(member) else known ^ {number})
        return other


def _leaves(node: Node) -> bool:
    return bool(node.leave) and node.phase in THERE


def _early(member: Member) -> bool:
    over = member.ended or (member.exit is not None and member.exit.clean)
    return over and not member.done and member.failure is None


_SETS: tuple[tuple[str, Callable[[Member], bool]], ...] = (
    ("departed", lambda member: member.left or member.lost),
    ("exited", lambda member: member.exit is not None),
    ("ended", lambda member: member.ended),
    ("early", _early),
)
