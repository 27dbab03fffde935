"""Checkpoints in an object store: whole or not there, the newest by its mark, and nothing that comes late counts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.checkpoint import CheckpointError, Fenced, Manifest, TakenOver, check
from elastic_launcher.checkpoint.files import MANIFEST, STATE, seal
from elastic_launcher.checkpoint.remote import RemoteStore
from elastic_launcher.checkpoint.storage import StorageError, open_storage
from tests.support.checkpoints import manifest, names, publish_on, save
from tests.support.object_store import object_store


class Place:
    """A store, and its files on this machine's disk."""

    def __init__(self, url: str, folder: Path, cache: Path) -> None:
        self.url = url
        self.folder = folder
        self.cache = cache

    @property
    def store(self) -> RemoteStore:
        return RemoteStore(self.url, self.cache)

    def save(self, step: int, generation: int = 1, term: int = 1, keep: int = 2) -> str:
        return publish_on(self.store, step, generation, term, keep)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name.startswith("step"))

    def steps(self) -> list[int]:
        return [int(name[5:13]) for name in self.names()]

    def files(self, step: int) -> Path:
        return next(path for path in self.folder.iterdir() if path.name.startswith(f"step-{step:08d}"))


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        yield Place((tmp_path / "store").as_uri(), tmp_path / "store", tmp_path / "cache")
        return
    with object_store(tmp_path / "buckets") as store:
        yield Place(store.url, store.bucket / "jobs" / "digits", tmp_path / "cache")


def test_the_newest_is_found_elsewhere_and_the_last_two_are_kept(place: Place) -> None:
    assert place.store.find_newest().folder is None
    assert place.store.last_term() == 0
    for step in (10, 20, 30):
        path = place.save(step)
    found = place.store.find_newest()
    assert (found.place, found.refused) == (path, ())
    assert found.folder is not None and (found.folder / STATE).read_text() == "the state after step 30"
    assert place.steps() == [20, 30]
    assert place.store.find_newest() == found  # from the copy on this machine


def test_ranks_elsewhere_have_a_copy_of_the_one_that_the_coordinator_found_as_long_as_they_read_it(
    place: Place,
) -> None:
    place.save(3)
    found = place.store.find_newest().folder
    assert found is not None
    with place.store.brought(found) as here:
        assert here == found
    text = (found / STATE).read_text()
    shutil.rmtree(found.parent)  # nodes in a cluster see nothing of the launcher's machine
    with place.store.brought(found) as copy:
        assert copy != found and (copy / STATE).read_text() == text
    assert names(place.cache) == []
    (place.files(3) / STATE).unlink()
    with pytest.raises(CheckpointError), place.store.brought(found):
        pass
    assert names(place.cache) == []
    (place.files(3) / MANIFEST).unlink()
    with pytest.raises(OSError), place.store.brought(found):
        pass


def test_a_copy_makes_room_for_the_next_and_leaves_what_was_saved_on_this_machine(place: Place) -> None:
    before = save(place.cache, 5)
    for step in (10, 20):
        place.save(step)
        found = place.store.find_newest().folder
    assert found is not None and names(place.cache) == sorted(["latest.json", before.name, found.name])
    assert check(before).step == 5


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "manifest"])
def test_a_damaged_one_is_said_and_the_one_before_it_used(place: Place, damage: str) -> None:
    place.save(10)
    path = place.save(20)
    name = MANIFEST if damage == "manifest" else STATE
    file = place.files(20) / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-3] if damage == "cut" else content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    found = place.store.find_newest()
    assert found.manifest is not None and found.manifest.step == 10
    said = {"cut": "is cut short", "flipped": "checksum is wrong", "missing": "is missing", "manifest": ""}[damage]
    assert found.refused[0].startswith(f"{path}/{name}") and said in found.refused[0]
    place.store.set_aside(found.damaged[0])
    assert place.store.find_newest().refused == ()


@pytest.mark.parametrize("moment", ["_read_manifest", "_fetch"])
def test_what_is_removed_while_it_is_read_is_not_damaged(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A job that trains has saved two others since."""
    place.save(10)
    store, steps = place.store, iter((20, 30))
    read = getattr(store, moment)

    def read_late(*arguments: Any) -> Any:
        for step in steps:
            place.save(step)
        return read(*arguments)

    monkeypatch.setattr(store, moment, read_late)
    found = store.find_newest()
    assert found.manifest is not None and found.manifest.step == 30 and (found.refused, found.damaged) == ((), ())


def test_a_copy_that_goes_from_this_machine_while_it_is_made_says_nothing_of_what_is_saved(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.save(10)
    store = place.store
    monkeypatch.setattr(Path, "write_text", lambda path, *_, **__: shutil.rmtree(path.parent) or path.read_text())
    with pytest.raises(FileNotFoundError):
        store.find_newest()


def test_what_is_not_complete_is_not_there_and_goes_with_the_next(place: Place) -> None:
    place.save(10)
    place.save(20)
    (place.files(20) / MANIFEST).unlink()
    found = place.store.find_newest()
    assert found.manifest is not None and (found.manifest.step, found.refused) == (10, ())
    place.save(30)
    assert place.steps() == [10, 30]


def test_an_earlier_generation_changes_nothing(place: Place) -> None:
    place.save(10, generation=2)
    with pytest.raises(Fenced, match="a later checkpoint is in"):
        place.save(11, generation=1)
    assert place.steps() == [10]


def test_an_earlier_run_changes_nothing_and_is_told(place: Place) -> None:
    place.save(10)
    place.store.raise_fence(2)
    with pytest.raises(TakenOver, match="another launcher goes on with this job, in term 2"):
        place.save(11)
    found = place.store.find_newest()
    assert found.manifest is not None and found.manifest.step == 10
    assert place.store.last_term() == 2


def test_what_an_earlier_run_adds_after_its_last_look_does_not_count(place: Place) -> None:
    """A writer is frozen before its manifest, another run begins, and the writer thaws."""
    place.save(10)
    late = place.store
    wanted = manifest(40)

    def write(draft: Path, carry: object) -> Manifest:
        (draft / STATE).write_text("late")
        return replace(wanted, files=(seal(draft / STATE),))

    check, looks = late._check_fence, []

    def frozen(listing: object, mark: object) -> None:
        looks.append(listing)
        check(listing, mark)  # type: ignore[arg-type]
        if len(looks) == 2:
            place.store.raise_fence(2)

    late._check_fence = frozen  # type: ignore[method-assign, assignment]
    late.publish(write, wanted.mark, 2)
    found = place.store.find_newest()
    assert found.manifest is not None and found.manifest.step == 10
    place.save(12, term=2)
    assert place.steps() == [10, 12]


def test_a_manifest_whose_answer_is_lost_is_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.save(10)
    store = place.store
    with store._folder.opened() as storage:
        put = storage.pipe_file

        def lose_the_answer(path: str, content: bytes) -> None:
            put(path, content)
            raise ConnectionError("no answer")

        monkeypatch.setattr(storage, "pipe_file", lose_the_answer)
    path = publish_on(store, 20)
    monkeypatch.undo()
    found = place.store.find_newest()
    assert found.place == path and found.manifest is not None and found.manifest.step == 20
    assert publish_on(place.store, 20) == path, "and is not written twice"
    assert place.steps() == [10, 20]


def test_a_run_that_saves_nothing_hands_on_what_it_went_on_from(place: Place) -> None:
    place.save(10)
    place.store.raise_fence(2)
    place.store.raise_fence(3)
    found = place.store.find_newest()
    assert found.manifest is not None and found.manifest.step == 10


def test_a_job_that_begins_again_within_its_term_shuts_out_a_rank_that_was_cut_off(place: Place) -> None:
    place.save(10, generation=3)
    place.save(20, generation=3)
    place.store.raise_fence(1)
    place.store.raise_fence(1, 3)
    for generation in (2, 3):
        with pytest.raises(Fenced):
            place.save(30, generation=generation)
    found = place.store.find_newest()
    assert found.manifest is not None and found.manifest.step == 20
    place.save(25, generation=4)
    found = place.store.find_newest()
    assert found.manifest is not None and found.manifest.step == 25
    with pytest.raises(Fenced):
        place.save(40, generation=3)


def test_what_a_rank_that_was_cut_off_adds_after_its_last_look_does_not_count(place: Place) -> None:
    place.save(20, generation=3)
    late = place.store
    check, looks = late._check_fence, []

    def cut_off(listing: object, mark: object) -> None:
        looks.append(listing)
        check(listing, mark)  # type: ignore[arg-type]
        if len(looks) == 2:
            place.store.raise_fence(1, 3)

    late._check_fence = cut_off  # type: ignore[method-assign, assignment]
    publish_on(late, 30, generation=3)
    found = place.store.find_newest()
    assert found.manifest is not None and found.manifest.step == 20


def test_the_file_of_a_run_of_before_generations_were_named_counts(place: Place) -> None:
    place.save(10)
    folder = place.store._folder
    with folder.opened() as storage:
        root = folder.root
        storage.makedirs(f"{root}/terms", exist_ok=True)
        storage.pipe_file(f"{root}/terms/00000002-{'0' * 8}.json", b'{"v": 1, "keeps": []}')
    assert place.store.find_newest().manifest is None and place.store.last_term() == 2
    with pytest.raises(TakenOver):
        place.save(11)
    place.save(12, term=2)
    assert place.steps() == [12]


def test_two_launchers_at_once_do_not_both_begin(place: Place) -> None:
    place.store.raise_fence(2)
    place.store.raise_fence(2)  # the same one, which begins again
    with pytest.raises(CheckpointError, match="another launcher uses"):
        RemoteStore(place.url, place.cache, "0" * 8).raise_fence(2)


def test_several_processes_write_and_the_newest_is_whole(place: Place) -> None:
    code = (
        "import sys; from pathlib import Path; from elastic_launcher.checkpoint import Fenced;"
        "from elastic_launcher.checkpoint.remote import RemoteStore;"
        "from tests.support.checkpoints import publish_on\n"
        "for step in range(10, 60, 10):\n"
        "    try: publish_on(RemoteStore(sys.argv[1], Path(sys.argv[2])), step, int(sys.argv[3]))\n"
        "    except Fenced: pass\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, place.url, str(place.cache), str(generation)])
        for generation in (1, 2, 3)
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    found = place.store.find_newest()
    assert found.manifest is not None
    assert (found.manifest.mark.generation, found.manifest.step, found.refused) == (3, 50, ())


def test_a_store_that_does_not_answer_is_an_error_of_the_system(tmp_path: Path) -> None:
    with object_store(tmp_path / "buckets") as server:
        store = RemoteStore(server.url, tmp_path / "cache")
        publish_on(store, 10)
        server.stop()
        with pytest.raises(OSError, match="s3://models/jobs/digits: "):
            publish_on(store, 20)
        server.start()
        publish_on(store, 30)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://checkpoints", "lost with each process"),
        ("s3://", "s3:// names no place: give a folder, or a URL such as s3://bucket/folder"),
        ("gopher://host/folder", "gopher:// is not known to fsspec"),
        ("smb://host/folder", "smb://host/folder: .*smbprotocol"),
        ("hdfs://host/folder", "hdfs://host/folder: .*pyarrow"),
    ],
)
def test_what_cannot_be_reached_says_what_to_do(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)  # as without pyarrow
    with pytest.raises(StorageError, match=said):
        open_storage(url)


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(StorageError, match=r"s3://b/c needs fsspec: pip install 'elastic-launcher\[storage\]'"):
        open_storage("s3://b/c")


WRITES = """
import sys
from elastic_launcher.checkpoint.storage import open_storage
storage, root = open_storage(sys.argv[1])
for number in range(3):
    storage.pipe_file(f"{root}/{number}", b"content")
"""


def test_a_process_may_end_right_after_its_last_request(tmp_path: Path) -> None:
    with object_store(tmp_path) as store:
        codes = [subprocess.run([sys.executable, "-c", WRITES, store.url]).returncode for _ in range(12)]
    assert codes == [0] * 12
