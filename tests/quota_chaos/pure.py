"""The controller without a cluster: rounds on documents in memory, and a clock that only the history moves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_launcher.hints.document import API_VERSION
from elastic_launcher.hints.edit import Change as EditText
from elastic_launcher.quota.controller import Controller, ProjectsFile
from elastic_launcher.quota.jobs import Job, ReportError, job_of
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.round import Change, Decision
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.serve import ROUND_SECONDS, gpus_of
from tests.quota_chaos.game import Edit
from tests.quota_chaos.judge import Judge
from tests.quota_chaos.players import Player
from tests.support.quota_reports import BEGAN


@dataclass
class Document:
    """A document in memory, as the controller reads and edits it."""

    name: str
    text: str = ""

    def read(self) -> str:
        """Returns it."""
        return self.text

    def read_bytes(self) -> bytes:
        """Returns it."""
        return self.text.encode()

    def edit(self, change: EditText) -> None:
        """Changes it."""
        self.text = change(self.text)

    def __str__(self) -> str:
        return self.name


@dataclass
class Reports:
    """What the controller sees of jobs: of each the last report that can be used."""

    jobs: dict[str, Job] = field(default_factory=dict)
    pods: Mapping[str, int] = field(default_factory=dict)
    stale: bool = False

    def projects(self, document: Projects) -> Projects:
        """Returns the document as it is: no queues are projects."""
        return document

    def world(self, projects: Projects) -> World:
        """Returns what is there."""
        return World(gpus_of(projects, None), tuple(self.jobs.values()), dict(self.pods), stale=self.stale)


class PureStage:
    """One controller; see `game.Stage`."""

    grow_after = 60.0
    grace = 30.0
    rest = 9  # rounds of 30 s: until a job that keeps GPUs is overdue, both times above again, and two rounds more

    def __init__(self) -> None:
        self.now = BEGAN
        self._projects = Document("projects.yaml")
        self._hints = Document("hints.json")
        self._reports = Reports()
        self._changes: list[Change] = []
        self._controller: Controller | None = None

    def report(self, player: Player, status: Mapping[str, Any]) -> None:
        """Lets a report arrive; what can't be used leaves the one before."""
        try:
            self._reports.jobs[player.name] = job_of(status)
        except ReportError:
            return

    def end(self, player: Player) -> None:
        """Removes a job."""
        self._reports.jobs.pop(player.name, None)

    def write_projects(self, text: str) -> None:
        """Writes the projects document."""
        self._projects.text = text

    def edit_hints(self, edit: Edit) -> None:
        """Edits the entries of the hints by hand."""
        found = json.loads(self._hints.text or json.dumps({"apiVersion": API_VERSION, "hints": []}))
        self._hints.text = json.dumps({**found, "hints": edit(found["hints"])})

    def restart(self) -> None:
        """Replaces the controller by another one, which is given the last good projects document."""
        kept = None if self._controller is None else self._controller.projects.in_force
        projects = ProjectsFile(self._projects, _nobody, kept)
        self._controller = Controller(projects, self._reports, self._hints, self._record, _nobody, lambda: self.now)

    def round(self, pods: Mapping[str, int], stale: bool, judge: Judge, projects: Projects) -> Decision | None:
        """Decides twice: with nothing changing, the second round changes nothing."""
        if self._controller is None:
            self.restart()
        assert self._controller is not None
        self.now += ROUND_SECONDS
        self._reports.pods, self._reports.stale = pods, stale
        self._changes.clear()
        assert self._controller.round() is not None, "no round was made"
        judge.apart(self._changes, projects, self.now)
        decision = self._controller.round()
        assert decision is not None, "no second round was made"
        assert not decision.changes, f"the second round changes more: {decision.changes[0]}"
        return decision

    def document(self) -> str:
        """Returns the hints."""
        return self._hints.text or json.dumps({"apiVersion": API_VERSION, "hints": []})

    def _record(self, changes: tuple[Change, ...], now: float) -> None:
        self._changes += changes


def _nobody(line: str) -> None:
    """Takes what nobody reads."""
