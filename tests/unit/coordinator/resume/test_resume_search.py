"""A job that begins again in mid-life does not end because its checkpoints can't be had at that moment."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.state import Rules, State
from elastic_launcher.coordinator.resume.resume_point import Origin
from elastic_launcher.coordinator.resume.resume_search import CannotRestart, ResumeSearch
from elastic_launcher.workdir import Layout
from tests.support.checkpoints import save

CONFIG = JobConfig(script="jobs/train.py", arguments=("--lr", "0.1"), orphan_timeout=30.0)
ENDED = State(Rules(1, 1, "localhost:1"))


class Disk:
    """One that does not give the newest checkpoint, until it does."""

    def __init__(self, work_dir: Path) -> None:
        self._file = save(Layout(work_dir).checkpoints, 20) / "state.json"
        self._content = self._file.read_bytes()
        self._file.unlink()
        self._file.symlink_to(self._file)

    def mend(self) -> None:
        self._file.unlink()
        self._file.write_bytes(self._content)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.host.transient.RETRY_SECONDS", (0.0,))


def test_what_can_be_read_later_is_gone_on_from(tmp_path: Path) -> None:
    disk, warnings = Disk(tmp_path), list[str]()

    def warn(message: str) -> None:
        warnings.append(message)
        disk.mend()

    found = ResumeSearch(CONFIG, Layout(tmp_path), Origin(), lambda observation: None, warn, lambda: 100.0)
    first, refused = asyncio.run(found.look(ENDED))
    assert (first.step, refused, len(warnings)) == (20, (), 1)
    assert "can't be read: " in warnings[0] and warnings[0].endswith("; that is tried again for 30 s")


def test_what_can_never_be_read_ends_the_job_after_a_time(tmp_path: Path) -> None:
    Disk(tmp_path)
    clock, warnings = count(100, 10), list[str]()
    found = ResumeSearch(
        CONFIG, Layout(tmp_path), Origin(), lambda observation: None, warnings.append, lambda: float(next(clock))
    )
    with pytest.raises(CannotRestart, match="all nodes are gone, .* can't be read: .*the same command resumes the job"):
        asyncio.run(found.look(ENDED))
    assert len(warnings) == 2
