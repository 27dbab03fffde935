"""The authority of one job: control server, c10d store, members, generations, target size."""

from __future__ import annotations

from elastic_launcher.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]
