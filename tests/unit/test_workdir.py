"""A work directory has one owner at a time, and says whose it is and what differs when it refuses another."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.content import Content
from elastic_launcher.events import EventLog
from elastic_launcher.host.lock import process_start
from elastic_launcher.workdir import (
    CLASSES,
    JobDone,
    Layout,
    Past,
    WorkDir,
    WorkDirError,
    WorkDirHeld,
    claim,
    follows_another,
    hint_id,
    note_cluster,
    note_past,
    read_document,
    read_job,
    write_json,
)

CONFIG = JobConfig(script="train.py", arguments=("--lr", "0.1"), global_batch_size=64, work_dir="job")


@contextlib.contextmanager
def owned(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Gives a process that has the work directory ``job`` until it is killed."""
    code = "import sys; from pathlib import Path; from elastic_launcher.config import JobConfig; " + (
        "from elastic_launcher.workdir import claim; "
        "work_dir = claim(JobConfig(script='train.py', work_dir='job'), Path(sys.argv[1])); "
        "print('claimed', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "claimed\n"
        yield owner
        owner.kill()


def test_a_new_job_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    config = JobConfig(script="train.py")
    with claim(config, tmp_path) as first, claim(config, tmp_path) as second:
        assert first.path != second.path
        assert first.path.parent == second.path.parent == tmp_path / "elastic-jobs"
        assert re.fullmatch(r"train-\d{8}-\d{6}-[0-9a-f]{4}", first.path.name)


def test_job_json_says_what_was_asked_and_by_whom(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path) as work_dir:
        document = json.loads(work_dir.layout.job.read_text())
        assert read_job(work_dir.path) == (work_dir.job_id, CONFIG)
    assert (document["pid"], document["host"]) == (os.getpid(), socket.gethostname())
    assert document["directory"] == str(tmp_path)


def test_hints_match_a_job_by_its_own_id_and_in_a_cluster_by_the_name_of_its_service(tmp_path: Path) -> None:
    for _ in range(2):
        with claim(CONFIG, tmp_path) as work_dir:
            assert hint_id(work_dir.layout) == work_dir.job_id
    note_cluster(work_dir.layout, "train-7qk2xw4mzt3a", {"guaranteed": {}})
    note_past(work_dir.layout, Past(term=5))
    assert hint_id(work_dir.layout) == "train-7qk2xw4mzt3a"
    assert read_document(work_dir.layout.job)["scheduling"] == {"guaranteed": {}}
    assert read_job(work_dir.path)[0] == work_dir.job_id


def test_the_folder_of_a_job_that_is_alive_is_refused_and_its_owner_named(tmp_path: Path) -> None:
    with owned(tmp_path) as owner:
        job = json.loads((tmp_path / "job" / "job.json").read_text())["id"]
        with pytest.raises(WorkDirHeld) as refused:
            claim(CONFIG, tmp_path)
        assert f"belongs to a job that is alive ({job}, process {owner.pid} on {socket.gethostname()})" in str(
            refused.value
        )
        assert f"`elastic-launcher status {tmp_path / 'job'}`" in str(refused.value)
    with pytest.raises(WorkDirError, match="belongs to another job"):
        claim(CONFIG, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"script": "other.py"}, "script train.py there, other.py here"),
        ({"script": None, "module": "train"}, "script train.py there, module train here"),
        ({"arguments": ["--lr", "0.2"]}, "arguments '--lr' '0.1' there, '--lr' '0.2' here"),
        ({"arguments": []}, "arguments '--lr' '0.1' there, not given here"),
        ({"global_batch_size": 65}, "global batch size 64 there, 65 here"),
    ],
)
def test_the_folder_of_another_job_is_refused_and_the_difference_named(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    claim(CONFIG, tmp_path).close()
    with pytest.raises(WorkDirError, match=f"belongs to another job: .*{said}"):
        claim(JobConfig.from_dict(CONFIG.to_dict() | change), tmp_path)


def test_an_unfinished_job_is_taken_up_again_and_uses_no_number_twice(tmp_path: Path) -> None:
    config = JobConfig.from_dict(CONFIG.to_dict() | {"nproc_per_node": 2})
    with claim(config, tmp_path) as first:
        assert first.past == Past(1, 1, 1, 0)
        first.layout.node_log(3).touch()  # nodes 1 to 3, members 1 to 6
        with contextlib.closing(EventLog(first.layout.events)) as events:
            events.append("generation_formed", 4)
            events.append("job_finished", 4, exit_code=75)
    with claim(CONFIG, tmp_path) as second:
        assert second.job_id == first.job_id
        assert second.past == Past(2, 4, 7, 4)
        second.layout.node_log(4).touch()
    with claim(CONFIG, tmp_path) as third:
        assert third.past == Past(3, 5, 8, 4)
    with claim(CONFIG, tmp_path) as fourth:
        assert fourth.past == Past(4, 5, 8, 4), "no node was started in between"


def test_an_unfinished_job_is_taken_up_with_another_priority_and_project(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path) as first:
        pass
    with claim(replace(CONFIG, priority=5, project="nlp"), tmp_path) as again:
        assert (again.job_id, again.remark) == (first.job_id, "")
    assert (read_job(again.path)[1].priority, read_job(again.path)[1].project) == (5, "nlp")


def test_a_job_that_is_done_is_told_and_left_alone(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path) as work_dir, contextlib.closing(EventLog(work_dir.layout.events)) as events:
        events.append("job_finished", 1, exit_code=0, message="done: 9 steps")
    before = work_dir.layout.job.read_text()
    for _ in range(2):  # it is not kept locked
        with pytest.raises(JobDone, match="done: 9 steps"):
            claim(CONFIG, tmp_path)
    assert work_dir.layout.job.read_text() == before


CODE = Content(("train.py 1a2b", "helper.py 5566"), "s3://a")


@pytest.mark.parametrize(
    ("content", "accept", "said"),
    [
        (Content(("train.py 3c4d", "helper.py 5566"), "s3://a"), "script", "another one than here (train.py)"),
        (Content(("train.py 1a2b",), "s3://a"), "script", "another one than here (helper.py)"),
        (Content(CODE.code, "s3://b"), "dataset", "data from s3://a there, from s3://b here"),
        (Content(CODE.code, ""), "dataset", "data from s3://a there, from nowhere here"),
    ],
)
def test_a_job_is_another_one_by_its_code_and_its_data(
    tmp_path: Path, content: Content, accept: str, said: str
) -> None:
    with claim(CONFIG, tmp_path, CODE) as first:
        pass
    with pytest.raises(WorkDirError, match="belongs to another job: .*") as refused:
        claim(CONFIG, tmp_path, content)
    assert said in str(refused.value) and f"(--accept-changes {accept}; " in str(refused.value)
    with claim(replace(CONFIG, accept_changes=accept), tmp_path, content) as second:
        assert (second.job_id, second.past.term, second.recoded) == (first.job_id, 2, accept == "script")
    with claim(CONFIG, tmp_path, content) as third:
        assert third.past.term == 3, "it is this job's from then on"


def finish(work_dir: WorkDir) -> None:
    with contextlib.closing(EventLog(work_dir.layout.events)) as events:
        events.append("job_finished", 1, exit_code=0, message="done: 9 steps")


@pytest.mark.parametrize(
    ("change", "content"),
    [
        ({}, Content(("train.py 3c4d",), "s3://a")),
        ({}, Content(CODE.code, "s3://b")),
        ({"arguments": ["--epochs", "60"]}, CODE),
        ({"script": "other.py"}, CODE),
    ],
)
def test_a_job_that_is_done_is_never_taken_for_another(
    tmp_path: Path, change: dict[str, object], content: Content
) -> None:
    output = str(tmp_path / "job.model")
    config = replace(CONFIG, output=output)
    with claim(config, tmp_path, CODE) as first:
        first.layout.checkpoints.mkdir()
        Path(output).write_text("old")
        Path(output + CLASSES).write_text("old")
        (first.path / "notes.txt").write_text("mine")
        finish(first)
    wanted = JobConfig.from_dict(config.to_dict() | change)
    with claim(wanted, tmp_path, content) as second:
        assert (second.job_id != first.job_id, second.past, second.before) == (True, Past(), None)
        aside = second.path / "earlier" / first.job_id
        assert f"what it left is in {aside}: this one trains from the beginning" in second.remark
        assert follows_another(second.layout)
        assert read_job(aside) == (first.job_id, config)
        assert (aside / "job.model").read_text() == (aside / f"job.model{CLASSES}").read_text() == "old"
        assert not Path(output).exists() and (second.path / "notes.txt").exists()
        assert not second.layout.checkpoints.exists() and not second.layout.events.exists()
    with claim(wanted, tmp_path, content) as third:
        assert (third.job_id, third.past.term, third.remark) == (second.job_id, 2, "")
        assert follows_another(third.layout), "what the first one has saved elsewhere is not its own"
        finish(third)
    with pytest.raises(JobDone):
        claim(wanted, tmp_path, content)


def test_a_job_that_is_done_goes_on_with_what_the_user_accepts(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path, CODE) as first:
        finish(first)
    longer = replace(CONFIG, arguments=("--epochs", "60"), accept_changes="arguments")
    with claim(longer, tmp_path, CODE) as second:
        assert (second.job_id, second.past.term, second.remark) == (first.job_id, 2, "")
        finish(second)
    with pytest.raises(JobDone):
        claim(longer, tmp_path, CODE)


def test_a_job_that_was_only_half_put_aside_is_put_aside(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path, CODE) as first:
        finish(first)
        document = json.loads(first.layout.job.read_text())
        write_json(first.layout.job, document | {"put_aside": True})
        first.layout.events.unlink()
    with claim(CONFIG, tmp_path, CODE) as second:
        assert second.job_id != first.job_id and "it was being put aside" in second.remark


def test_the_job_of_an_earlier_version_has_no_code_to_compare(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path) as first:
        document = json.loads(first.layout.job.read_text())
        del document["content"]
        write_json(first.layout.job, document)
        finish(first)
    with pytest.raises(JobDone):
        claim(CONFIG, tmp_path, CODE)


def test_events_of_a_later_version_are_left_alone(tmp_path: Path) -> None:
    claim(CONFIG, tmp_path).close()
    (tmp_path / "job" / "events.jsonl").write_text('{"v": 99, "kind": "x", "time": 1.0, "generation": 1}\n')
    with pytest.raises(WorkDirError, match="events of version 99"):
        claim(CONFIG, tmp_path)


def test_a_folder_that_was_moved_with_its_script_is_still_the_jobs(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path) as first:
        folder = first.path
    (tmp_path / "elsewhere").mkdir()
    folder.rename(tmp_path / "elsewhere" / "moved")
    config = JobConfig.from_dict(CONFIG.to_dict() | {"work_dir": "moved"})
    with claim(config, tmp_path / "elsewhere") as second:
        assert (second.job_id, second.past.term) == (first.job_id, 2)


def test_a_folder_by_another_name_is_known_by_its_own(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path) as first:
        pass
    (tmp_path / "link").symlink_to("job")
    with claim(JobConfig.from_dict(CONFIG.to_dict() | {"work_dir": "link"}), tmp_path) as second:
        assert (second.path, second.job_id) == (first.path, first.job_id), "as its nodes have it"


def test_what_the_user_accepts_is_not_refused(tmp_path: Path) -> None:
    claim(CONFIG, tmp_path).close()
    other = CONFIG.to_dict() | {"arguments": ["--lr", "0.2"], "global_batch_size": 65}
    with pytest.raises(WorkDirError, match="global batch size 64 there, 65 here; .*--accept-changes goes on"):
        claim(JobConfig.from_dict(other | {"accept_changes": "arguments"}), tmp_path)
    claim(JobConfig.from_dict(other | {"accept_changes": "arguments,global-batch-size"}), tmp_path).close()


def test_a_folder_with_other_files_in_it_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "notes.txt").write_text("mine")
    with claim(CONFIG, tmp_path) as work_dir:
        assert (work_dir.path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("work_dir", "reason"),
    [
        ("file", ".*/file is a file, not a folder"),
        ("file/below", ".*/file is a file, not a folder"),
        ("/proc/elastic", "No such file or directory"),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, work_dir: str, reason: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WorkDirError, match=f"can't be written: {reason}; choose another with --work-dir"):
        claim(JobConfig(script="train.py", work_dir=work_dir), tmp_path)


def test_an_unreadable_job_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_text("{")
    with pytest.raises(WorkDirError, match="job.json that can't be read"):
        claim(CONFIG, tmp_path)


def test_what_was_saved_beside_an_unreadable_job_json_can_be_gone_on_from(tmp_path: Path) -> None:
    with claim(CONFIG, tmp_path) as work_dir:
        work_dir.layout.checkpoints.mkdir()
        work_dir.layout.job.write_text("")
    with pytest.raises(WorkDirError, match=f"; --checkpoint-dir {tmp_path}/job/checkpoints resumes from what is saved"):
        claim(CONFIG, tmp_path)


def test_job_json_is_on_disk_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        sync(descriptor)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append(("sync", re.sub(r"\.[0-9a-f]+$", "", name)))

    def note_replace(draft: Path, path: Path) -> None:
        replace(draft, path)
        done.append(("replace", path.name))

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    made = [("sync", tmp_path.name), ("sync", "job"), ("sync", "job")]
    written = [("sync", ".job.json"), ("replace", "job.json"), ("sync", "job")]
    with claim(CONFIG, tmp_path) as work_dir:
        assert done == made + written
        note_past(work_dir.layout, Past(term=3))
        assert done == made + 2 * written


def test_names_that_are_no_file_names_make_folders_all_the_same(tmp_path: Path) -> None:
    with claim(JobConfig(script="train.py", name="../../a b/ü"), tmp_path) as work_dir:
        assert work_dir.path.parent == tmp_path / "elastic-jobs"


def test_a_temporary_folder_is_in_the_work_directory_where_sockets_fit() -> None:
    assert Layout(Path("/jobs/a")).tmp(3) == Path("/jobs/a/tmp/3")
    long = [Layout(Path(f"/{letter * 60}")).tmp(node) for letter in "xy" for node in (1, 2)]
    assert len(set(long)) == 4
    assert {path.parent for path in long} == {Path(tempfile.gettempdir())}


@pytest.mark.parametrize("name", ["a", "a" * 60])
def test_a_temporary_folder_goes_with_its_node(tmp_path: Path, name: str) -> None:
    layout = Layout(tmp_path / name)
    folders = [layout.tmp(node) for node in (1, 2)]
    for node, folder in enumerate(folders, start=1):
        (folder / "pymp-x").mkdir(parents=True)
        assert folder.is_dir()
        layout.remove_tmp(node)
        assert not folder.exists()
    assert not (layout.path / "tmp").exists()


def test_nodes_that_come_and_go_at_once_do_not_take_each_others_folders(tmp_path: Path) -> None:
    layout = Layout(tmp_path)

    def come_and_go(node: int) -> None:
        for _ in range(500):
            folder = layout.make_tmp(node)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            layout.remove_tmp(node)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(come_and_go, (1, 2))) == [None, None]
    assert not (tmp_path / "tmp").exists()


def test_a_document_is_replaced_whole_and_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    write_json(path, {"a": 1}, mode=0o600)
    write_json(path, {"b": 2}, mode=0o600)
    assert json.loads(path.read_text()) == {"b": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["control.json"]


def test_a_process_is_named_by_when_it_started() -> None:
    assert process_start(os.getpid()) == process_start(os.getpid()) is not None
    assert process_start(2**30) is None


def test_a_process_whose_exit_code_nobody_took_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(ended.pid) is None
    assert ended.wait() == 0
