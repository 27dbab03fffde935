"""Writes a job's status to its Service, for readers that can't see its files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.objects.service import NUMBERS
from elastic_launcher.events import EventFollower, finite
from elastic_launcher.report.state import JobState, advance
from elastic_launcher.report.status import document
from elastic_launcher.workdir import Layout, read_document


class ToldStatus:
    """The status of a job whose launcher runs in this process, after what the Service said of the job before it."""

    def __init__(self, layout: Layout, earlier: Mapping[str, Any]) -> None:
        self._layout = layout
        self._earlier = earlier
        self._follower = EventFollower(layout.events)
        self._state = JobState()

    def now(self) -> dict[str, Any]:
        """Returns what `status --json` says, with the fields of Kubeflow's proposal 2779, its numbers, and the time."""
        for event in self._follower.poll():
            self._state = advance(self._state, event)
        job, control = read_document(self._layout.job), read_document(self._layout.control)
        now = time.time()
        found = document(self._state, job, control, alive=True, now=now)
        found["demand"] = submitted_before(found["demand"], self._earlier)
        numbers = numbers_after(self._state, job)
        return {**found, **progress_fields(found), NUMBERS: numbers, "told": round(now, 3)}


def submitted_before(demand: Mapping[str, Any] | None, earlier: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns a demand as submitted at the time of the job's first attempt, which this one may know nothing of.

    ``earlier`` is the status on the job's Service, whatever others have made of it.
    """
    known = earlier.get("demand")
    moment = finite(known.get("submitted")) if isinstance(known, Mapping) else None
    return demand if demand is None or not moment or moment > demand["submitted"] else {**demand, "submitted": moment}


def numbers_after(state: JobState, job: Mapping[str, Any]) -> dict[str, int]:
    """Returns the numbers from which on none was used: the next launcher may not have this one's work directory.

    ``job`` is what ``job.json`` holds.
    """
    members = [member for node in state.nodes.values() for member in node.members]
    return {
        "node": max([job.get("first_node", 1), *(node + 1 for node in state.nodes)]),
        "member": max([job.get("first_member", 1), *(member + 1 for member in members)]),
    }


def progress_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a status as the proposal names it: whole per cent, whole seconds, the script's own values with the loss.

    Source: Kubeflow Trainer KEP-2779, ``trainerStatus``.
    """
    total, left = found["total_steps"], found["seconds_left"]
    return {
        "progressPercentage": None if not total else min(100, 100 * found["step"] // total),
        "estimatedRemainingSeconds": None if left is None else round(left),
        "metrics": {**({} if found["loss"] is None else {"loss": found["loss"]}), **found["logged"]},
    }
