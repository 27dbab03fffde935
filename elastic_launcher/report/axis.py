"""Puts events on one axis of seconds since the first start of their job."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_launcher.events import Event

Timed = Sequence[tuple[float, Event]]


def put_on_axis(events: Sequence[Event]) -> Timed:
    """Returns events with their moments, which never run backwards even where the wall clock did."""
    start = next((event for event in events if event.kind == "job_started"), events[0] if events else None)
    if start is None:
        return []
    latest, timed = 0.0, []
    for event in events:
        latest = max(latest, event.time - start.time)
        timed.append((latest, event))
    return timed
