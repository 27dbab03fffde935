"""The jobs of one machine: a folder in which each job has its work directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elastic_launcher.events import EventError, EventFieldError, EventFollower
from elastic_launcher.host.layout import Layout
from elastic_launcher.quota.jobs import Job, job_of
from elastic_launcher.quota.rounds.ledger import Account
from elastic_launcher.report.state import JobState, advance
from elastic_launcher.report.status import document
from elastic_launcher.workdir import copied_from, lives, read_document, read_job_document

_UNUSABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What reading a job can raise: its folder is its user's, and may hold values that no launcher writes."""


class JobFolder:
    """Follows the events of all jobs in a folder.

    Args:
        path: It need not be there.
        known: What a controller before this one has promised to jobs, by their ids: until its report can be used, a job
            counts with that.

    Attributes:
        unreadable: Why a folder's job could not be read the last time, by the folder's name.
    """

    def __init__(self, path: Path, known: Mapping[str, Account] = MappingProxyType({})) -> None:
        self.unreadable: dict[str, str] = {}
        self._path = path
        self._known = known
        self._jobs: dict[Path, _Followed] = {}

    def jobs(self) -> tuple[Job, ...]:
        """Returns the report of each job as it is now.

        A job whose events can't be read keeps its last report. Of folders with the same job, as of a copy of one,
        that counts which is no copy, or else in which something happened last.

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
            except _UNUSABLE as error:
                if followed.job is None and (account := self._known.get(followed.id)):
                    followed.job = _as_promised(followed.id, account)
                kept = "what it holds is not known" if followed.job is None else "what was known of it holds"
                self.unreadable[followed.name] = f"{_reason(error)}; {kept}"
        newest: dict[str, _Followed] = {}
        for followed in sorted(self._jobs.values(), key=lambda one: (one.is_copy, -one.last_at)):
            if followed.job is None:
                continue
            other = newest.setdefault(followed.job.id, followed)
            if other is not followed:
                self.unreadable[followed.name] = (
                    f"{other.name} has the same job, {followed.job.id}, and counts; remove the copy of its folder"
                )
        return tuple(one.job for one in self._jobs.values() if one.job and newest[one.job.id] is one)


def _as_promised(name: str, account: Account) -> Job | None:
    """Returns a job of which no more is known than what it was promised; None where that is nothing."""
    size = account.allowed or account.committed
    if not size:
        return None
    return Job(
        id=name,
        match={"id": name, "project": account.project},
        minimum=size,
        maximum=size,
        sizes=(size,),
        priority=0,
        submitted_at=0.0,
        held=account.held,
        following=None,
        following_generation=None,
        waits=0.0,
        speeds={},
        steps_left=None,
        start_seconds=None,
        changes=0,
        service=0.0,
        training_since=None,
        finished=False,
        reported_at=account.reported_at,
    )


def _reason(error: Exception) -> str:
    """Returns what is wrong, also where only Python has a word for it."""
    if isinstance(error, OSError) or type(error).__module__.startswith("elastic_launcher"):
        return str(error)
    return f"job.json or events.jsonl has a value that no launcher writes ({type(error).__name__}: {error})"


def _refuse_foreign(_: int, error: EventError) -> None:
    """Refuses a line that somebody has edited; one that a full disk has torn is left out."""
    if isinstance(error, EventFieldError):
        raise error


class _Followed:
    """One job's work directory.

    Attributes:
        name: Its name.
        job: The last report of its job.
        is_copy: Whether the job is in another folder, of which this is a copy.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.job: Job | None = None
        self.is_copy = False
        self._layout = Layout(path)
        self._id: object = None
        self._state = JobState()
        self._events = EventFollower(self._layout.events)
        self._broken: Exception | None = None
        self._gone: tuple[float, float] | None = None  # the last event, and when that was by the monotonic clock

    @property
    def id(self) -> str:
        """The job's id; empty where it is not known."""
        return str(self._id or "")

    @property
    def last_at(self) -> float:
        """When something happened last, in seconds since the epoch."""
        return self._state.last_at

    def read(self) -> None:
        document = read_job_document(self._layout)
        if not document and self.job is not None:
            raise OSError("job.json can't be read")
        self.is_copy = copied_from(self._layout, document) is not None
        if document.get("id") != self._id:  # another job has taken the folder
            self._id, self._state = document.get("id"), JobState()
            self._events, self._broken = EventFollower(self._layout.events), None
        if self._broken is not None:
            raise self._broken
        try:
            for event in self._events.poll(_refuse_foreign):
                self._state = advance(self._state, event)
        except OSError:
            raise
        except _UNUSABLE as error:  # what follows it builds on events that are not known
            self._broken = error
            raise
        self.job = job_of(self._status(document))

    def _status(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        control, alive = read_document(self._layout.control), lives(self._layout, {**self._state.started, **job})
        return document(self._state, job, control, alive=alive, now=self._now(alive))

    def _now(self, alive: bool | None) -> float:
        """Returns the time of day; after a launcher's end, by a clock that nobody sets, how long that is ago."""
        last = self._state.last_at
        if alive is not False or self._state.finished is not None:
            self._gone = None
            return time.time()
        if self._gone is None or self._gone[0] != last:  # seen for the first time, or it came back for a moment
            self._gone = last, time.monotonic() - max(0.0, time.time() - last)
        return last + time.monotonic() - self._gone[1]
