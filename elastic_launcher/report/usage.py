"""Accounts for the GPUs of a job as its events tell: how long it held them, and how it came to its size.

Invariant: GPU-seconds never fall, and are the same however often events that move no node come in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_launcher.events import Event

_ENDS_TRAINING = ("quota_wait", "nodes_wait", "job_started", "job_finished")
_BY_HINT = ("hint", "queue")
"""Causes of a generation whose size a hint asked for; a queue may admit a node long after that."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a job has used so far.

    Attributes:
        gpus: GPUs that it holds now; those of nodes that wait for a place are not among them.
        counted: GPU-seconds that it held before ``counted_at``.
        counted_at: Since when it holds ``gpus``, in seconds since the epoch.
        trains_since: When it last began to train after a start or a pause; None while it does not train.
        changes: How often hints changed its size: to and from no GPUs at all too.
        start_seconds: How long the slowest of the last joiners took from its start to its first generation, or None.
    """

    gpus: int = 0
    counted: float = 0.0
    counted_at: float = 0.0
    trains_since: float | None = None
    changes: int = 0
    start_seconds: float | None = None

    def gpu_seconds(self, now: float) -> float:
        """Returns the GPU-seconds that it held up to now, in seconds since the epoch."""
        return self.counted + self.gpus * max(0.0, now - self.counted_at)

    def hold(self, gpus: int, now: float) -> Usage:
        """Returns the usage of a job that holds so many GPUs from now on."""
        if gpus == self.gpus:
            return self
        return replace(self, gpus=gpus, counted=self.gpu_seconds(now), counted_at=now)

    def follow(self, event: Event, now: float, *, resized: bool) -> Usage:
        """Returns the usage after one more event, which has ``resized`` the number of ranks that train or not.

        ``now`` is in seconds since the epoch.
        """
        if event.kind == "generation_formed":
            changes = self.changes + (resized and event.get("cause") in _BY_HINT)
            since = now if self.trains_since is None else self.trains_since
            return replace(self, trains_since=since, changes=changes)
        if event.kind in _ENDS_TRAINING:
            return replace(self, trains_since=None)
        paused = event.kind == "quota_lost" or (event.kind == "quota_back" and event.get("step") is not None)
        return replace(self, changes=self.changes + 1) if paused else self
