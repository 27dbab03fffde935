"""Frozen parameters are written with the first checkpoint, later ones take their file over, and each one is whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_launcher.checkpoint import Mark, check
from elastic_launcher.checkpoint.store import CheckpointStore, LocalStore, open_store
from elastic_launcher.torch.state.checkpoint_writer import Saver, load
from elastic_launcher.torch.state.export import gather
from elastic_launcher.torch.state.tensors import digest
from elastic_launcher.torch.state.training_state import TrainingState
from tests.support.adapters import adapted, sizes, thaw_last_block, train
from tests.support.checkpoints import JOB
from tests.support.object_store import object_store
from tests.support.training_states import POSITION


class Saves:
    """Saves one training again and again."""

    def __init__(self, store: CheckpointStore, state: TrainingState) -> None:
        self.state = state
        self.failed: list[str] = []
        self._saver = Saver(store, 2, lambda saved: None, lambda step, why: self.failed.append(why))

    def save(self, step: int) -> None:
        position = replace(POSITION, step=step)
        self._saver.save(self.state, position, JOB, Mark(1, 1, step), 1)
        self._saver.wait()

    def train_and_save(self, step: int) -> None:
        train(self.state, step, 1)
        self.save(step)


def look(state: TrainingState) -> Any:
    captured = state.capture()
    return captured.header, [int(digest(tensor)) for tensor in captured.tensors]


def loaded(folder: Path, thawed: bool = False) -> TrainingState:
    """Returns the state of a checkpoint, all of whose bytes were checked, in a model that was built otherwise."""
    state = adapted(seed=9)
    if thawed:
        thaw_last_block(state)
    load(folder, check(folder), state)
    return state


def written(folder: Path, before: Path | None = None) -> int:
    """Returns how many bytes of a checkpoint are not those of the one before."""
    known = {path.stat().st_ino for path in before.iterdir()} if before else set()
    return sum(path.stat().st_size for path in folder.iterdir() if path.stat().st_ino not in known)


def folder_of(place: Path, step: int) -> Path:
    return place / f"step-{step:08d}"


def test_each_checkpoint_is_whole_and_what_is_frozen_is_written_once(tmp_path: Path) -> None:
    saves = Saves(LocalStore(tmp_path), adapted())
    looks = {}
    for step in range(1, 5):
        saves.train_and_save(step)
        looks[step] = look(saves.state)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000003", "step-00000004"]
    one, other = folder_of(tmp_path, 3), folder_of(tmp_path, 4)
    whole, frozen = sizes(saves.state)
    print(f"{written(other) / 1e6:.3f} MB, of which {written(other, one) / 1e6:.3f} MB are written")
    assert written(other) > whole > 40 * written(other, one)
    assert whole - frozen < written(other, one)
    alone = Path(shutil.copytree(other, tmp_path / "elsewhere" / other.name))
    shutil.rmtree(one)
    assert look(loaded(alone)) == look(loaded(other)) == looks[4]
    model = gather(other, check(other))["model"]
    assert all(torch.equal(value, model[name]) for name, value in saves.state.models[0].state_dict().items())


def thaw(state: TrainingState, step: int) -> None:
    if step == 2:
        thaw_last_block(state)


def thaw_and_freeze(state: TrainingState, step: int) -> None:
    thaw(state, step)
    if step == 4:
        state.models[0].blocks[-1].requires_grad_(False)


def rewrite(state: TrainingState, step: int) -> None:
    """As a teacher's weights follow a student's."""
    for parameter in state.models[0].blocks[0].parameters():
        parameter.data.mul_(0.5)


@pytest.mark.parametrize(
    ("change", "blocks"),
    [  # with two moments of Adam
        (thaw_and_freeze, 2),
        pytest.param(thaw, 3, marks=pytest.mark.thorough),
        pytest.param(rewrite, 1, marks=pytest.mark.thorough),
    ],
)
def test_what_changes_is_written_again(
    tmp_path: Path, change: Callable[[TrainingState, int], None], blocks: int
) -> None:
    saves = Saves(LocalStore(tmp_path), adapted())
    for step in range(1, 6):
        change(saves.state, step)
        saves.train_and_save(step)
        thawed = len(saves.state.optimizers[0].param_groups) > 1
        assert look(loaded(folder_of(tmp_path, step), thawed)) == look(saves.state), step
    block = sum(p.nbytes for p in saves.state.models[0].blocks[0].parameters())
    last = written(folder_of(tmp_path, 5), folder_of(tmp_path, 4))
    assert blocks * block < last < (blocks + 0.2) * block


def test_a_file_system_without_links_gets_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    saves = Saves(LocalStore(tmp_path), adapted())
    for step in (1, 2):
        saves.train_and_save(step)
    one, other = folder_of(tmp_path, 1), folder_of(tmp_path, 2)
    assert written(other, one) == written(other) and saves.failed == []
    assert look(loaded(other)) == look(saves.state)


@pytest.mark.parametrize("event", ["the last one is gone", "a save failed"])
def test_all_is_written_where_the_last_one_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    saves = Saves(LocalStore(tmp_path), adapted())
    saves.train_and_save(1)
    if event == "a save failed":
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
            saves.train_and_save(2)
        assert len(saves.failed) == 1
    else:
        shutil.rmtree(folder_of(tmp_path, 1))
    saves.train_and_save(3)
    assert look(loaded(folder_of(tmp_path, 3))) == look(saves.state)


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield (tmp_path / "store").as_uri()
        return
    with object_store(tmp_path / "buckets") as store:
        yield store.url


def test_an_object_store_copies_what_is_frozen(tmp_path: Path, url: str) -> None:
    store = open_store(url, tmp_path / "cache")
    saves = Saves(store, adapted())
    sent: list[int] = []
    with store._folder.opened() as storage:  # type: ignore[union-attr]
        put = storage.put_file

        def count(local: str, path: str) -> None:
            sent.append(os.stat(local).st_size)
            put(local, path)

        storage.put_file = count
    for step in (1, 2, 3):
        sent.clear()
        saves.train_and_save(step)
    whole = sizes(saves.state)[0]
    found = store.find_newest()
    assert saves.failed == [] and found.folder is not None
    print(f"{written(found.folder) / 1e6:.3f} MB, of which {sum(sent) / 1e6:.3f} MB are sent")
    assert sum(sent) < whole / 40 < whole < written(found.folder)
    assert look(loaded(found.folder)) == look(saves.state)
