"""Counts what projects have, and what their limits and the bounds of others leave."""

from __future__ import annotations

from collections.abc import Iterable

from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.world import Bound


class Room:
    """GPUs handed out so far, by project, by each project above it, and by bound.

    Attributes:
        left: GPUs of the capacity that nobody has.
    """

    def __init__(self, projects: Projects, capacity: int) -> None:
        self.left = capacity
        self._projects = projects
        self._own: dict[str, int] = {}
        self._below: dict[str, int] = {}
        self._bound: dict[str, int] = {}
        self._parts: dict[tuple[str, str], int] = {}
        self._above: dict[tuple[str, str], int] = {}  # parts of jobs that have GPUs besides

    def own(self, name: str) -> int:
        """Returns what a project's own jobs and pods have."""
        return self._own.get(name, 0)

    def below(self, name: str) -> int:
        """Returns what a project and all projects below it have."""
        return self._below.get(name, 0)

    def take(self, name: str, gpus: int, bounds: Iterable[Bound] = ()) -> None:
        """Counts GPUs as a project's, and as part of every project above it, and of each of the bounds."""
        self.left -= gpus
        self._own[name] = self.own(name) + gpus
        for above in self._projects.path(name):
            self._below[above.name] = self._below.get(above.name, 0) + gpus
        for bound in bounds:
            more = gpus
            if bound.above and not bound.whole:
                has, besides = self._above.get((bound.name, name), 0), bound.besides(name)
                self._above[bound.name, name] = has + gpus
                more = besides.taken(has + gpus) - besides.taken(has)
            self._bound[bound.name] = self._bound.get(bound.name, 0) + more
            self._parts[bound.name, name] = self.part(bound, name) + gpus

    def within(self, name: str, bounds: Iterable[Bound] = ()) -> int:
        """Returns how many more GPUs jobs of a project under some bounds may have; below 0 where they have too many."""
        limits = [
            above.limit - self._below.get(above.name, 0)
            for above in self._projects.path(name)
            if above.limit is not None
        ]
        return min([self.left, *limits, *(self._within_bound(bound, name) for bound in bounds)])

    def _within_bound(self, bound: Bound, name: str) -> int:
        left = bound.gpus - self._bound.get(bound.name, 0)
        if bound.whole or not bound.above:
            return left
        has, besides = self._above.get((bound.name, name), 0), bound.besides(name)
        return besides.most(left + besides.taken(has)) - has

    def part(self, bound: Bound, name: str) -> int:
        """Returns what a project's own jobs have under a bound."""
        return self._parts.get((bound.name, name), 0)
