"""Rank 0's lines are shown, wherever rank 0 is, and those of whatever fails; nothing else, and nothing twice."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from elastic_launcher.launcher.log_cursor import FILE, Shown
from elastic_launcher.launcher.log_follower import LogFollower

Lines = list[tuple[int | None, str]]


def mark(generation: int, rank: int) -> str:
    return f"::elastic generation={generation} rank={rank} world_size=3::\n"


class Ranks:
    """Writes what scripts would write, and follows it."""

    def __init__(self, folder: Path, rotate_bytes: int = 1 << 30) -> None:
        self.folder = folder
        self.shown: Lines = []
        self.follower = LogFollower(folder, lambda rank, text: self.shown.append((rank, text)), rotate_bytes)

    def write(self, name: str, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        descriptor = os.open(self.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(descriptor, data)
        os.close(descriptor)
        while self.follower.poll():
            pass


def test_nodes_of_an_earlier_run_are_not_followed(tmp_path: Path) -> None:
    shown: Lines = []
    for name in ("3-0", "4-0"):
        (tmp_path / f"{name}.log").write_text(f"of {name}\n")
    follower = LogFollower(tmp_path, lambda rank, text: shown.append((rank, text)), first_node=4)
    follower.close()
    assert shown == [(0, "of 4-0")]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_before_any_mark_the_first_rank_stands_for_rank_0(ranks: Ranks) -> None:
    ranks.write("1-0", "loading\n")
    ranks.write("1-1", "loading too\n")
    ranks.write("2-0", "loading as well\n")
    assert ranks.shown == [(0, "loading")]


def test_marks_decide_who_is_rank_0_and_are_not_shown(ranks: Ranks) -> None:
    ranks.write("1-0", "a\n" + mark(1, 0) + "b\n")
    ranks.write("2-0", "joining\n" + mark(2, 1) + "c\n")
    ranks.write("2-0", mark(3, 0) + "d\n")
    assert ranks.shown == [(0, "a"), (0, "b"), (0, "d")]


def test_what_a_rank_0_wrote_before_its_first_mark_is_shown_then(ranks: Ranks) -> None:
    ranks.write("1-0", "fails to come up\n")
    ranks.write("2-0", "loading\n")
    assert ranks.shown == [(0, "fails to come up")]
    ranks.write("2-0", mark(1, 0) + "training\n")
    assert ranks.shown[1:] == [(0, "loading"), (0, "training")]


def test_a_rank_that_is_0_no_more_is_not_shown_any_more(ranks: Ranks) -> None:
    ranks.write("1-0", mark(1, 0) + "a\n" + mark(2, 1) + "b\n")
    assert ranks.shown == [(0, "a")]


def test_the_last_lines_of_what_fails_are_shown_and_all_that_follow(ranks: Ranks) -> None:
    ranks.write("1-0", mark(1, 0) + "fine\n")
    ranks.write("2-0", mark(1, 1) + "".join(f"line {number}\n" for number in range(50)))
    ranks.follower.show_failure(2, 0, lines=2)
    ranks.write("2-0", "Traceback\n")
    ranks.follower.show_failure(2, 0)
    assert ranks.shown == [(0, "fine"), (1, "line 48"), (1, "line 49"), (1, "Traceback")]


def test_a_failing_rank_0_shows_nothing_twice(ranks: Ranks) -> None:
    ranks.write("1-0", mark(1, 0) + "a\nb\n")
    ranks.follower.show_failure(1, 0)
    ranks.write("1-0", "c\n")
    assert ranks.shown == [(0, "a"), (0, "b"), (0, "c")]


def test_what_fails_before_it_has_a_rank_is_shown_with_its_node(ranks: Ranks) -> None:
    ranks.write("1-0", mark(1, 0))
    ranks.write("2-0", "no module named torch\n")
    ranks.follower.show_failure(2, 0)
    ranks.follower.show_failure(9, 0)
    assert ranks.shown == [(None, "[node 2] no module named torch")]


def test_a_failure_is_shown_from_its_traceback_on_whatever_was_written_after_it(ranks: Ranks) -> None:
    ranks.write("2-0", mark(1, 1) + "".join(f"before {number}\n" for number in range(30)))
    ranks.write("2-0", "Traceback (most recent call last):\n  f()\nValueError: boom\n")
    ranks.write("2-0", "".join(f"leaked {number}\n" for number in range(40)))
    ranks.follower.show_failure(2, 0)
    assert [line for _, line in ranks.shown][:4] == [
        "Traceback (most recent call last):",
        "  f()",
        "ValueError: boom",
        "leaked 0",
    ]
    assert ranks.shown[-1] == (1, "leaked 39")


def test_last_lines_hold_an_unfinished_one_too(ranks: Ranks) -> None:
    ranks.write("2-0", "a\nb\nc\nSegmentation")
    assert ranks.follower.last_lines(2, 0, lines=3) == ["b", "c", "Segmentation"]
    assert ranks.follower.last_lines(3, 0) == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"half", []),
        (b"half a line\n", ["half a line"]),
        (b"10 %\r50 %\r100 %\n", ["100 %"]),
        (b"dos\r\n", ["dos"]),
        (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"loss 0.3 " + mark(1, 0).encode() + b"next\n", ["loss 0.3 ", "next"]),
        (b"\n", [""]),
        (b"x" * 70_000, ["x" * 70_000]),
    ],
)
def test_lines_are_shown_as_a_terminal_would(ranks: Ranks, written: bytes, shown: list[str]) -> None:
    ranks.write("1-0", written)
    assert [text for _, text in ranks.shown] == shown


def test_a_line_without_an_end_is_shown_at_the_end(ranks: Ranks) -> None:
    ranks.write("1-0", "last words")
    ranks.follower.close()
    assert ranks.shown == [(0, "last words")]


def test_a_file_that_grew_large_is_copied_and_cut_and_nothing_is_lost(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, rotate_bytes=1000)
    ranks.write("1-0", mark(1, 0))
    for number in range(300):
        ranks.write("1-0", f"line {number}\n")
    assert ranks.shown == [(0, f"line {number}") for number in range(300)]
    assert (tmp_path / "1-0.log").stat().st_size < 1000 <= (tmp_path / "1-0.log.1").stat().st_size
    kept = (tmp_path / "1-0.log.1").read_text() + (tmp_path / "1-0.log").read_text()
    assert kept.endswith("line 298\nline 299\n")


def test_a_file_that_someone_else_cut_is_read_from_its_start(ranks: Ranks) -> None:
    ranks.write("1-0", mark(1, 0) + "before\n")
    os.truncate(ranks.folder / "1-0.log", 0)
    ranks.write("1-0", "after\n")
    assert ranks.shown == [(0, "before"), (0, "after")]


def test_other_files_in_the_folder_are_left_alone(ranks: Ranks) -> None:
    (ranks.folder / "torchrun-1").mkdir()
    ranks.write("1", "the agent's\n")
    ranks.write("1-0.old", "someone's\n")
    assert ranks.shown == []


def test_it_follows_until_cancelled(tmp_path: Path) -> None:
    async def follow() -> None:
        ranks = Ranks(tmp_path)
        task = asyncio.create_task(ranks.follower.run())
        (tmp_path / "1-0.log").write_text("hello\n")
        async with asyncio.timeout(10):
            while not ranks.shown:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ranks.shown == [(0, "hello")]

    asyncio.run(follow())


@pytest.mark.parametrize("end", ["failed", "ends"])
def test_why_the_job_ended_is_left_to_the_launcher_to_say(ranks: Ranks, end: str) -> None:
    ranks.write("1-0", mark(1, 0) + f"bye\nelastic-launcher: the job {end}: stopped; this rank leaves\n")
    assert ranks.shown == [(0, "bye")]


def test_a_launcher_that_comes_back_shows_what_is_left(tmp_path: Path) -> None:
    """It knows who rank 0 is, and the lines before a failure, although it shows none of them twice."""
    ranks = Ranks(tmp_path)
    ranks.write("1-0", mark(1, 1) + "of rank 1\n")
    ranks.write("2-0", mark(1, 0) + "one\ntwo\nthr")
    Shown(tmp_path).remember({(1, 0): size(tmp_path, "1-0"), (2, 0): size(tmp_path, "2-0") - len("thr")})
    ranks.write("2-0", "ee\n")
    back: Lines = []
    follower = LogFollower(tmp_path, lambda rank, text: back.append((rank, text)), shown=Shown(tmp_path, True))
    while follower.poll():
        pass
    assert back == [(0, "three")]
    follower.show_failure(1, 0)
    ranks.write("2-0", "four\n")
    follower.close()
    assert back[1:] == [(1, "of rank 1"), (0, "four")]


def test_a_log_that_was_cut_since_is_shown_from_its_beginning(tmp_path: Path) -> None:
    Ranks(tmp_path).write("1-0", mark(1, 0) + "before\n")
    Shown(tmp_path).remember({(1, 0): size(tmp_path, "1-0")})
    (tmp_path / "1-0.log").write_text("after\n")
    assert not Shown(tmp_path, True).was_shown((1, 0), len("after\n"))


@pytest.mark.parametrize("text", ["", "[]", '{"1": "x"}', '{"a-b": 3}'])
def test_what_was_shown_is_not_known_where_that_can_not_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert not Shown(tmp_path, True).was_shown((1, 0), 1)


def size(folder: Path, name: str) -> int:
    return (folder / f"{name}.log").stat().st_size


def test_files_of_nodes_that_are_gone_are_closed_and_opened_again_when_they_grow(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in range(1, 51):
        ranks.write(f"{node}-0", "here\n")

    def held() -> int:
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum(os.path.exists(link) and os.readlink(link).startswith(str(ranks.folder)) for link in links)

    assert held() > 0
    for _ in range(200):
        ranks.follower.poll()
    assert held() == 0
    for node in range(2, 51):
        ranks.follower.forget(node)
    looks: list[object] = []
    monkeypatch.setattr(os, "stat", lambda path, stat=os.stat: looks.append(path) or stat(path))
    for _ in range(100):
        ranks.follower.poll()
    assert len(looks) == 100 + 49  # the one of the node that is there each time, the others once
    monkeypatch.undo()
    ranks.write("1-0", "again\n")
    assert (held(), ranks.shown[-1]) == (1, (0, "again"))
    assert ranks.follower.last_lines(7, 0) == ["here"]
    (ranks.folder / "1-0.log").write_text("here\nagain\nonce more\n")
    (ranks.folder / "9-0.log").write_text("here\nlate\n")
    ranks.follower.close()
    assert ranks.shown[-1] == (0, "once more")
