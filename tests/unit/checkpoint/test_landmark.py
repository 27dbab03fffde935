"""Whether a path leads to one folder on all machines, told by real folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_launcher.checkpoint import find_newest
from elastic_launcher.checkpoint.landmark import Landmark, landmark_of, missed, put, remove

KEY = bytes(range(32))
LANDMARK = landmark_of("digits-x", KEY)
NOBODY = 65534


def test_the_same_folder_is_known_again_and_nothing_stays_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "claim" / "checkpoints"
    put(folder, LANDMARK)
    assert missed(folder, LANDMARK) == ""
    put(folder, LANDMARK)  # the coordinator after this one
    assert [one.name for one in folder.iterdir()] == [LANDMARK.name]
    assert find_newest(folder).folder is None
    remove(folder, LANDMARK)
    assert not list(folder.iterdir())
    remove(folder, LANDMARK)


def test_siblings_may_use_one_folder(tmp_path: Path) -> None:
    other = landmark_of("digits-y", KEY)
    for landmark in (LANDMARK, other):
        put(tmp_path, landmark)
    remove(tmp_path, other)
    assert missed(tmp_path, LANDMARK) == ""


@pytest.mark.parametrize("there", [None, landmark_of("digits-x", bytes(32)), landmark_of("digits-y", KEY)])
def test_another_folder_under_the_same_path_is_recognised(tmp_path: Path, there: Landmark | None) -> None:
    if there is not None:
        put(tmp_path, there)
    assert missed(tmp_path, LANDMARK) == "sees another folder there"


def test_a_folder_that_is_not_there_or_is_none_is_said(tmp_path: Path) -> None:
    assert missed(tmp_path / "unmounted", LANDMARK) == "has no such folder"
    (tmp_path / "file").touch()
    assert missed(tmp_path / "file", LANDMARK) == "can't read it (Not a directory)"


def test_a_folder_that_can_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, LANDMARK)
    tmp_path.chmod(0o555)
    monkeypatch.chdir(tmp_path)  # the way there is root's alone
    user = os.geteuid()
    if user == 0:  # who may write everywhere
        os.seteuid(NOBODY)
    try:
        assert missed(Path(), LANDMARK) == "can't write there (Permission denied)"
    finally:
        os.seteuid(user)
