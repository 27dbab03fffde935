"""The jobs of one machine: a folder in which each job has its work directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_launcher.events import EventError, EventFollower
from elastic_launcher.host.layout import Layout
from elastic_launcher.host.lock import launcher_lives
from elastic_launcher.quota.jobs import Job, ReportError, job_of
from elastic_launcher.report.state import JobState, advance
from elastic_launcher.report.status import document
from elastic_launcher.workdir import WorkDirError, read_document, read_job_document


class JobFolder:
    """Follows the events of all jobs in a folder.

    Args:
        path: It need not be there.

    Attributes:
        unreadable: Why a folder's job could not be read the last time, by the folder's name.
    """

    def __init__(self, path: Path) -> None:
        self.unreadable: dict[str, str] = {}
        self._path = path
        self._jobs: dict[Path, _Followed] = {}

    def jobs(self) -> tuple[Job, ...]:
        """Returns the report of each job as it is now.

        A job whose events can't be read keeps its last report.

        Raises:
            OSError: If the folder can't be listed.
        """
        there = (
            [path for path in sorted(self._path.iterdir()) if Layout(path).job.exists()] if self._path.exists() else []
        )
        self._jobs = {path: self._jobs.get(path) or _Followed(path) for path in there}
        self.unreadable = {}
        for followed in self._jobs.values():
            try:
                followed.read()
            except (OSError, EventError, ReportError, WorkDirError) as error:
                self.unreadable[followed.name] = str(error)
        return tuple(followed.job for followed in self._jobs.values() if followed.job is not None)


class _Followed:
    """One job's work directory."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.job: Job | None = None
        self._layout = Layout(path)
        self._id: object = None
        self._state = JobState()
        self._events = EventFollower(self._layout.events)

    def read(self) -> None:
        document = read_job_document(self._layout)
        if document.get("id") != self._id:  # another job has taken the folder
            self._id, self._state = document.get("id"), JobState()
            self._events = EventFollower(self._layout.events)
        for event in self._events.poll():
            self._state = advance(self._state, event)
        self.job = job_of(self._status(document))

    def _status(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        control = read_document(self._layout.control)
        return document(
            self._state, job, control, alive=launcher_lives({**self._state.started, **job}), now=time.time()
        )
