"""Data and model get to the nodes and back by the first way that there is; where there is none, that is said."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_launcher.checkpoint.storage import open_storage
from elastic_launcher.kfp_steps.travel import Meeting, fetch, model_place, read_beside, remove, send
from elastic_launcher.options import ConfigError
from tests.support.object_store import object_store


def artifact(path: Path | str, uri: str = "minio://mlpipeline/x") -> Any:
    return SimpleNamespace(path=str(path), uri=uri)


def dataset(tmp_path: Path, as_folder: bool) -> Any:
    """Returns one that the step has: a file, or a folder with one."""
    made = tmp_path / "step" / "x"
    (made if as_folder else made.parent).mkdir(parents=True)
    (made / "part" if as_folder else made).write_text("pixels")
    return artifact(made)


def test_what_lies_in_a_volume_stays_there(tmp_path: Path) -> None:
    inside = artifact(tmp_path / "digits")
    meeting = Meeting([str(tmp_path)], "")
    assert send(inside, meeting) == inside.path
    assert model_place(inside, meeting) == inside.path


@pytest.mark.parametrize("path", ["/data", "/data/x", "/data/../data/x"])
def test_a_volume_holds_what_is_below_it(path: str) -> None:
    assert Meeting(["/data/"], "").holds(path)
    assert Meeting(["/"], "").holds(path)


@pytest.mark.parametrize("path", ["/database", "/data/../etc", "data/x", "s3://data/x"])
def test_a_volume_holds_nothing_else(path: str) -> None:
    assert not Meeting(["/data"], "").holds(path)


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_copy_goes_to_the_folder_and_back(tmp_path: Path, as_folder: bool) -> None:
    data = dataset(tmp_path, as_folder)
    meeting = Meeting([str(tmp_path / "work")], str(tmp_path / "work" / "job"))
    place = Path(send(data, meeting))
    assert (place / "part" if as_folder else place).read_text() == "pixels"
    model = artifact(tmp_path / "step" / "model")
    fetch(str(place), model)
    assert (Path(model.path) / "part" if as_folder else Path(model.path)).read_text() == "pixels"


@pytest.mark.parametrize("as_folder", [True, False])
def test_what_running_nodes_read_is_not_written_again(tmp_path: Path, as_folder: bool) -> None:
    data = dataset(tmp_path, as_folder)
    meeting = Meeting([str(tmp_path / "work")], str(tmp_path / "work" / "job"))
    place = Path(send(data, meeting))
    seen = place / "part" if as_folder else place
    before = os.stat(seen)
    with open(seen) as held:  # as by a node that the first attempt has made
        assert Path(send(data, meeting)) == place
        assert held.read() == "pixels"
    after = os.stat(seen)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("as_folder", [True, False])
def test_what_an_attempt_that_was_killed_has_copied_is_no_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_folder: bool
) -> None:
    data = dataset(tmp_path, as_folder)
    meeting = Meeting([str(tmp_path / "work")], str(tmp_path / "work" / "job"))

    def killed(source: str, target: str, **_: Any) -> None:
        Path(target).mkdir() if as_folder else Path(target).write_text("pi")
        if as_folder:
            (Path(target) / "of a killed attempt").write_text("pi")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "copytree" if as_folder else "copyfile", killed)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # what is killed clears nothing away
        send(data, meeting)
    assert list((tmp_path / "work" / "job").iterdir()), "the draft is there"
    place = Path(send(data, meeting))
    assert list((tmp_path / "work" / "job").iterdir()) == [place], "nothing else stays"
    assert {path.name for path in place.glob("*")} == ({"part"} if as_folder else set())
    assert (place / "part" if as_folder else place).read_text() == "pixels"


@pytest.mark.parametrize("as_folder", [True, False])
def test_two_attempts_that_copy_at_once_leave_one_whole_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_folder: bool
) -> None:
    data = dataset(tmp_path, as_folder)
    meeting = Meeting([str(tmp_path / "work")], str(tmp_path / "work" / "job"))
    name = "copytree" if as_folder else "copyfile"
    copy = getattr(shutil, name)

    def overtaken(source: Any, target: Any, **more: Any) -> Any:
        """The other attempt begins and ends while this one has only begun."""
        monkeypatch.setattr(shutil, name, copy)
        Path(target).mkdir() if as_folder else Path(target).write_text("pi")
        send(data, meeting)
        return copy(source, target, **more)

    monkeypatch.setattr(shutil, name, overtaken)
    place = Path(send(data, meeting))
    assert list((tmp_path / "work" / "job").iterdir()) == [place]
    assert (place / "part" if as_folder else place).read_text() == "pixels"


@contextlib.contextmanager
def under_a_url(tmp_path: Path, kind: str) -> Iterator[tuple[str, Path]]:
    """Gives the URL of a folder, and where its files are."""
    if kind == "file":
        yield f"file://{tmp_path}/bucket/job", tmp_path / "bucket" / "job"
        return
    with object_store(tmp_path / "buckets") as store:
        yield store.url, store.bucket / "jobs" / "digits"


@pytest.mark.parametrize("kind", ["file", "s3"])
@pytest.mark.parametrize("as_folder", [True, False])
def test_a_copy_under_a_url_is_made_once(tmp_path: Path, kind: str, as_folder: bool) -> None:
    data = dataset(tmp_path, as_folder)
    with under_a_url(tmp_path, kind) as (url, folder):
        meeting = Meeting([], url)
        place = send(data, meeting)
        seen = folder / "data" / "part" if as_folder else folder / "data"
        before = os.stat(seen)
        assert send(data, meeting) == place
        after = os.stat(seen)
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        remove(place)
        assert [path for path in folder.rglob("*") if path.is_file()] == []
        send(data, meeting)
        assert seen.read_text() == "pixels", "what was removed is not taken for a copy"


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_data_that_are_not_there_are_no_copy(tmp_path: Path, kind: str) -> None:
    """A task that leaves nothing at its output has an artifact all the same; a later attempt may find one there."""
    with under_a_url(tmp_path, kind) as (url, _):
        meeting = Meeting([], url)
        with pytest.raises(FileNotFoundError, match="step/x"):
            send(artifact(tmp_path / "step" / "x"), meeting)
        place = send(dataset(tmp_path, as_folder=False), meeting)
        assert fetch(place, artifact(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "pixels"


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_part_of_a_copy_under_a_url_is_no_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data = dataset(tmp_path, as_folder=True)
    (Path(data.path) / "second").write_text("labels")
    with under_a_url(tmp_path, kind) as (url, folder):
        meeting = Meeting([], url)
        storage = type(open_storage(url)[0])
        whole, put = storage.put_file, []

        def killed(self: Any, local: str, path: str, **more: Any) -> None:
            if put:
                raise KeyboardInterrupt
            put.append(path)
            whole(self, local, path, **more)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(storage, "put_file", killed)
            send(data, meeting)
        assert {path.name for path in (folder / "data").iterdir()} == {"part"}
        send(data, meeting)
        assert {path.name for path in (folder / "data").iterdir()} == {"part", "second"}


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_removed_copy_is_gone_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_folder: bool) -> None:
    data = dataset(tmp_path, as_folder)
    meeting = Meeting([str(tmp_path / "work")], str(tmp_path / "work" / "job"))
    place = send(data, meeting)

    def killed(path: Path, **_: Any) -> None:
        if path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", killed)
        patched.setattr(Path, "unlink", killed)
        remove(place)
    assert not Path(place).exists(), "a part of it would be taken for the whole"
    send(data, meeting)
    remove(place)
    assert list((tmp_path / "work" / "job").iterdir()) == []


@pytest.mark.parametrize("before", ["file", "folder", ""])
@pytest.mark.parametrize("as_folder", [True, False])
@pytest.mark.parametrize("url", ["file://", ""])
def test_a_model_replaces_that_of_an_earlier_attempt(tmp_path: Path, url: str, as_folder: bool, before: str) -> None:
    made = Path(dataset(tmp_path, as_folder).path)
    model = artifact(tmp_path / "model")
    if before == "folder":
        Path(model.path).mkdir()
        (Path(model.path) / "old").write_text("old")
    elif before == "file":
        Path(model.path).write_text("old")
    assert fetch(f"{url}{made}", model)
    assert {path.name for path in Path(model.path).glob("*")} == ({"part"} if as_folder else set())
    assert (Path(model.path) / "part" if as_folder else Path(model.path)).read_text() == "pixels"
    assert not list(tmp_path.glob(".*")), "no draft stays"


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_copy_goes_under_a_url_and_back(tmp_path: Path, as_folder: bool) -> None:
    data = dataset(tmp_path, as_folder)
    place = send(data, Meeting([], f"file://{tmp_path}/bucket/job"))
    assert place == f"file://{tmp_path}/bucket/job/data"
    (tmp_path / "bucket" / "job" / "database").write_text("another")
    model = artifact(tmp_path / "back")
    fetch(place, model)
    assert (Path(model.path) / "part" if as_folder else Path(model.path)).read_text() == "pixels"


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_copy_goes_to_an_object_store_and_back(tmp_path: Path, as_folder: bool) -> None:
    data = dataset(tmp_path, as_folder)
    with object_store(tmp_path / "buckets") as store:
        meeting = Meeting([], store.url)
        place = send(data, meeting)
        assert place == f"{store.url}/data"
        back, none = artifact(tmp_path / "back"), artifact(tmp_path / "none")
        assert fetch(place, back)
        assert not fetch(model_place(none, meeting), none)
        assert read_beside(place, ".classes.json") == ""
        (store.bucket / "jobs" / "digits" / "data.classes.json").write_text("{}")
        assert read_beside(place, ".classes.json") == "{}"
    assert (Path(back.path) / "part" if as_folder else Path(back.path)).read_text() == "pixels"
    assert not Path(none.path).exists(), "the script left no model"


def test_nodes_open_a_uri_of_the_store_that_takes_their_checkpoints() -> None:
    there = artifact("/file/digits", uri="file:///bucket/digits")
    beside = Meeting([], "file:///bucket/checkpoints/jobs/job", is_asked=False)
    assert send(there, beside) == there.uri
    assert model_place(there, beside) == there.uri
    fetch(there.uri, there)


@pytest.mark.parametrize(("folder", "is_asked"), [("file://{}/shared", True), ("{}/checkpoints", False)])
def test_otherwise_it_is_copied_to_where_the_author_said(tmp_path: Path, folder: str, is_asked: bool) -> None:
    made = tmp_path / "digits"
    made.write_text("pixels")
    place = folder.format(tmp_path)
    meeting = Meeting([str(tmp_path / "checkpoints")], place, is_asked)
    assert send(artifact(made, uri="file:///bucket/digits"), meeting) == f"{place}/data"
    assert model_place(artifact(made, uri="file:///bucket/model"), meeting) == f"{place}/model"


@pytest.mark.parametrize("folder", ["", "/not/mounted", "minio://mlpipeline/x"])
def test_without_a_way_it_is_said_what_to_do(folder: str) -> None:
    for go in (send, model_place):
        with pytest.raises(ConfigError, match="no way to minio://mlpipeline/x: mount a volume claim on the task"):
            go(artifact("/minio/x"), Meeting(["/data"], folder))


@pytest.mark.parametrize("url", ["file://", ""])
def test_a_script_that_leaves_no_model_is_told_of(tmp_path: Path, url: str) -> None:
    model = artifact(tmp_path / "model", uri=f"file://{tmp_path}/model")
    (tmp_path / "models").mkdir()
    for place in (tmp_path / "nothing", tmp_path / "model"):  # elsewhere, and where the artifact is
        assert not fetch(f"{url}{place}", model)
        assert not (tmp_path / "model").exists()
    (tmp_path / "model").mkdir()
    assert not fetch(f"{url}{tmp_path}/model", model), "an empty folder is nothing"
    (tmp_path / "model" / "weights").write_text("weights")
    assert fetch(f"{url}{tmp_path}/model", model)


def test_where_it_can_not_be_told_whether_a_model_is_there_it_is_believed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with object_store(tmp_path / "buckets") as store:
        store.stop()
        uri = f"{store.url}/model"
        assert fetch(uri, artifact("/s3/model", uri=uri))


def test_what_stands_beside_a_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.classes.json").write_text("{}")
    for place in (str(tmp_path / "model"), f"file://{tmp_path}/model"):
        assert read_beside(place, ".classes.json") == "{}"
        assert read_beside(place, ".other.json") == ""
