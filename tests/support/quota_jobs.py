"""Reports of jobs for tests of the quota controller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_launcher.quota.jobs import Job

_JOB = Job(
    id="job", match={"id": "job", "project": "nlp"}, minimum=1, maximum=4, sizes=(1, 2, 3, 4), priority=0,
    submitted_at=0.0, held=0, following=None, following_generation=None, waits=86400.0, speeds={}, steps_left=None,
    start_seconds=None, changes=0, service=0.0, training_since=None, finished=False, reported_at=0.0,
)  # fmt: skip


def job(name: str, project: str = "nlp", least: int = 1, most: int = 4, **fields: Any) -> Job:
    """Returns a report of a job that can use every number of GPUs from the least to the most."""
    match = {"id": name, "job": name, "project": project}
    sizes = tuple(range(least, most + 1))
    return replace(_JOB, id=name, match=match, minimum=least, maximum=most, sizes=sizes, **fields)
