"""Counts what projects have, and what their limits leave."""

from __future__ import annotations

from elastic_launcher.quota.projects import Projects


class Room:
    """GPUs handed out so far, by project and by each project above it.

    Attributes:
        left: GPUs of the capacity that nobody has.
    """

    def __init__(self, projects: Projects, capacity: int) -> None:
        self.left = capacity
        self._projects = projects
        self._own: dict[str, int] = {}
        self._below: dict[str, int] = {}

    def own(self, name: str) -> int:
        """Returns what a project's own jobs and pods have."""
        return self._own.get(name, 0)

    def take(self, name: str, gpus: int) -> None:
        """Counts GPUs as a project's, and as part of every project above it."""
        self.left -= gpus
        self._own[name] = self.own(name) + gpus
        for above in self._projects.path(name):
            self._below[above.name] = self._below.get(above.name, 0) + gpus

    def within(self, name: str) -> int:
        """Returns how many more GPUs a project may have; below 0 where it has too many."""
        limits = [
            above.limit - self._below.get(above.name, 0)
            for above in self._projects.path(name)
            if above.limit is not None
        ]
        return min([self.left, *limits])
