"""The quota controller's metrics for Prometheus.

Invariant: figures of a decision are those of the last round since this controller leads; a controller that does not
lead has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from elastic_launcher.host.prometheus import PREFIX
from elastic_launcher.quota.controller import Made
from elastic_launcher.quota.metrics.figures import Figures, Shortfall, figures_of, follow_lacks, own_figures
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.reasons import Cause

NAME = f"{PREFIX}quota_"
GUARANTEE_SECONDS = (1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 300.0, 600.0, 1800.0)
"""Bounds of the waits: within a round, within a grace period of 30 s and one round, and beyond."""
KINDS = ("guaranteed", "fair_share", "held", "over_quota", "lacking")


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is known after a round."""

    capacity: int
    planned: int
    projects: Projects
    figures: Mapping[str, Figures]


class QuotaMetrics(Collector):
    """Serves the metrics of a controller.

    Args:
        leads: Returns whether this controller leads now; called by the thread that answers, too.
        clock: Monotonic seconds.
    """

    def __init__(self, leads: Callable[[], bool] = lambda: True, clock: Callable[[], float] = time.monotonic) -> None:
        self._leads = leads
        self._clock = clock
        self._changes = Counter(f"{NAME}changes", "Changes of what jobs may hold.", ["cause"], registry=None)
        for cause in get_args(Cause):
            self._changes.labels(cause)  # shown with 0 before the first one
        self._rounds = Histogram(f"{NAME}round_seconds", "What a round took.", registry=None)
        self._guarantees = Histogram(
            f"{NAME}guarantee_seconds",
            "From a project's demand for GPUs of its guarantee until it holds them.",
            buckets=GUARANTEE_SECONDS,
            registry=None,
        )
        self.restart()

    def restart(self) -> None:
        """Forgets the last round: this controller begins to lead, or no longer does."""
        self._shown: _Shown | None = None
        self._lacks: Mapping[str, Shortfall] = {}
        self._current_at = self._clock()

    def take(self, seconds: float, made: Made | None) -> None:
        """Takes a round.

        Args:
            seconds: What it took.
            made: What it was made of, and its outcome; None if none was made.
        """
        self._rounds.observe(seconds)
        if made is None or not self._leads():
            return
        for change in made.decision.changes:
            self._changes.labels(change.cause).inc()
        now = self._clock()
        own = own_figures(made.world, made.projects, made.decision)
        figures = figures_of(made.projects, own, made.decision.targets.shares)
        self._lacks, over = follow_lacks(self._lacks, own, now)
        for wait in over:
            self._guarantees.observe(wait)
        self._shown = _Shown(made.world.capacity, made.decision.capacity, made.projects, figures)
        if not made.world.stale:
            self._current_at = now

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        leads, shown = self._leads(), self._shown
        yield GaugeMetricFamily(f"{NAME}leader", "1 while this controller leads.", int(leads))
        for each in (self._changes, self._rounds, self._guarantees):
            yield from each.collect()
        if not leads:
            return
        stale = max(0.0, self._clock() - self._current_at)
        yield GaugeMetricFamily(f"{NAME}stale_seconds", "Since a round saw the present state of everything.", stale)
        if shown is not None:
            yield GaugeMetricFamily(f"{NAME}capacity", "GPUs that are there.", shown.capacity)
            yield GaugeMetricFamily(f"{NAME}planned_capacity", "GPUs that the last round divided.", shown.planned)
            yield from _of_projects(shown)


def _of_projects(shown: _Shown) -> Iterator[Metric]:
    gpus = GaugeMetricFamily(f"{NAME}gpus", "GPUs of a project.", labels=["project", "parent", "kind"])
    waiting = GaugeMetricFamily(f"{NAME}waiting_jobs", "Jobs that may hold nothing now.", labels=["project", "parent"])
    for project in shown.projects.projects:
        labels, figures = [project.name, project.parent or ""], shown.figures[project.name]
        for kind in KINDS:
            gpus.add_metric([*labels, kind], getattr(figures, kind))
        waiting.add_metric(labels, figures.waiting)
    yield gpus
    yield waiting
