"""A checkpoint is there as a whole or not at all; damage is said, and the one before it is used."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_launcher.checkpoint import Fenced, Manifest, TakenOver, find_newest, kept, publish, raise_fence, set_aside
from elastic_launcher.checkpoint.files import MANIFEST, STATE, check, seal
from elastic_launcher.checkpoint.folder import LOCK, POINTER, Pointer, name_of, read_pointer
from elastic_launcher.checkpoint.manifest import Mark
from tests.support.checkpoints import JOB, manifest, names, save
from tests.support.places import ROOT


def test_the_newest_is_found_and_the_last_two_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert find_newest(folder).folder is None
    assert kept(folder) == "nothing was saved"
    for step in (10, 20, 30):
        path = save(folder, step)
        found = find_newest(folder)
        assert (found.folder, found.refused) == (path, ())
        assert found.manifest is not None and found.manifest.step == step
    assert names(folder) == [POINTER, "step-00000020", "step-00000030"]
    assert kept(folder) == f"step 30 is saved in {folder}/step-00000030"


def test_what_is_removed_while_it_is_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that trains has saved two others since."""
    save(tmp_path, 10)
    steps = iter((20, 30))

    def check_late(path: Path) -> Manifest:
        for step in steps:
            save(tmp_path, step)
        return check(path)

    monkeypatch.setattr("elastic_launcher.checkpoint.folder.check", check_late)
    found = find_newest(tmp_path)
    assert found.folder == tmp_path / "step-00000030" and (found.refused, found.damaged) == ((), ())


@pytest.mark.parametrize("keep", [1, 3])
def test_how_many_are_kept_can_be_chosen(tmp_path: Path, keep: int) -> None:
    for step in range(1, 6):
        save(tmp_path, step, keep=keep)
    assert len(names(tmp_path)) == 1 + keep


def test_the_pointer_says_what_the_last_one_is(tmp_path: Path) -> None:
    save(tmp_path, 10, generation=3, term=2, job_id="digits-x")
    assert json.loads((tmp_path / POINTER).read_text()) == {
        "v": 1,
        "job": "digits-x",
        "checkpoint": "step-00000010",
        "term": 2,
        "generation": 3,
        "step": 10,
    }


def cut_short(folder: Path) -> str:
    (folder / STATE).write_bytes((folder / STATE).read_bytes()[:-3])
    return r"step-00000020/state.json is cut short: 20 bytes instead of 23"


def flip_a_bit(folder: Path) -> str:
    content = bytearray((folder / STATE).read_bytes())
    content[5] ^= 1
    (folder / STATE).write_bytes(content)
    return "step-00000020/state.json is damaged: its checksum is wrong"


def lose_a_file(folder: Path) -> str:
    (folder / STATE).unlink()
    return "step-00000020/state.json is missing"


def lose_the_manifest(folder: Path) -> str:
    (folder / MANIFEST).unlink()
    return "step-00000020/manifest.json is missing"


def cut_the_manifest_short(folder: Path) -> str:
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text()[:-100])
    return "step-00000020/manifest.json: it is cut short"


def be_of_a_later_version(folder: Path) -> str:
    document = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(document | {"v": 2}))
    return "step-00000020/manifest.json: it is of version 2"


def be_of_another_job(folder: Path) -> str:
    document = manifest(20, job=replace(JOB, seed=8), files=Manifest.from_text((folder / MANIFEST).read_text()).files)
    (folder / MANIFEST).write_text(document.to_text())
    return "step-00000020 is of another job: the seed is 8"


DAMAGES = [cut_short, flip_a_bit, lose_a_file, lose_the_manifest, cut_the_manifest_short]


@pytest.mark.parametrize("spoil", [*DAMAGES, be_of_a_later_version, be_of_another_job])
def test_what_cannot_be_used_is_said_and_the_one_before_is_used(tmp_path: Path, spoil: Callable[[Path], str]) -> None:
    first, second = save(tmp_path, 10), save(tmp_path, 20)
    said = spoil(second)
    found = find_newest(tmp_path, lambda one: "" if one.job == JOB else f"the seed is {one.job.seed}")
    assert found.folder == first
    assert len(found.refused) == 1 and said in found.refused[0]
    assert found.damaged == ((second,) if spoil in DAMAGES else ())


@pytest.mark.parametrize("name", [MANIFEST, STATE])
def test_what_the_disk_does_not_give_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20) / name
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path)  # as good as a mount that is away: the system has an error of its own for it
    with pytest.raises(OSError, match=f"{path}'"):
        find_newest(tmp_path)
    path.unlink()
    path.write_bytes(content)
    assert find_newest(tmp_path).folder == path.parent


def test_an_old_one_that_the_disk_does_not_give_stands_in_nobodys_way(tmp_path: Path) -> None:
    path = save(tmp_path, 10) / MANIFEST
    path.unlink()
    path.symlink_to(path)
    newest = save(tmp_path, 20, keep=1)
    assert find_newest(tmp_path).folder == newest


def test_when_nothing_can_be_used_all_is_said(tmp_path: Path) -> None:
    for step in (10, 20):
        flip_a_bit(save(tmp_path, step))
    found = find_newest(tmp_path)
    assert found.folder is None
    assert [line.split("/")[-2] for line in found.refused] == ["step-00000020", "step-00000010"]


def test_one_that_was_set_aside_is_not_counted_any_more(tmp_path: Path) -> None:
    first, second = save(tmp_path, 10), save(tmp_path, 20)
    flip_a_bit(second)
    set_aside(second)
    save(tmp_path, 30)
    assert names(tmp_path) == ["damaged-step-00000020", POINTER, first.name, "step-00000030"]


def test_a_writer_of_an_earlier_generation_or_term_changes_nothing(tmp_path: Path) -> None:
    save(tmp_path, 10, generation=4)
    before = names(tmp_path)
    for step, generation in ((100, 3), (9, 4)):
        with pytest.raises(Fenced, match=f"{step} steps of generation {generation} in term 1 are not saved"):
            save(tmp_path, step, generation)
    with pytest.raises(
        TakenOver, match=r"another launcher of this job owns .*, in term 1, and what this one \(term 0\)"
    ):
        save(tmp_path, 200, 9, term=0)
    assert names(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == [".lock", *before]


def test_a_writer_that_is_overtaken_while_it_writes_changes_nothing(tmp_path: Path) -> None:
    def write(draft: Path) -> Manifest:
        save(tmp_path, 5, generation=2)
        return manifest(50)

    with pytest.raises((Fenced, OSError)):
        publish(tmp_path, write, manifest(50).mark)
    found = find_newest(tmp_path)
    assert found.manifest is not None and found.manifest.step == 5
    assert names(tmp_path) == [POINTER, "step-00000005"]


def test_a_writer_that_thaws_leaves_what_a_later_one_writes_alone(tmp_path: Path) -> None:
    wanted = manifest(12, generation=4)

    def write(draft: Path) -> Manifest:
        (draft / STATE).write_text("the state after step 12")
        save(tmp_path, 10, generation=3)  # it was evicted, and nobody has pointed past it yet
        return replace(wanted, files=(seal(draft / STATE),))

    path = publish(tmp_path, write, wanted.mark, 2)
    assert find_newest(tmp_path).folder == path
    assert names(tmp_path) == [POINTER, "step-00000010", "step-00000012"]


def test_while_the_pointer_can_not_be_read_nobody_passes_the_fence(tmp_path: Path) -> None:
    save(tmp_path, 100, job_id="digits-x")
    raise_fence(tmp_path, term=2, job="digits-x")
    for step in (110, 120):
        save(tmp_path, step, term=2, job_id="digits-x")
    pointer, there = (tmp_path / POINTER).read_bytes(), names(tmp_path)
    (tmp_path / POINTER).unlink()
    (tmp_path / POINTER).symlink_to(tmp_path / POINTER)  # as good as a mount that is away
    for mark in ({"step": 105, "term": 1}, {"step": 120, "term": 2}, {"step": 130, "term": 2}):
        with pytest.raises(OSError, match=POINTER):
            save(tmp_path, **mark, job_id="digits-x")
    with pytest.raises(OSError, match=POINTER):
        raise_fence(tmp_path, term=3, job="digits-x")
    assert names(tmp_path) == there
    (tmp_path / POINTER).unlink()
    (tmp_path / POINTER).write_bytes(pointer)
    assert save(tmp_path, 120, term=2, job_id="digits-x") == find_newest(tmp_path).folder


def test_a_writer_that_was_overtaken_unseen_removes_nothing_later(tmp_path: Path) -> None:
    path = save(tmp_path, 20, term=2)
    (tmp_path / POINTER).unlink()  # a file system without locks: it was looked at before
    save(tmp_path, 12, term=1, keep=1)
    assert find_newest(tmp_path).folder == path


def test_a_new_term_shuts_the_old_one_out(tmp_path: Path) -> None:
    path = save(tmp_path, 10, generation=7)
    raise_fence(tmp_path, term=2)
    with pytest.raises(Fenced):
        save(tmp_path, 11, generation=8, term=1)
    assert find_newest(tmp_path).folder == path
    assert kept(tmp_path) == f"step 10 is saved in {path}"
    save(tmp_path, 8, generation=1, term=2)
    found = find_newest(tmp_path)
    assert found.manifest is not None and found.manifest.step == 8
    assert names(tmp_path) == [POINTER, "step-00000008"], "step 10 belonged to a training that was lost"


def test_a_job_that_begins_again_within_its_term_shuts_out_a_rank_that_was_cut_off(tmp_path: Path) -> None:
    """It trains on where nobody sees it: what the others go on from is neither replaced nor removed."""
    save(tmp_path, 10, generation=3)
    path = save(tmp_path, 20, generation=3)
    raise_fence(tmp_path, term=1, generation=3)
    for generation in (2, 3):
        with pytest.raises(Fenced):
            save(tmp_path, 30, generation=generation, keep=1)
    assert find_newest(tmp_path).folder == path
    assert kept(tmp_path) == f"step 20 is saved in {path}"
    later = save(tmp_path, 0, generation=4)
    assert find_newest(tmp_path).folder == later
    raise_fence(tmp_path, term=1, generation=3)  # a fence is never lowered
    with pytest.raises(Fenced):
        save(tmp_path, 30, generation=3)


@pytest.mark.parametrize("ahead", [1, -1])
def test_of_two_jobs_that_begin_at_once_in_one_folder_the_second_is_told(tmp_path: Path, ahead: int) -> None:
    path = save(tmp_path, 10, job_id="digits-x")
    for _ in range(2):
        with pytest.raises(TakenOver, match=f"job digits-x owns {tmp_path}, in term 1, and what this one .* not saved"):
            save(tmp_path, 10 + ahead, job_id="digits-y")
    assert names(tmp_path) == [POINTER, path.name]
    with pytest.raises(TakenOver, match="job digits-x owns"):
        raise_fence(tmp_path, term=1, job="digits-y")
    raise_fence(tmp_path, term=1, job="digits-x")  # the same one, which begins again
    save(tmp_path, 20, job_id="digits-x")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_the_fence_is_raised_where_the_pointer_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path, longer = save(tmp_path, 10, generation=100, job_id="digits-x"), "a job of a longer id"

    def fail(draft: Path, text: str) -> None:
        draft.touch()
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as full:
        full.setattr("elastic_launcher.checkpoint.folder.write_text", fail)
        raise_fence(tmp_path, term=2, job="digits-x")
        assert read_pointer(tmp_path) == Pointer(path.name, Mark(2, 1, -1), "digits-x")
        assert names(tmp_path) == [POINTER, path.name]
        raise_fence(tmp_path, term=3, job=longer)
        assert read_pointer(tmp_path) == Pointer(path.name, Mark(3, 1, -1), longer)
        (tmp_path / POINTER).unlink()
        with pytest.raises(OSError, match=os.strerror(code)):
            raise_fence(tmp_path, term=4, job="digits-x")
    raise_fence(tmp_path, term=4, job="digits-x")
    assert read_pointer(tmp_path).mark == Mark(4, 1, -1)


def test_a_job_that_is_gone_on_with_elsewhere_is_told(tmp_path: Path) -> None:
    path = save(tmp_path, 10, job_id="digits-x")
    raise_fence(tmp_path, term=2, job="digits-y")
    with pytest.raises(TakenOver, match=r"job digits-y owns .*, in term 2, and what this one \(term 1\) trains is not"):
        save(tmp_path, 20, job_id="digits-x")
    with pytest.raises(TakenOver, match="job digits-y owns"):
        raise_fence(tmp_path, term=1, job="digits-x")
    assert find_newest(tmp_path).folder == path
    save(tmp_path, 12, term=2, job_id="digits-y")
    assert kept(tmp_path) == f"step 12 is saved in {tmp_path}/step-00000012"


def test_a_pointer_that_names_no_job_is_anybodys(tmp_path: Path) -> None:
    save(tmp_path, 10)
    pointer = json.loads((tmp_path / POINTER).read_text())
    del pointer["job"]
    (tmp_path / POINTER).write_text(json.dumps(pointer))
    raise_fence(tmp_path, term=1, job="digits-x")
    save(tmp_path, 20, job_id="digits-x")
    assert read_pointer(tmp_path).job == "digits-x"


def test_a_step_that_was_done_again_takes_the_place_of_the_one_that_was_lost(tmp_path: Path) -> None:
    save(tmp_path, 10, samples=1)
    save(tmp_path, 10, generation=2, samples=2)
    found = find_newest(tmp_path)
    assert found.manifest is not None and found.manifest.samples == 2
    assert names(tmp_path) == [POINTER, "step-00000010"]


def test_one_whose_place_can_not_be_taken_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 100, keep=1)
    rename = Path.rename

    def fail(source: Path, target: Path) -> Path:
        if source.name.startswith(".tmp-") and not source.name.endswith("-old"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(Path, "rename", fail)
        save(tmp_path, 100, term=2, keep=1)
    assert (sorted(os.listdir(tmp_path)), find_newest(tmp_path).folder) == ([LOCK, POINTER, path.name], path)


DIES_BETWEEN = """
import os, sys
from pathlib import Path
from tests.support.checkpoints import save

rename = Path.rename

def last(source, target):
    rename(source, target)
    os._exit(9)

Path.rename = last
save(Path(sys.argv[1]), 100, term=2, keep=1)
"""


@pytest.mark.parametrize("first", ["find", "fence", "save"])
def test_one_whose_writer_dies_as_it_takes_its_place_is_found(tmp_path: Path, first: str) -> None:
    path = save(tmp_path, 100, keep=1)
    root = ROOT
    assert subprocess.run([sys.executable, "-c", DIES_BETWEEN, tmp_path], cwd=root).returncode == 9
    assert names(tmp_path) == [POINTER], "it died too early or too late"
    if first == "fence":
        raise_fence(tmp_path, term=3)
    elif first == "save":
        save(tmp_path, 101, term=2)
        assert names(tmp_path) == [POINTER, path.name, "step-00000101"]
        return
    assert find_newest(tmp_path).folder == path
    raise_fence(tmp_path, term=3)
    assert names(tmp_path) == [POINTER, path.name]


def test_one_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    """Its writer could not tell: it died, or is not sure that it was done."""
    path = save(tmp_path, 10, samples=1)
    assert save(tmp_path, 10, samples=2) == path
    found = find_newest(tmp_path)
    assert found.manifest is not None and found.manifest.samples == 1
    (path / MANIFEST).unlink()
    with pytest.raises(Fenced):
        save(tmp_path, 10)


def test_what_can_not_be_cleaned_away_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("elastic_launcher.checkpoint.folder._remove_drafts", fail)
    assert find_newest(tmp_path).folder != save(tmp_path, 10) == find_newest(tmp_path).folder


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path, 10)
    before = sorted(os.listdir(tmp_path))

    def fail(draft: Path) -> Manifest:
        (draft / STATE).write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        publish(tmp_path, fail, manifest(20).mark)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_writer_that_is_killed_leaves_the_last_one_and_its_rest_goes_with_the_next(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    code = (
        "import os, signal, sys; from pathlib import Path; from elastic_launcher.checkpoint import Mark, publish;"
        "publish(Path(sys.argv[1]), lambda draft: os.kill(os.getpid(), signal.SIGKILL), Mark(1, 1, 20))"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == -signal.SIGKILL
    assert [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")] != []
    assert find_newest(tmp_path).folder == path
    save(tmp_path, 30)
    assert [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")] == []


@pytest.mark.parametrize("content", ["", "{", '{"checkpoint": "../../etc", "term": 9, "generation": 9, "step": 9}'])
def test_a_pointer_that_cannot_be_read_keeps_nobody_from_the_checkpoints(tmp_path: Path, content: str) -> None:
    path = save(tmp_path, 10)
    (tmp_path / POINTER).write_text(content)
    assert find_newest(tmp_path).folder == path
    assert kept(tmp_path) == "nothing was saved"


def test_a_writer_that_stands_still_over_the_lock_holds_nobody_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_launcher.checkpoint.folder.LOCK_SECONDS", 0.05)
    save(tmp_path, 1)
    with open(tmp_path / LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OSError, match=r"another process has held .*\.lock for 0.05 s"):
            save(tmp_path, 2)
        assert read_pointer(tmp_path)[0] == name_of(1)
    save(tmp_path, 3)
    assert read_pointer(tmp_path)[0] == name_of(3)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_folder_is_not_taken_for_an_empty_one(tmp_path: Path, kind: str) -> None:
    """A link to a disk that is not mounted, say: what was saved may be there."""
    place = tmp_path / "checkpoints"
    place.touch() if kind == "file" else place.symlink_to(tmp_path / "unmounted" / "checkpoints")
    with pytest.raises(NotADirectoryError, match="it is no folder, or a link to none: .*checkpoints"):
        find_newest(place)
