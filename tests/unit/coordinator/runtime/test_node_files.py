"""The folder of checkpoints, as a launcher of a cluster marks it for its nodes: away for a while, or not its own."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import closing
from itertools import count, repeat
from pathlib import Path

import pytest

from elastic_launcher.checkpoint import landmark
from elastic_launcher.checkpoint.landmark import Landmark
from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.coordinator.coordinator import Coordinator
from elastic_launcher.coordinator.runtime.endpoints import CoordinatorHost
from elastic_launcher.coordinator.runtime.node_files import NodeFiles
from elastic_launcher.engines.local import LocalEngine
from elastic_launcher.events import EventLog, read_events
from elastic_launcher.host.transient import StoreAway
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Layout, claim

HOME = CoordinatorHost(landmark=Landmark(".elastic-launcher-digits-x", "value"))
CONFIG = JobConfig(script="train.py", work_dir="job", orphan_timeout=30.0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.host.transient.RETRY_SECONDS", (0.02,))


def refuse(monkeypatch: pytest.MonkeyPatch, codes: Iterator[int]) -> None:
    """Has the disk answer so, one write after another, and then take what is written."""
    put = landmark.put

    def refused_or_put(folder: Path, mark: Landmark) -> None:
        if code := next(codes, 0):
            raise OSError(code, os.strerror(code))
        put(folder, mark)

    monkeypatch.setattr(landmark, "put", refused_or_put)


def open_files(tmp_path: Path, warnings: list[str], clock: Iterator[int]) -> None:
    files = NodeFiles(CONFIG, Layout(tmp_path), "localhost:1", HOME)
    asyncio.run(files.open(warnings.append, lambda: float(next(clock))))


def test_a_folder_that_is_away_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, iter([errno.EIO, errno.ESTALE]))
    warnings: list[str] = []
    open_files(tmp_path, warnings, repeat(100))
    assert (Layout(tmp_path).checkpoints / ".elastic-launcher-digits-x").read_text() == "value"
    away = f"--checkpoint-dir is {tmp_path / 'checkpoints'}: the launcher can't write there"
    assert warnings == [
        f"{away} (Input/output error); that is tried again for 30 s",
        f"{away} (Stale file handle); that is tried again for 30 s",
    ]


def test_a_folder_that_stays_away_is_given_up_after_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, repeat(errno.ENOSPC))
    warnings: list[str] = []
    with pytest.raises(StoreAway, match=r"No space left on device\)"):
        open_files(tmp_path, warnings, count(100, 10))
    assert len(warnings) == 2


def test_a_folder_that_is_not_ours_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("no folder")
    warnings: list[str] = []
    with pytest.raises(ConfigError, match="the launcher can't write there .*mount one volume") as told:
        open_files(tmp_path, warnings, repeat(100))
    assert not isinstance(told.value, StoreAway) and not warnings


@pytest.mark.parametrize(
    ("code", "exit_code", "warned", "said"),
    [
        (errno.EIO, ExitCode.STOPPED, True, "it was away for 0.1 s (--orphan-timeout): try again later"),
        (errno.EACCES, ExitCode.BAD_USAGE, False, landmark.MEND),
    ],
)
def test_what_the_launcher_ends_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, exit_code: int, warned: bool, said: str
) -> None:
    refuse(monkeypatch, repeat(code))
    config = JobConfig(script="train.py", work_dir=str(tmp_path / "job"), orphan_timeout=0.1)
    with claim(config, tmp_path) as work_dir, closing(EventLog(work_dir.layout.events)) as events:
        engine = LocalEngine(config, work_dir.layout, gpus=[])
        coordinator = Coordinator(config, work_dir.path, engine, events, home=HOME)
        assert asyncio.run(coordinator.run()) == exit_code
        assert coordinator.message.endswith(said)
        kinds = [event.kind for event in read_events(work_dir.layout.events)]
    assert (kinds[-1], set(kinds[:-1])) == ("job_finished", {"warning"} if warned else set())
