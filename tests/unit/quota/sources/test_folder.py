"""The jobs of a folder are read as they go on; what can't be read keeps its last report."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

import pytest

from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.ledger import Account, Ledger
from elastic_launcher.quota.rounds.round import decide
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.sources.folder import JobFolder
from tests.support import histories


def test_a_job_is_reported_as_its_events_come(tmp_path: Path) -> None:
    story = histories.resized()
    work_dir = tmp_path / "bert"
    histories.write_job(histories.write(story.events[:3], work_dir))
    folder = JobFolder(tmp_path)
    (before,) = folder.jobs()
    histories.write(story.events, work_dir)
    (after,) = folder.jobs()
    assert (before.finished, after.finished) == (False, True)
    assert (after.minimum, after.maximum, after.held) == (1, 3, 0)


def test_another_job_in_the_same_folder_is_read_from_its_beginning(tmp_path: Path) -> None:
    work_dir = histories.write_job(histories.write(histories.resized().events, tmp_path / "bert"))
    folder = JobFolder(tmp_path)
    (before,) = folder.jobs()
    other = histories.Story(job_id="gpt-1", name="gpt")
    histories.write_job(histories.write(other.events, work_dir), id="gpt-1")
    (after,) = folder.jobs()
    assert (before.id, before.finished) == ("bert-20261121-063320-1f2e", True)
    assert (after.id, after.finished) == ("gpt-1", False)


def test_a_folder_that_is_not_there_has_no_jobs(tmp_path: Path) -> None:
    assert JobFolder(tmp_path / "none").jobs() == ()


def test_files_and_folders_that_are_no_jobs_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "hints.json").write_text("{}")
    assert JobFolder(tmp_path).jobs() == ()


def append(work_dir: Path, line: str) -> None:
    with open(work_dir / "events.jsonl", "a") as file:
        file.write(line + "\n")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"v":99,"kind":"x","time":1,"generation":1}', "use a newer one"),
        ('{"v":1,"kind":"generation_formed","time":1,"generation":1,"members":[5]}', '"members" is [5]; it must be'),
    ],
)
def test_a_job_that_can_not_be_read_keeps_its_last_report_and_is_named(tmp_path: Path, line: str, why: str) -> None:
    work_dir, events = tmp_path / "bert", histories.resized().events
    histories.write_job(histories.write(events[:3], work_dir))
    folder = JobFolder(tmp_path)
    before = folder.jobs()
    append(work_dir, line)
    for event in events[3:5]:  # what comes after a line that was not read can't be understood
        assert folder.jobs() == before
        assert why in folder.unreadable["bert"]
        assert folder.unreadable["bert"].endswith("; what was known of it holds")
        append(work_dir, event.to_line().strip())
    (work_dir / "job.json").write_text("")
    assert folder.jobs() == before
    assert folder.unreadable["bert"] == "job.json can't be read; what was known of it holds"


@pytest.mark.parametrize("config", [[1], {"min_nodes": "2", "max_nodes": 3}, {"match": 5}])
def test_a_folder_with_values_that_no_launcher_writes_keeps_no_other_job_from_being_read(
    tmp_path: Path, config: object
) -> None:
    for name in ("bert", "gpt"):
        histories.write_job(histories.write(histories.Story(job_id=name).events, tmp_path / name), id=name)
    histories.write_job(tmp_path / "bert", id="bert", config=config)
    folder = JobFolder(tmp_path)
    assert [job.id for job in folder.jobs()] == ["gpt"]
    assert folder.unreadable["bert"].endswith("; what it holds is not known")


def test_of_a_folder_and_its_copy_that_counts_in_which_something_happened_last(tmp_path: Path) -> None:
    events = histories.resized().events
    histories.write_job(histories.write(events[:-1], tmp_path / "bert"))
    histories.write_job(histories.write(events[:3], tmp_path / "a-copy"))
    folder = JobFolder(tmp_path)
    assert [job.held for job in folder.jobs()] == [2]
    assert list(folder.unreadable) == ["a-copy"]
    assert folder.unreadable["a-copy"].startswith("bert has the same job, bert-20261121-063320-1f2e, and counts")


def test_a_copy_of_a_folder_counts_at_no_moment(tmp_path: Path) -> None:
    work_dir = tmp_path / "bert"
    histories.write_job(histories.write(histories.resized().events[:-1], work_dir), path=str(work_dir))
    shutil.copytree(work_dir, tmp_path / "a-copy")  # all of it, to the last event
    folder = JobFolder(tmp_path)
    assert [job.held for job in folder.jobs()] == [2]
    assert list(folder.unreadable) == ["a-copy"]


@pytest.mark.parametrize("moved", [-3600.0, 3600.0])
def test_nodes_without_a_launcher_hold_gpus_for_their_time_however_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: float
) -> None:
    events = histories.resized().events[:-1]
    patience = {"config": {"min_nodes": 1, "max_nodes": 3, "orphan_timeout": 60, "grace_period": 15}}
    histories.write_job(histories.write(events, tmp_path / "bert"), host=socket.gethostname(), pid=1 << 30, **patience)
    wall, passed = [events[-1].time + 1.0], [500.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    folder = JobFolder(tmp_path)
    assert [job.held for job in folder.jobs()] == [2]
    held = []
    for seconds in (70.0, 10.0):
        wall[0] += seconds + moved
        passed[0] += seconds
        held += [job.held for job in folder.jobs()]
    assert held == [2, 0]


def test_a_job_whose_report_another_controller_could_read_last_counts_with_what_it_was_promised(tmp_path: Path) -> None:
    work_dir = histories.write_job(histories.write(histories.resized().events[:3], tmp_path / "bert"))
    append(work_dir, '{"v":99,"kind":"x","time":1,"generation":1}')
    account = Account("nlp", allowed=3, outstanding=4, generation=7, held=4, reported_at=5.0)
    folder = JobFolder(tmp_path, {"bert-20261121-063320-1f2e": account})
    for _ in range(2):
        (job,) = folder.jobs()
        assert (job.sizes, job.held, job.finished) == ((3,), 4, False)
    decision = decide(World(4, (job,)), Projects((Project("nlp"),)), Ledger(7, {job.id: account}), 10.0)
    assert (decision.grants[0].allowed, decision.grants[0].holds, decision.changes) == (3, 4, ())


def test_a_job_document_with_a_field_of_another_type_stops_no_other_job(tmp_path: Path) -> None:
    for name in ("bert", "resnet"):
        histories.write_job(histories.write(histories.resized().events[:3], tmp_path / name))
    (tmp_path / "bert" / "job.json").write_text('{"id": "bert-1", "created": "x"}')
    folder = JobFolder(tmp_path)
    assert len(folder.jobs()) == 1
    assert "\"created\" is 'x'; it must be a number" in folder.unreadable["bert"]
