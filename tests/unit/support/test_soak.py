"""The launches of ``make soak``: what they cover, and how their log is kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.soak.cases import CODES, COUNT, KINDS, STARTING, TRAINING, case
from tests.soak.log import Log

ALL = [case(number) for number in range(1, COUNT + 1)]


def test_a_number_is_one_case() -> None:
    assert [case(one.number) for one in ALL] == ALL


def test_the_first_twenty_have_each_kind_twice() -> None:
    assert min(Counter(one.kind for one in ALL[:20]).values()) >= 2
    assert {one.kind for one in ALL[:20]} == set(KINDS)


def test_a_hundred_have_each_end_moment_and_change() -> None:
    assert {one.end for one in ALL} == set(CODES)
    for kind in ("interrupted", "terminated", "launcher killed"):
        assert {one.moment for one in ALL if one.kind == kind} == {*STARTING, *TRAINING}
    assert {one.moment for one in ALL if one.change} >= {"hint_applied", "node_started", "notice", "node_left"}
    assert {one.change for one in ALL} == {"", "grow", "shrink", "notice"}


def test_a_log_keeps_the_lines_of_other_launches_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    for number in (1001, 2, 1, 3, 40):
        Log(path, afresh=()).add(number, f"{number:03d} before")
    log = Log(path, afresh=range(2, 4))
    log.add(3, "003 again")
    assert path.read_text() == "001 before\n003 again\n040 before\n1001 before\n"
    assert [file.name for file in tmp_path.iterdir()] == ["log.txt"]


def test_a_file_that_is_no_log_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n")
    with pytest.raises(ValueError, match="notes.txt is no log of launches: 'buy milk'"):
        Log(path, afresh=range(1, 101))
