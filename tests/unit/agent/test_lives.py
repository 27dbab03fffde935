"""The record of a respawn node's workers, on a disk that becomes full within a line of it."""

from __future__ import annotations

import base64
import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.agent.echo import Echo
from elastic_launcher.agent.lives import Lives
from elastic_launcher.agent.log_sender import LogSender
from elastic_launcher.agent.rank_exec import tell_life
from elastic_launcher.control.requests import Life


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """Has a file take so many bytes, as a disk that becomes full does: a write that crosses them is short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_is_torn_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes").mkdir()
    monkeypatch.setenv("ELASTIC_WORK_DIR", str(tmp_path))
    monkeypatch.setenv("ELASTIC_NODE", "1")
    path = tmp_path / "nodes/1.lives"
    lives = Lives(path)
    tell_life(waits=0)
    with room_for(path.stat().st_size + 24):
        tell_life(started=0, pid=12345, rank=0, world_size=1)
    assert path.read_text().endswith('\n{"started": 0, "pid": 12'), "the line is torn"
    assert [life.waits for life in lives.read()] == [0]
    tell_life(ended=0, exit_code=0, signal=None)
    tell_life(waits=1)
    (ended, waits) = lives.read()
    assert (ended.ended, waits.waits) == (0, 1)
    assert 1 < ended.n < waits.n


def test_records_and_logs_that_the_disk_does_not_give_for_a_moment_are_read_later(tmp_path: Path) -> None:
    told: list[bytes] = []
    path = tmp_path / "1"
    path.mkdir()
    lives = Lives(path)
    sender = LogSender(path, lambda offset, data: told.append(base64.b64decode(data)), Echo(0))
    assert (lives.read(), sender.send()) == ([], False)
    path.rmdir()
    path.write_text('{"waits": 1}\n')
    assert (lives.read(), sender.send(), told) == ([Life(n=1, waits=1)], False, [path.read_bytes()])
