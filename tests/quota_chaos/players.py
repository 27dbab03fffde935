"""Jobs as they really are: what they hold, which hints they follow, and what they report of that, truly or not."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_launcher.hints import Demand, resolve
from elastic_launcher.hints.document import Document
from tests.support.quota_reports import report

LATE = 2
"""Rounds for which a late report is on its way."""


@dataclass
class Player:
    """One job.

    Attributes:
        name: Its id.
        project: Its project.
        minimum: Fewest GPUs.
        maximum: Most GPUs.
        per_node: GPUs of a node.
        priority: Among its project's jobs.
        submitted: When it was started, in seconds since the epoch.
        held: GPUs that it holds.
        followed: What its hint allows, and the generation of that.
        deaf: Whether it ignores hints.
        lost: Whether its reports are lost.
        late: Whether they arrive some rounds later.
        served: Whether it ever held GPUs.
    """

    name: str
    project: str
    minimum: int
    maximum: int
    per_node: int
    priority: int
    submitted: float
    held: int = 0
    followed: tuple[int | None, int | None] = (None, None)
    deaf: bool = False
    lost: bool = False
    late: bool = False
    served: bool = False
    _began: float | None = None
    _made: list[dict[str, Any]] = field(default_factory=list)

    @property
    def reported(self) -> bool:
        """Whether it has made a report."""
        return bool(self._made)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of GPUs that it can use."""
        return tuple(range(self.minimum, self.maximum + 1, self.per_node))

    @property
    def demand(self) -> Demand:
        """What its launcher resolves hints for."""
        match = {"id": self.name, "job": self.name, "project": self.project}
        return Demand(match, self.minimum // self.per_node, self.maximum // self.per_node, self.per_node)

    def wanted(self, document: Document, now: float) -> int:
        """Returns the GPUs that hints give it, and remembers which hints it follows.

        Args:
            document: The hints.
            now: Seconds since the epoch.
        """
        found = resolve(document, self.demand, now=now, starting=not self.held)
        self.followed = found.allowed, document.generation
        return (found.wanted(self.held // self.per_node) if self.held else found.nodes) * self.per_node

    def hold(self, gpus: int, now: float) -> None:
        """Changes what it holds."""
        self.held = gpus
        self.served = self.served or gpus > 0
        self._began = None if not gpus else now if self._began is None else self._began

    def report(self, now: float) -> dict[str, Any] | None:
        """Makes a report of what is so now; returns the one that arrives, if any does."""
        allowed, generation = self.followed
        self._made.append(
            report(
                self.name, self.minimum, self.maximum, held=self.held, allowed=allowed, generation=generation,
                submitted=self.submitted, reported=now, per_node=self.per_node, priority=self.priority, waits=86400.0,
                match=dict(self.demand.match), started_training=self._began,
            )
        )  # fmt: skip
        if self.lost:
            return None
        if not self.late:
            return self._made[-1]
        return self._made[-1 - LATE] if len(self._made) > LATE else None

    def again(self, place: int) -> dict[str, Any]:
        """Returns a report that it made before."""
        return self._made[place % len(self._made)]

    def absurd(self, place: int) -> dict[str, Any]:
        """Returns a report that contradicts itself, its last one, or what is possible."""
        found = copy.deepcopy(self._made[-1])
        changes: tuple[Mapping[str, Any], ...] = (
            {"minimum": self.maximum + self.per_node},
            {"held": -1},
            {"submitted": found["demand"]["reported"] + 1e6},
            {"following": {"allowed": 10**9, "generation": 10**18}},
            {"held": self.maximum + 3 * self.per_node},
            {"per_node": 7},
        )
        found["demand"] |= changes[place % len(changes)]
        return found
