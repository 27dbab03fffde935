"""The controller writes hints when something changes or their time runs out, and says what it did once."""

from __future__ import annotations

import json
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.hints.stores import FilePlace
from elastic_launcher.quota.controller import Controller, ProjectsFile
from elastic_launcher.quota.history import append, read
from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Capacity, Projects, QuotaError
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.serve import Machine, serve
from elastic_launcher.quota.sources.folder import JobFolder
from tests.support.quota_jobs import job

DOCUMENT = "apiVersion: elastic-quota/v1\nttlSeconds: 90\nprojects:\n- {name: nlp, guaranteed: 2}\n"


class Source:
    """Jobs that a test sets."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = jobs
        self.error: OSError | None = None

    def projects(self, document: Projects) -> Projects:
        return document

    def world(self, projects: Projects) -> World:
        if self.error is not None:
            raise self.error
        return World(4, self.jobs)


class Served:
    """A controller of one folder, with a clock of its own."""

    def __init__(self, folder: Path, *jobs: Job) -> None:
        self.projects, self.hints, self.rows = folder / "projects.yaml", folder / "hints.json", folder / "history"
        self.projects.write_text(DOCUMENT)
        self.source, self.said, self.now = Source(*jobs), [], 1000.0
        self.controller = self.another()

    def another(self) -> Controller:
        document = ProjectsFile(self.projects, self.said.append)
        place = FilePlace(self.hints)
        return Controller(document, self.source, place, partial(append, self.rows), self.said.append, lambda: self.now)

    def document(self) -> dict[str, Any]:
        return json.loads(self.hints.read_text())


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path, job("bert"))


def test_a_change_is_written_said_and_recorded_once(served: Served) -> None:
    served.controller.round()
    served.controller.round()
    reason = "0 → 4 GPUs: 2 of them are guaranteed to project nlp, 2 are free"
    assert served.said == [f"bert: {reason}"]
    assert [(row["job"], row["after"], row["reason"], row["time"]) for row in read(served.rows)] == [
        ("bert", 4, reason, 1000.0)
    ]
    assert served.document()["generation"] == 1


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_the_loop_of_a_machine_goes_on_after_hints_that_can_not_be_written(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, looks = threading.Event(), count()

    def watched() -> int:
        look = next(looks)
        if look == 2:  # the loop has begun another round
            stop.set()
        return look

    monkeypatch.setattr(FilePlace, "edit", full)
    serve(served.controller, watched, stop)
    assert stop.is_set()
    assert served.said[-1] == "no round: [Errno 28] No space left on device"


def test_changes_that_can_not_be_recorded_are_recorded_as_soon_as_they_can(served: Served) -> None:
    record, served.controller.record = served.controller.record, full
    served.controller.round()
    served.controller.round()
    assert served.document()["hints"][0]["gpus"]["allowed"] == 4
    assert served.said[1:] == [
        "changes are not in the history until it can be written: [Errno 28] No space left on device"
    ]
    served.controller.record, served.now = record, 1010.0
    served.controller.round()
    served.controller.round()
    assert [(row["job"], row["after"], row["time"]) for row in read(served.rows)] == [("bert", 4, 1000.0)]


def test_hints_are_renewed_before_their_time_is_over(served: Served) -> None:
    served.controller.round()
    served.now += 29
    served.controller.round()
    assert served.document()["generation"] == 1
    served.now += 2
    served.controller.round()
    assert (served.document()["generation"], served.document()["observedAt"]) == (2, "1970-01-01T00:17:11.000Z")


def test_another_controller_goes_on_without_a_change(served: Served) -> None:
    served.controller.round()
    before = served.document()["hints"]
    served.another().round()
    assert served.document()["hints"] == before
    assert len(served.said) == 1


def test_a_job_that_is_taken_over_gets_an_entry_at_once(served: Served) -> None:
    served.source.jobs = (job("running", held=4, following=4, following_generation=None),)
    served.controller.round()
    assert served.document()["hints"][0]["gpus"]["allowed"] == 4


def test_the_last_good_projects_document_holds_and_a_broken_one_is_said_once(served: Served) -> None:
    served.projects.write_text(DOCUMENT.replace("guaranteed", "guarantied"))
    served.controller.round()
    served.controller.round()
    assert [line for line in served.said if "last good document" in line] == [
        f'{served.projects}: line 4: "guarantied" is unknown (projects[0].guarantied); it must be one of name, parent, '
        "guaranteed, limit, weight, priority, minRunSeconds, waitSeconds, gracePeriodSeconds, match; did you mean "
        '"guaranteed"?; the last good document stays in force'
    ]
    assert served.document()["hints"][0]["gpus"] == {"guaranteed": 2, "allowed": 4}
    served.projects.write_text(DOCUMENT.replace("2}", "3}"))
    served.controller.round()
    assert served.document()["hints"][0]["gpus"]["guaranteed"] == 3
    again = f"{served.projects}: good again, and in force"
    assert served.said[-1] == again
    served.projects.write_text(DOCUMENT)
    served.controller.round()
    assert served.said.count(again) == 1, "it was good before"


@pytest.mark.parametrize("capacity", ["", "capacity: {kueue: {}}\n", "capacity: {autoscale: {max: 8}}\n"])
def test_a_projects_document_that_a_machine_can_not_use_leaves_the_last_good_one_in_force(
    tmp_path: Path, capacity: str
) -> None:
    path, said = tmp_path / "projects.yaml", list[str]()
    path.write_text(DOCUMENT + capacity)
    machine = Machine(JobFolder(tmp_path), None, said.append)
    with pytest.raises(QuotaError):
        ProjectsFile(path, said.append, accept=machine.accept)
    path.write_text(DOCUMENT + "capacity: {gpus: 4}\n")
    projects = ProjectsFile(path, said.append, accept=machine.accept)
    path.write_text(DOCUMENT + capacity)
    for _ in range(2):
        assert projects.read().capacity == Capacity(gpus=4)
    assert [line.endswith("the last good document stays in force") for line in said] == [True]


def test_hints_that_somebody_broke_are_left_alone_and_said_once(served: Served) -> None:
    served.hints.write_text("{")
    served.controller.round()
    served.controller.round()
    assert served.hints.read_text() == "{"
    assert len(served.said) == 1
    assert served.said[0].startswith("no round: ")


@pytest.mark.thorough
def test_the_hints_of_thousands_of_jobs_that_wait_stay_within_what_a_document_may_have(served: Served) -> None:
    bert = job("bert", held=4, following=4, submitted_at=-1.0)
    served.source.jobs = (bert, *(job(f"job-{number:04}", least=4) for number in range(5000)))
    served.controller.round()
    assert served.hints.stat().st_size <= 2**20
    assert list(served.document()["source"]["ledger"]["accounts"]) == ["bert"], "the others are promised nothing"
    before = served.document()["hints"]
    decision = served.another().round()
    assert decision is not None and not decision.changes
    assert served.document()["hints"] == before


def test_hints_that_are_too_large_all_the_same_are_not_written_and_that_is_said_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_launcher.quota.hint_document.MAX_BYTES", 100)
    assert [served.controller.round(), served.controller.round()] == [None, None]
    assert not served.hints.exists()
    (line,) = served.said
    assert line.startswith("no round: the hints would have ")
    assert line.endswith(" at most; divide the namespaces among several controllers (--namespace)")


def test_no_round_is_made_of_what_can_not_be_read(served: Served) -> None:
    served.source.error = OSError("the folder is gone")
    assert served.controller.round() is None
    assert served.said == ["no round: the folder is gone"]
    served.source.error = None
    assert served.controller.round() is not None


def test_a_projects_document_that_is_broken_at_the_start_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "projects.yaml"
    path.write_text("projects: []")
    with pytest.raises(QuotaError, match="apiVersion"):
        ProjectsFile(path, print)
