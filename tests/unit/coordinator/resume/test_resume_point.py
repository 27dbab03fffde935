"""What a job goes on from is the newest checkpoint that is whole and its own; what can't be used is said."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.checkpoint import Fenced
from elastic_launcher.checkpoint.store import open_store
from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.resume.resume_point import Origin, find_origin, own_term
from elastic_launcher.host.transient import StoreAway, may_pass
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Layout, Past, claim, write_json
from tests.support.checkpoints import JOB, names, save

CONFIG = JobConfig(script="jobs/train.py", arguments=("--lr", "0.1"))
PAST = Past(term=2)


def look(folder: Path, config: JobConfig = CONFIG) -> tuple[Origin, list[str]]:
    said: list[str] = []
    return find_origin(config, Layout(folder), PAST, said.append), said


def test_a_new_job_begins_and_nothing_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    assert find_origin(CONFIG, Layout(tmp_path), Past(), said.append) == Origin()
    assert said == []


def test_a_job_that_had_saved_nothing_starts_from_the_beginning(tmp_path: Path) -> None:
    origin, said = look(tmp_path)
    assert origin.folder is None
    assert said == ["this job had saved nothing: it trains from the beginning"]


def test_the_newest_is_taken_and_earlier_terms_are_shut_out(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    path = save(folder, 10)
    origin, said = look(tmp_path)
    assert origin.folder == path
    assert said == [f"this job resumes from step 10, saved in {path}"]
    with pytest.raises(Fenced):
        save(folder, 11, generation=9)


def test_a_folder_that_another_job_has_begun_in_at_once_starts_nothing(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 10, term=2, job_id="digits-y")
    with pytest.raises(ConfigError, match="checkpoints in .* can't be written: job digits-y owns .*, in term 2"):
        look(tmp_path)


def test_a_job_whose_work_directory_was_lost_goes_on_above_the_terms_before(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 10, term=3, job_id="digits-y")
    with claim(replace(CONFIG, work_dir=str(tmp_path)), tmp_path) as work_dir:
        past = own_term(CONFIG, work_dir.layout, work_dir.past)
        assert past.term == 4
        find_origin(CONFIG, work_dir.layout, past, lambda line: None)
        save(tmp_path / "checkpoints", 11, term=4, job_id=work_dir.job_id)


def test_a_term_is_not_guessed_where_the_pointer_can_not_be_read(tmp_path: Path) -> None:
    pointer = tmp_path / "checkpoints" / "latest.json"
    save(pointer.parent, 10, term=3)
    pointer.unlink()
    pointer.symlink_to(pointer)
    with pytest.raises(OSError, match=str(pointer)):
        own_term(CONFIG, Layout(tmp_path), Past())


def test_a_damaged_one_is_said_and_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    first, second = save(folder, 10), save(folder, 20)
    (second / "state.json").write_text("")
    origin, said = look(tmp_path)
    assert origin.folder == first
    assert said[0].startswith(f"{second}/state.json is cut short")
    assert said[0].endswith("; the checkpoint before it is used instead")
    assert names(folder) == ["damaged-step-00000020", "latest.json", "step-00000010"]


def test_one_that_the_disk_does_not_give_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save(folder, 10)
    path = save(folder, 20) / "state.json"
    path.unlink()
    path.symlink_to(path)
    there = names(folder)
    with pytest.raises(ConfigError, match=f"checkpoints in {folder} can't be read: .*; once they can, the same"):
        look(tmp_path)
    assert names(folder) == there


def refuse(error: OSError) -> Any:
    def call(*arguments: Any, **more: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("call", ["find_newest", "raise_fence"])
@pytest.mark.parametrize(
    ("code", "away"), [(errno.ESTALE, True), (errno.EIO, True), (errno.ENOSPC, True), (errno.EACCES, False)]
)
def test_a_folder_that_may_be_there_again_in_a_moment_is_told_from_one_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, away: bool
) -> None:
    store = type(open_store(None, tmp_path))
    monkeypatch.setattr(store, call, refuse(OSError(code, os.strerror(code))))
    with pytest.raises(ConfigError, match=f"can't be (read|written): .*{os.strerror(code)}") as refused:
        look(tmp_path)
    assert isinstance(refused.value, StoreAway) == away


@pytest.mark.parametrize(("cause", "away"), [(PermissionError("403"), False), (ConnectionError("reset"), True)])
def test_a_store_that_may_answer_in_a_moment_is_told_from_one_that_refuses(cause: Exception, away: bool) -> None:
    error = OSError("s3://bucket: it does not answer")
    error.__cause__ = cause
    assert may_pass(error) == away


def begin(folder: Path, code: str, data: str, **more: object) -> None:
    """Writes what the launcher says of a job that runs and reads other things than that of the checkpoints."""
    document = {"id": "digits", "config": CONFIG.to_dict(), "content": {"code": [code], "data": data}}
    write_json(folder / "job.json", document | more)


def test_a_checkpoint_of_other_code_is_refused_unless_that_is_accepted(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 10)
    begin(tmp_path, "train.py 9e9e", "s3://a")
    with pytest.raises(ConfigError, match="the code is 'train.py 1a2b' there and 'train.py 9e9e' here .--accept-ch"):
        look(tmp_path)
    assert look(tmp_path, replace(CONFIG, accept_changes="script"))[0].manifest is not None


def test_what_a_job_that_was_done_before_has_saved_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save(folder, 10)
    begin(tmp_path, "train.py 9e9e", "s3://b", follows_another=True)
    assert look(tmp_path)[0].folder is None
    save(folder, 4, term=8, job=replace(JOB, code=("train.py 9e9e",), data="s3://b"))
    found = find_origin(CONFIG, Layout(tmp_path), Past(term=9), [].append).manifest
    assert found is not None and found.step == 4, "what it has saved itself"


@pytest.mark.parametrize(
    ("job", "config", "said"),
    [
        (replace(JOB, script="other.py"), CONFIG, "the script is other.py there and train.py here"),
        (
            replace(JOB, arguments=()),
            CONFIG,
            "the script's arguments is none there and '--lr' '0.1' here .--accept-changes arguments goes on .*",
        ),
        (
            JOB,
            replace(CONFIG, global_batch_size=65),
            "the global batch size is 64 there and 65 here .--accept-changes global-batch-size goes on all the same, "
            "and gives up: up to one batch of samples is seen twice in this epoch.",
        ),
    ],
)
def test_when_none_can_be_used_nothing_is_started(tmp_path: Path, job: object, config: JobConfig, said: str) -> None:
    save(tmp_path / "checkpoints", 10, job=job)
    with pytest.raises(ConfigError, match=f"no checkpoint in .* can be used: .* of another job: {said}; remove that"):
        look(tmp_path, config)
    assert names(tmp_path / "checkpoints") == ["latest.json", "step-00000010"]
