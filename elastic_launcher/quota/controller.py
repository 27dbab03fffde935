"""Runs rounds: reads what is there, decides, writes the hints, and records what changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from elastic_launcher.hints import HintError
from elastic_launcher.hints.stores import HintPlace
from elastic_launcher.quota.hint_document import Written, hint_document, read_written, text_of, with_entries_by_hand
from elastic_launcher.quota.problems import Problems
from elastic_launcher.quota.projects import Projects, QuotaError
from elastic_launcher.quota.projects_document import parse_projects
from elastic_launcher.quota.rounds.round import Change, Decision, decide
from elastic_launcher.quota.rounds.world import World

REFRESHES = 3
"""How often the hints are written before their time is over, if nothing changes."""


class Source(Protocol):
    """Where capacity and jobs are read."""

    def projects(self, document: Projects) -> Projects:
        """Returns all projects: those of the document, with queues that are projects too.

        Raises:
            OSError: If queues are, and nothing is known of them yet.
            QuotaError: If they can't be put together.
        """

    def world(self, projects: Projects) -> World:
        """Returns what is there, without the entries written by hand.

        Raises:
            OSError: If nothing is known yet.
        """


class ProjectsPlace(Protocol):
    """Where the projects document is: a path, for example. As a text, it is the place's name in messages."""

    def read_bytes(self) -> bytes:
        """Returns the document.

        Raises:
            OSError: If it can't be read.
        """


class ProjectsFile:
    """The projects document; the last good one holds.

    Args:
        path: Where it is.
        say: Takes a line for the log.
        kept: The document that was in force before this process began, or None if none is known.
        accept: Raises `QuotaError` for projects that can't be used here.

    Attributes:
        in_force: The last good document.

    Raises:
        QuotaError: If the document can't be used at first, and none was kept.
        OSError: If it can't be read at first, and none was kept.
    """

    def __init__(
        self,
        path: ProjectsPlace,
        say: Callable[[str], None],
        kept: bytes | None = None,
        accept: Callable[[Projects], object] = lambda _: None,
    ) -> None:
        self._path = path
        self._say = say
        self._accept = accept
        self._text = self.in_force = path.read_bytes() if kept is None else kept
        self._projects = self._parsed(self._text)
        if kept is None:
            self._warn()
        else:
            self.read()

    def read(self) -> Projects:
        """Returns the newest good document."""
        try:
            text = self._path.read_bytes()
        except OSError as error:
            text = str(error).encode()
            self._refuse(text, error)
            return self._projects
        if text != self._text:
            try:
                self._projects = self._parsed(text)
            except QuotaError as error:
                self._refuse(text, error)
                return self._projects
            if self._text != self.in_force:
                self._say(f"{self._path}: good again, and in force")
            self._text = self.in_force = text
            self._warn()
        return self._projects

    def _parsed(self, text: bytes) -> Projects:
        projects = parse_projects(text)
        self._accept(projects)
        return projects

    def _warn(self) -> None:
        for warning in self._projects.warnings:
            self._say(f"{self._path}: {warning}")

    def _refuse(self, text: bytes, error: Exception) -> None:
        if text != self._text:
            self._say(f"{self._path}: {error}; the last good document stays in force")
            self._text = text


@dataclass(frozen=True, slots=True)
class Made:
    """A round that was made.

    Attributes:
        projects: The projects document.
        world: What was there.
        decision: The outcome.
    """

    projects: Projects
    world: World
    decision: Decision


def _unmeasured(_seconds: float, _made: Made | None) -> None:
    """Takes no round."""


@dataclass(slots=True)
class Controller:
    """Decides what the jobs of one source may hold.

    Attributes:
        projects: The projects document.
        source: Where capacity and jobs are read.
        place: Where the hints are written.
        record: Takes the changes of a round, and their time in seconds since the epoch.
        say: Takes a line for the log.
        clock: Seconds since the epoch.
        measure: Takes what each round took, in seconds, and the round; None for one that something kept from deciding.
    """

    projects: ProjectsFile
    source: Source
    place: HintPlace
    record: Callable[[tuple[Change, ...], float], None]
    say: Callable[[str], None]
    clock: Callable[[], float]
    measure: Callable[[float, Made | None], None] = _unmeasured
    _problems: Problems = field(init=False)
    _record_problems: Problems = field(init=False)
    _unrecorded: list[tuple[tuple[Change, ...], float]] = field(default_factory=list)
    _refused: Mapping[str, str] = field(default_factory=dict)
    _written_at: float = 0.0

    def __post_init__(self) -> None:
        self._problems, self._record_problems = Problems(self.say), Problems(self.say)

    def round(self) -> Decision | None:
        """Makes one round; None if something kept it from deciding, which is logged once.

        Raises:
            OSError: If the hints can't be written.
        """
        began = time.perf_counter()
        made = None
        try:
            made = self._made()
        finally:
            self.measure(time.perf_counter() - began, made)
        return None if made is None else made.decision

    def _made(self) -> Made | None:
        document = self.projects.read()
        try:
            projects = self.source.projects(document)
            world = self.source.world(projects)
            written = read_written(self._read())
            decision, found = self._next(projects, world, written)
        except (OSError, HintError, QuotaError) as error:
            self._problems.tell(f"no round: {error}")
            return None
        for name, why in decision.refused.items():
            if self._refused.get(name) != why:
                self.say(f"{name}: {why}")
        self._refused = decision.refused
        if self._is_due(projects) or found["hints"] != written.hints:
            try:
                decision = self._write(projects, world)
            except HintError as error:  # somebody has edited the document meanwhile, or it would be too large
                self._problems.tell(f"no round: {error}")
                return None
        self._problems.clear()
        self._record()
        return Made(projects, world, decision)

    def _read(self) -> str | bytes:
        try:
            return self.place.read()
        except FileNotFoundError:
            return ""

    def _is_due(self, projects: Projects) -> bool:
        return not 0 <= self.clock() - self._written_at < projects.ttl_seconds / REFRESHES

    def _next(self, projects: Projects, world: World, written: Written) -> tuple[Decision, dict[str, Any]]:
        """Returns what follows from the hints that are there, and the hints that say so."""
        now = self.clock()
        world = with_entries_by_hand(world, written.by_hand, now)
        decision = decide(world, projects, written.ledger, now)
        return decision, hint_document(written, decision, projects, now=now)

    def _write(self, projects: Projects, world: World) -> Decision:
        """Writes the hints; the decision is made again from what is there now, which others may have edited."""
        made: list[Decision] = []

        def change(text: str | bytes) -> str:
            decision, found = self._next(projects, world, read_written(text))
            made.append(decision)
            return text_of(found)

        self.place.edit(change)
        self._written_at = self.clock()
        self._tell(made[-1].changes, self._written_at)
        return made[-1]

    def _tell(self, changes: tuple[Change, ...], now: float) -> None:
        for change in changes:
            self.say(f"{change.job}: {change.reason}")
        if changes:
            self._unrecorded.append((changes, now))

    def _record(self) -> None:
        """Records the changes; those that can't be recorded now stay for the next round."""
        try:
            while self._unrecorded:
                self.record(*self._unrecorded[0])
                del self._unrecorded[0]
        except OSError as error:
            self._record_problems.tell(f"changes are not in the history until it can be written: {error}")
        else:
            self._record_problems.clear()
