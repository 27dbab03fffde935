"""Worker processes that read lanes ahead: each lane is read by one of them, so that none reads what another one did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_launcher.lane_order import LaneOrder
from elastic_launcher.torch import rng
from elastic_launcher.torch.data.lane_reader import LaneFetcher
from elastic_launcher.torch.data.worker_pool import WorkerPool


@dataclass(frozen=True)
class _Asked:
    """A batch that was asked for; ``workers`` reads each of its samples."""

    epoch: int
    positions: Sequence[int]
    workers: list[int]


class LaneWorkers:
    """A worker process for every so many lanes; takes requests as `WorkerPool` does, by positions in the epoch.

    A worker reads samples, and the rank makes batches of them.
    """

    def __init__(
        self,
        fetcher: LaneFetcher,
        order: LaneOrder,
        num_workers: int,
        *,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._order = order
        self._asked: dict[Hashable, _Asked] = {}
        self._lock = threading.Lock()
        self._pools = [
            WorkerPool(fetcher.reader, 1, worker_init_fn=_numbered(worker_init_fn, number))
            for number in range(num_workers)
        ]

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [pid for pool in self._pools for pid in pool.pids]

    def request(self, ticket: Hashable, epoch: int, positions: Sequence[int], *, urgent: bool = False) -> None:
        """Has a batch, named by its ticket, read; does not wait. Does nothing if it is under way already."""
        lanes, _ = self._order.places(positions[0], positions[-1] + 1)
        asked = _Asked(epoch, positions, [int(lane) % len(self._pools) for lane in lanes])
        with self._lock:
            asked = self._asked.setdefault(ticket, asked)
        for number in set(asked.workers):
            own = [position for position, worker in zip(positions, asked.workers, strict=True) if worker == number]
            self._pools[number].request(ticket, epoch, own, urgent=urgent)

    def ready(self, ticket: Hashable) -> bool:
        """Says whether all samples of a batch are there."""
        asked = self._asked.get(ticket)
        return asked is not None and all(self._pools[number].ready(ticket) for number in set(asked.workers))

    def take(self, ticket: Hashable, timeout: float | None = None) -> Any:
        """Waits for the samples of a ticket, ``timeout`` seconds at most for each worker's, and returns their batch.

        Raises:
            KeyError: If it was not requested, was taken already, or was discarded.
            RuntimeError: As of `WorkerPool.take`.
            Exception: Whatever a lane raised, with a note that has the worker's traceback.
        """
        asked = self._asked[ticket]
        parts = {number: iter(self._pools[number].take(ticket, timeout)) for number in sorted(set(asked.workers))}
        del self._asked[ticket]
        with rng.preserve():
            return self._fetcher.join(asked.epoch, asked.positions, [next(parts[number]) for number in asked.workers])

    def discard(self, tickets: Iterable[Hashable]) -> None:
        """Calls batches off."""
        with self._lock:
            known = [(ticket, self._asked.pop(ticket)) for ticket in tickets if ticket in self._asked]
        for ticket, asked in known:
            for number in set(asked.workers):
                self._pools[number].discard([ticket])

    def close(self) -> None:
        """Ends the workers."""
        for pool in self._pools:
            pool.close()


def _numbered(init: Callable[[int], None] | None, number: int) -> Callable[[int], None] | None:
    """Has a function for a worker called with its number among all; in a pool of its own each one has the number 0."""
    return None if init is None else lambda _: init(number)
