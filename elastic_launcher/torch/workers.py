"""Processes that load micro-batches ahead: forked once when the loader is made, alive across epochs, steps and resizes.

They hold none of their rank's sockets (a peer must notice at once when the rank dies) and die with it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import multiprocessing
import os
import signal
import stat
import threading
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.multiprocessing as torch_multiprocessing
from torch.utils.data._utils import worker as torch_worker

from elastic_launcher.torch import rng
from elastic_launcher.torch.fetch import Fetcher

AT_ONCE = 2  # tasks in a worker's pipe: one that it works on and the next; the others can still be called off
_PR_SET_PDEATHSIG = 1
_END_SECONDS = 2.0  # for workers to end by themselves when the loader closes


class _Failure:
    """An exception of a worker, on its way to the rank."""

    def __init__(self, error: BaseException, worker: int) -> None:
        self.kind = type(error)
        self.text = f"in loader worker {worker}:\n{''.join(traceback.format_exception(error))}"

    def raise_again(self) -> None:
        try:
            error = self.kind(self.text)
        except TypeError:  # a kind that takes other arguments
            error = RuntimeError(self.text)
        raise error


def _close_sockets() -> None:
    """Lets go of every inherited socket; its number stays taken, since Python objects still hold it. Pipes stay."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(nothing, number)


def _serve(
    fetcher: Fetcher,
    number: int,
    count: int,
    tasks: Connection,
    results: Connection,
    foreign: list[Connection],
    parent: int,
    worker_init_fn: Callable[[int], None] | None,
) -> None:
    """Runs one worker until its rank closes the pipe of tasks."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for connection in foreign:
        connection.close()
    _close_sockets()
    torch.set_num_threads(1)  # threads of a forked process's pool would hang
    seed = rng.derive(fetcher.seed, number)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=count, seed=seed, dataset=fetcher.dataset
    )
    rng.seed_all(seed)
    failure: _Failure | None = None
    if worker_init_fn is not None:
        try:
            worker_init_fn(number)
        except Exception as error:  # noqa: BLE001 - whatever it is goes to the rank
            failure = _Failure(error, number)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            ticket, epoch, indices = tasks.recv()
            outcome: Any = failure
            if outcome is None:
                try:
                    outcome = fetcher.fetch(epoch, indices)
                except Exception as error:  # noqa: BLE001 - whatever it is goes to the rank
                    outcome = _Failure(error, number)
            results.send((ticket, outcome))
            del outcome
    os._exit(0)


class _Worker:
    """The rank's side of one worker."""

    def __init__(self, process: Any, tasks: Connection, results: Connection) -> None:
        self.process = process
        self.tasks = tasks
        self.results = results
        self.busy = 0


class WorkerPool:
    """Loads micro-batches in processes of its own.

    Args:
        fetcher: Loads a batch.
        num_workers: How many processes.
        worker_init_fn: Called with its number in each of them.
    """

    def __init__(
        self, fetcher: Fetcher, num_workers: int, *, worker_init_fn: Callable[[int], None] | None = None
    ) -> None:
        context = torch_multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        foreign: list[Connection] = []
        for number in range(num_workers):
            tasks_out, tasks_in = multiprocessing.Pipe(duplex=False)
            results_out, results_in = multiprocessing.Pipe(duplex=False)
            foreign += [tasks_in, results_out]
            process = context.Process(
                target=_serve,
                args=(fetcher, number, num_workers, tasks_out, results_in, list(foreign), os.getpid(), worker_init_fn),
                daemon=True,
            )
            process.start()
            tasks_out.close()
            results_in.close()
            self._workers.append(_Worker(process, tasks_in, results_out))
        self._changed = threading.Condition()
        self._queued: collections.deque[tuple[Hashable, int, Sequence[int]]] = collections.deque()
        self._results: dict[Hashable, Any] = {}
        self._unwanted: set[Hashable] = set()
        self._asked: set[Hashable] = set()
        self._dead: str | None = None
        self._closed = False
        self._finalizer = weakref.finalize(self, _end, self._workers)
        threading.Thread(target=_drain, args=(weakref.ref(self), self._workers), daemon=True).start()

    def request(self, ticket: Hashable, epoch: int, indices: Sequence[int]) -> None:
        """Has a batch loaded; does not wait.

        Args:
            ticket: Names the batch; must not be under way already.
            epoch: See `Fetcher.fetch`.
            indices: See `Fetcher.fetch`.
        """
        with self._changed:
            self._unwanted.discard(ticket)
            if ticket in self._asked:
                return
            self._asked.add(ticket)
            self._queued.append((ticket, epoch, indices))
            self._feed()

    def _feed(self) -> None:
        """Gives waiting tasks to workers that have room; the caller holds the lock."""
        while self._queued and not self._closed and self._dead is None:
            worker = min(self._workers, key=lambda w: w.busy)
            if worker.busy >= AT_ONCE:
                return
            task = self._queued.popleft()
            worker.busy += 1
            with contextlib.suppress(BrokenPipeError):  # the receiving thread says that it died
                worker.tasks.send(task)

    def ready(self, ticket: Hashable) -> bool:
        """Says whether a batch is there."""
        return ticket in self._results

    def take(self, ticket: Hashable, timeout: float | None = None) -> Any:
        """Waits for a batch and returns it.

        Args:
            ticket: As in `request`.
            timeout: Seconds to wait at most.

        Raises:
            RuntimeError: If a worker died, or the batch did not come in time.
            Exception: Whatever the data set raised, with the worker's traceback.
        """
        with self._changed:
            self._changed.wait_for(lambda: ticket in self._results or self._dead is not None, timeout)
            if ticket not in self._results:
                raise RuntimeError(self._dead or f"the loader's workers made no batch within {timeout} s")
            outcome = self._results.pop(ticket)
            self._asked.discard(ticket)
        if isinstance(outcome, _Failure):
            outcome.raise_again()
        return outcome

    def discard(self, tickets: Iterable[Hashable]) -> None:
        """Calls batches off: those not begun are not loaded, the others are dropped when they come."""
        with self._changed:
            gone = set(tickets)
            never = {task[0] for task in self._queued} & gone
            self._queued = collections.deque(task for task in self._queued if task[0] not in gone)
            for ticket in gone & self._asked:
                if ticket in self._results or ticket in never:
                    self._results.pop(ticket, None)
                    self._asked.discard(ticket)
                else:
                    self._unwanted.add(ticket)

    def _receive(self, worker: _Worker, message: tuple[Hashable, Any]) -> None:
        ticket, outcome = message
        with self._changed:
            worker.busy -= 1
            if ticket in self._unwanted:
                self._unwanted.discard(ticket)
                self._asked.discard(ticket)
            else:
                self._results[ticket] = outcome
            self._feed()
            self._changed.notify_all()

    def _lost(self, worker: _Worker) -> None:
        worker.process.join(_END_SECONDS)
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        with self._changed:
            if not self._closed:
                self._dead = f"loader worker {self._workers.index(worker)} (pid {worker.process.pid}) {how}"
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the workers."""
        with self._changed:
            self._closed = True
        self._finalizer()


def _drain(pool: weakref.ref[WorkerPool], workers: list[_Worker]) -> None:
    """Takes results as they come, so that no pipe ever fills up."""
    open_ends = {worker.results: worker for worker in workers}
    while open_ends:
        for end in wait(list(open_ends)):
            worker = open_ends[end]  # type: ignore[index]
            owner = pool()
            try:
                message = worker.results.recv()
            except (EOFError, OSError):
                del open_ends[worker.results]
                if owner is not None:
                    owner._lost(worker)
                continue
            if owner is not None:
                owner._receive(worker, message)
            del owner, message


def _end(workers: list[_Worker]) -> None:
    """Closes the workers' pipes and sees them end."""
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.tasks.close()
    for worker in workers:
        worker.process.join(_END_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
