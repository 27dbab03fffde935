"""A file is replaced as a whole, or stays as it was."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from elastic_launcher.host.files import ABANDONED_SECONDS, replacing


def test_a_reader_sees_the_old_file_until_all_of_the_new_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_not_written_to_its_end_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ValueError), replacing(path, lasting=True) as file:
        file.write(b"half")
        raise ValueError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_secret_is_never_readable_for_others(tmp_path: Path) -> None:
    with replacing(tmp_path / "key", mode=0o600) as file:
        assert stat.S_IMODE(os.stat(file.name).st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_two_writers_at_once_do_not_share_a_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as first, replacing(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_text() == "first", "the one that ends last"


def test_the_draft_of_a_killed_writer_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    path, killed, other = tmp_path / "file[1]", tmp_path / ".file[1].0123abcd", tmp_path / ".file1.0123abcd"
    now = time.time()
    for left in (killed, other):
        left.write_text("half")
        os.utime(left, (now, now - 2 * ABANDONED_SECONDS))
    with replacing(path) as living:
        assert not killed.exists()
        with replacing(path) as file:
            file.write(b"first")
        living.write(b"last")
    assert path.read_text() == "last"
    assert sorted(os.listdir(tmp_path)) == [other.name, path.name]
