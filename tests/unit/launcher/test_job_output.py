"""The output of scripts and the events are shown in order, and the last lines of a failed rank once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.events import Event
from elastic_launcher.launcher import job_output
from elastic_launcher.launcher.job_output import JobOutput


class Recorder:
    """Stands for the display."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def script_line(self, rank: int | None, text: str) -> None:
        self.shown.append(f"[rank {rank}] {text}" if rank is not None else text)

    def feed(self, event: Event) -> None:
        self.shown.append(event.kind)


def output_of(folder: Path, recorder: Recorder) -> JobOutput:
    display: Any = recorder
    return JobOutput(display, folder, nproc_per_node=1)


def test_what_scripts_wrote_before_an_event_is_shown_before_it(tmp_path: Path) -> None:
    recorder = Recorder()
    show = output_of(tmp_path, recorder)
    (tmp_path / "1-0.log").write_text("hello\n")
    show.take(Event("generation_formed", 0.0, 1))
    assert recorder.shown == ["[rank 0] hello", "generation_formed"]


def test_an_event_waits_for_no_script_that_floods_its_log(tmp_path: Path) -> None:
    recorder = Recorder()
    show = output_of(tmp_path, recorder)
    (tmp_path / "1-0.log").write_text("much\n" * 1_000_000)
    show.take(Event("generation_formed", 0.0, 1))
    assert recorder.shown[-1] == "generation_formed"
    assert show.follower.poll(), "there is more to show"


def test_the_end_of_a_node_waits_for_no_rank_that_floods_its_log(tmp_path: Path) -> None:
    """It writes faster than it is read: each line that is shown has it write as much again."""

    class Flood(Recorder):
        def script_line(self, rank: int | None, text: str) -> None:
            super().script_line(rank, text)
            if len(self.shown) > 1000:
                raise OverflowError("it is read for ever")
            with open(tmp_path / "1-0.log", "a") as log:
                log.write(line)

    line = "x" * (1 << 19) + "\n"
    (tmp_path / "1-0.log").write_text("::elastic generation=1 rank=0 world_size=1::\n" + line)
    recorder = Flood()
    show = output_of(tmp_path, recorder)
    show.take(Event("node_failed", 0.0, 1, {"node": 1, "message": "..."}))
    assert recorder.shown[-1] == "node_failed"
    assert show.last_words("rank 0 failed\nLast lines of logs/1-0.log:\n  a flaw", (1, 0)).startswith("rank 0 failed")
    assert show.follower.poll(), "there is more to show"


def unreadable(log: Path) -> None:
    log.symlink_to("/proc/self/mem")  # nothing is at its first address: an input/output error


def not_opened(log: Path) -> None:
    log.mkdir()


def not_listed(log: Path) -> None:
    log.parent.rmdir()


@pytest.mark.parametrize("refuse", [unreadable, not_opened, not_listed], ids=["read", "open", "list"])
def test_a_log_that_the_disk_does_not_give_for_a_moment_is_shown_later(
    tmp_path: Path, refuse: Callable[[Path], None]
) -> None:
    recorder, log = Recorder(), tmp_path / "logs/1-0.log"
    log.parent.mkdir()
    show = output_of(log.parent, recorder)
    refuse(log)
    show.take(Event("progress", 0.0, 1))
    show.take(Event("node_failed", 0.0, 1, {"node": 1, "message": "..."}))
    assert recorder.shown == ["progress", "node_failed"]
    log.parent.mkdir(exist_ok=True)
    if log.is_symlink():
        log.unlink()
    elif log.exists():
        log.rmdir()
    log.write_text("hello\n")
    show.follower.close()
    assert recorder.shown[2:] == ["[rank 0] hello"]


def test_the_lines_of_a_node_that_failed_are_shown(tmp_path: Path) -> None:
    recorder = Recorder()
    show = output_of(tmp_path, recorder)
    (tmp_path / "1-0.log").write_text("::elastic generation=1 rank=0 world_size=1::\n")
    (tmp_path / "2-0.log").write_text("no such file\n")
    show.take(Event("node_failed", 0.0, 1, {"node": 2, "message": "..."}))
    assert recorder.shown == ["[node 2] no such file", "node_failed"]


@pytest.mark.parametrize("kind", ["node_left", "node_failed", "node_lost"])
def test_the_lines_of_a_node_that_is_gone_are_kept_in_its_files_alone(tmp_path: Path, kind: str) -> None:
    recorder = Recorder()
    show = output_of(tmp_path, recorder)
    (tmp_path / "1-0.log").write_text("::elastic generation=1 rank=0 world_size=2::\n")
    (tmp_path / "2-0.log").write_text("::elastic generation=1 rank=1 world_size=2::\nTraceback\na flaw\n")
    show.take(Event(kind, 0.0, 1, {"node": 2, "member": 2, "message": "..."}))
    assert not any(log.recent for place, log in show.follower._logs.items() if place[0] == 2)
    words = show.last_words("rank 1 failed\nLast lines of logs/2-0.log:\n  Traceback\n  a flaw", (2, 0))
    told = "\n".join([*recorder.shown, words])
    assert told.count("a flaw") == 1


@pytest.mark.parametrize(
    ("quoted", "message"),
    [
        ("  Traceback\n  a flaw", "rank 1 failed"),
        ("  Traceback\n  another flaw", "rank 1 failed\nLast lines of logs/2-0.log:\n  Traceback\n  another flaw"),
    ],
)
def test_last_lines_that_were_shown_are_not_shown_again(tmp_path: Path, quoted: str, message: str) -> None:
    recorder = Recorder()
    show = output_of(tmp_path, recorder)
    (tmp_path / "1-0.log").write_text("::elastic generation=1 rank=0 world_size=2::\n")
    (tmp_path / "2-0.log").write_text("::elastic generation=1 rank=1 world_size=2::\nTraceback\na flaw\n")
    show.follower.poll()
    assert show.last_words(f"rank 1 failed\nLast lines of logs/2-0.log:\n{quoted}", (2, 0)) == message
    assert recorder.shown == ["[rank 1] Traceback", "[rank 1] a flaw"]


def test_a_message_without_last_lines_stays_as_it_is(tmp_path: Path) -> None:
    assert output_of(tmp_path, Recorder()).last_words("done", None) == "done"


def test_progress_is_told_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_output, "PROGRESS_SECONDS", 0.001)

    async def looks() -> int:
        count, enough = 0, asyncio.Event()

        class Counted(Recorder):
            def tell_progress(self) -> None:
                nonlocal count
                count += 1
                if count == 3:
                    enough.set()

        telling = asyncio.create_task(output_of(tmp_path, Counted()).tell_progress())
        try:
            await asyncio.wait_for(enough.wait(), 10)
        finally:
            telling.cancel()
        return count

    assert asyncio.run(looks()) == 3
