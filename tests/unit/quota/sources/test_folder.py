"""The jobs of a folder are read as they go on; what can't be read keeps its last report."""

from __future__ import annotations

from pathlib import Path

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


def test_a_job_that_can_not_be_read_keeps_its_last_report_and_is_named(tmp_path: Path) -> None:
    work_dir = tmp_path / "bert"
    histories.write_job(histories.write(histories.resized().events[:3], work_dir))
    folder = JobFolder(tmp_path)
    before = folder.jobs()
    with open(work_dir / "events.jsonl", "a") as file:
        file.write('{"v":99,"kind":"x","time":1,"generation":1}\n')
    assert folder.jobs() == before
    assert list(folder.unreadable) == ["bert"]
    assert "use a newer one" in folder.unreadable["bert"]


def test_a_job_document_with_a_field_of_another_type_stops_no_other_job(tmp_path: Path) -> None:
    for name in ("bert", "resnet"):
        histories.write_job(histories.write(histories.resized().events[:3], tmp_path / name))
    (tmp_path / "bert" / "job.json").write_text('{"id": "bert-1", "created": "x"}')
    folder = JobFolder(tmp_path)
    assert len(folder.jobs()) == 1
    assert "\"created\" is 'x'; it must be a number" in folder.unreadable["bert"]
