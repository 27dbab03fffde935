"""``job.first_on_node`` lets one process of a machine in at a time; what it leaves behind does not keep it closed."""

from __future__ import annotations

import fcntl
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import elastic_launcher.torch as elastic
from tests.support.launches import PATIENCE

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> elastic.Job:
    monkeypatch.setenv("ELASTIC_WORK_DIR", str(tmp_path))
    return elastic.init(8, 4)


def _enter(job: elastic.Job, told: Connection) -> None:
    with job.first_on_node():
        told.send("inside")


def assert_another_gets_in(job: elastic.Job) -> None:
    """Fails if another process does not get in."""
    ours, theirs = FORK.Pipe(duplex=False)
    other = FORK.Process(target=_enter, args=(job, theirs))
    other.start()
    try:
        assert ours.poll(PATIENCE), "the lock is still held"
    finally:
        other.kill()
        other.join()


def test_one_process_is_inside_at_a_time(job: elastic.Job, tmp_path: Path) -> None:
    with job.first_on_node():
        (path,) = tmp_path.iterdir()
        with open(path) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert_another_gets_in(job)


def test_an_exception_lets_the_next_one_in(job: elastic.Job) -> None:
    with pytest.raises(OSError, match="no space"), job.first_on_node():
        raise OSError("no space")
    assert_another_gets_in(job)


def test_loader_workers_that_were_started_inside_do_not_keep_the_lock(job: elastic.Job) -> None:
    with job.first_on_node():
        batches = iter(DataLoader(range(4), num_workers=1, multiprocessing_context=FORK))  # type: ignore[arg-type]
        next(batches)
    (worker,) = batches._workers  # type: ignore[attr-defined]
    assert_another_gets_in(job)
    assert worker.is_alive()
