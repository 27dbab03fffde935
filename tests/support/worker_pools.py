"""What tests of loader workers need: data sets made by a function, pools that leave nothing, samples that wait."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from torch.utils.data import Dataset

from elastic_launcher.torch.data.fetch import Fetcher
from elastic_launcher.torch.data.worker_pool import WorkerPool
from tests.support.launches import PATIENCE

FORK = multiprocessing.get_context("fork")


class Items(Dataset[Any]):
    """Samples made by a function of the index."""

    def __init__(self, make: Callable[[int], Any], size: int = 1000) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@contextlib.contextmanager
def pool_of(
    make: Callable[[int], Any], workers: int = 1, collate_fn: Callable[[list[Any]], Any] | None = list, **options: Any
) -> Iterator[WorkerPool]:
    pool = WorkerPool(Fetcher(Items(make), collate_fn, 7), workers, **options)
    try:
        yield pool
    finally:
        pool.close()
        assert not any(map(lives, pool.pids))


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def loaded(pool: WorkerPool, *indices: int, urgent: bool = False) -> Any:
    """What the workers make of these samples."""
    pool.request(("once", indices), 0, indices, urgent=urgent)
    return pool.take(("once", indices), timeout=PATIENCE)


class Gate:
    """Lets a sample wait in the worker until the test opens it."""

    def __init__(self) -> None:
        self._inside, self._open = FORK.Semaphore(0), FORK.Semaphore(0)

    def wait(self) -> None:
        self._inside.release()
        self._open.acquire()

    def reached(self) -> bool:
        return self._inside.acquire(timeout=PATIENCE)

    def open(self) -> None:
        self._open.release()
