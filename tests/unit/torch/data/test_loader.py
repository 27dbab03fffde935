"""A loader's workers live as long as somebody holds the loader."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from torch.utils.data import Dataset

from elastic_launcher.torch.data.lanes import lanes
from tests.support.thread_group import Exchange, ThreadGroup, thread_job


class Squares(Dataset[int]):
    """Of the first eight numbers."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index**2


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("kind", ["map-style", "lanes"])
def test_workers_end_with_a_loader_that_nobody_holds(kind: str) -> None:
    """A script that makes one in each epoch has those of one."""
    squares = lanes(lambda lane, epoch, start: range(start, 4), lanes=2, lengths=4) if kind == "lanes" else Squares()

    def pid_of_the_worker() -> int:
        group = ThreadGroup(Exchange(1), 0)  # in this thread: libraries of other tests do not survive a fork by another
        loader = thread_job(group, 4, 4).dataloader(squares, num_workers=1)
        assert loader.take((0, 0, 4)) is not None and loader._pool is not None
        (pid,) = loader._pool.pids
        return pid

    pid = pid_of_the_worker()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
