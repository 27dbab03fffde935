"""No change is lost from a history because of what stands before it, or of what its names are made of."""

from __future__ import annotations

import resource
import tracemalloc
from collections import deque
from pathlib import Path

import pytest

from elastic_launcher.quota.history import append, read
from elastic_launcher.quota.rounds.round import Change


def _change(job: str) -> Change:
    return Change(job, "nlp", 2, 4, "guarantee", "2 → 4 GPUs")


def test_the_change_after_a_torn_line_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append(path, [_change("bert")], 1.0)
    with open(path, "ab") as file:
        file.write(b'{"v": 1, "time": 2.0, "jo')
    append(path, [_change("gpt")], 3.0)
    append(path, [_change("vit")], 4.0)
    assert [row["job"] for row in read(path)] == ["bert", "gpt", "vit"]


@pytest.mark.parametrize("name", ["a\u2028b", "a\x85b", "a\x1cb", "a\nb"])
def test_a_name_may_hold_any_end_of_a_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "history.jsonl"
    append(path, [_change(name)], 1.0)
    assert [row["job"] for row in read(path)] == [name]


@pytest.mark.parametrize(
    "line", ["{}", "[]", '{"time": "x"}', '{"time": 1e300}', '{"time": NaN}', '{"time": 2.0, "job": 3}']
)
def test_a_line_that_is_no_change_is_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(f"{line}\n")
    append(path, [_change("gpt")], 3.0)
    assert [row["job"] for row in read(path)] == ["gpt"]


def test_changes_that_a_full_disk_has_no_room_for_are_there_once_when_it_has_some(tmp_path: Path) -> None:
    path, changes = tmp_path / "history.jsonl", [_change("bert"), _change("gpt"), _change("vit")]
    append(path, changes[:1], 1.0)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * path.stat().st_size + 9, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append(path, changes[1:], 2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    append(path, changes[1:], 2.0)
    assert [row["job"] for row in read(path)] == ["bert", "gpt", "vit"]


def test_the_last_changes_of_a_long_history_need_no_memory_for_the_others(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append(path, [_change(f"job-{number}") for number in range(5000)], 1.0)
    tracemalloc.start()
    try:
        (row,) = deque(read(path), 1)
        assert (row["job"], tracemalloc.get_traced_memory()[1] < path.stat().st_size / 2) == ("job-4999", True)
    finally:
        tracemalloc.stop()
