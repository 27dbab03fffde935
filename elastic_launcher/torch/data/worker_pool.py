"""The pool of worker processes of a loader: forked once, alive across epochs, steps and resizes.

They hold none of their rank's sockets (a peer must notice at once when the rank dies) and die with it. The rank has no
thread for them: it looks for what has come whenever it asks for something.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import mmap
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import util
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from elastic_launcher.host.processes import signal_name
from elastic_launcher.torch.data import shm_message
from elastic_launcher.torch.data.worker import CLOSING, SLOTS, Loader, WorkerFailure, WorkerPost, serve

AHEAD = 8  # tasks for each worker that are handed over; far fewer than a line holds, more than anyone loads ahead
END_SECONDS = 2.0  # for workers that are deep in foreign code to notice that the loader closes
_NUDGE_SECONDS = 0.05
CHECK_SECONDS = 5.0  # between looks at workers: their own children may hold open what would show their end


class WorkerKilled(RuntimeError):
    """A signal ended a worker; the message names both. Raised in the rank, and no failure of its script."""


@dataclass
class _Task:
    """A batch that was asked for, or a part of it, for one worker.

    Attributes:
        number: A ticket that is asked for again after it was called off has others.
        what: Epoch, indices, and whether they are the whole batch, until it is handed over.
        come: The batch or the part's samples, when they have come.
    """

    number: int
    what: tuple[int, list[int], bool] | None
    come: shm_message.ShmMessage | None = None


@dataclass
class _Processes:
    """The workers and the rank's ends of their lines, which outlive the pool until they are ended."""

    tasks: socket.socket
    results: socket.socket
    marks: mmap.mmap
    workers: list[Any] = field(default_factory=list)

    def end(self) -> None:
        """Ends the workers: in the midst of what they load if they can within `END_SECONDS`, else by force."""
        self.marks[CLOSING] = 1
        for line in (self.tasks, self.results):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # whoever else may have inherited it
            line.close()
        deadline = time.monotonic() + END_SECONDS
        while (left := [worker for worker in self.workers if worker.is_alive()]) and time.monotonic() < deadline:
            for worker in left:
                worker.terminate()  # again and again: one may come just before it begins to wait
            left[0].join(_NUDGE_SECONDS)
        for worker in left:
            worker.kill()
            worker.join()


class WorkerPool:
    """Loads micro-batches in processes of its own, for any thread, and one at a time that takes them; best made by the
    main one.

    Made by another thread, which may end before the rank does, a worker notices the rank's end only after the batch
    that it loads. ``worker_init_fn`` is called with its number in each of them.
    """

    def __init__(
        self, fetcher: Loader, num_workers: int, *, worker_init_fn: Callable[[int], None] | None = None
    ) -> None:
        tasks, their_tasks = shm_message.open_line()
        results, their_results = shm_message.open_line()
        self._marks = mmap.mmap(-1, SLOTS + 1)
        self._processes = _Processes(tasks, results, self._marks)
        post = WorkerPost(
            fetcher,
            num_workers,
            their_tasks,
            their_results,
            self._marks,
            os.getpid(),
            threading.current_thread() is threading.main_thread(),
            worker_init_fn,
        )
        # before multiprocessing ends its children at exit, which asks them by a signal that ours don't hear
        self._end = util.Finalize(self, self._processes.end, exitpriority=100)
        context = torch.multiprocessing.get_context("fork")
        with their_tasks, their_results:
            for number in range(num_workers):
                process = context.Process(target=serve, args=(post, number), daemon=True)
                process.start()
                self._processes.workers.append(process)
        self._poll = select.poll()
        self._poll.register(results, select.POLLIN)
        for process in self._processes.workers:
            self._poll.register(process.sentinel, select.POLLIN)
        self._fetcher = fetcher
        self._most = num_workers * AHEAD
        self._next_number = 0
        self._asked: dict[Hashable, list[_Task]] = {}
        self._waiting: collections.deque[_Task] = collections.deque()
        self._handed: dict[int, _Task | None] = {}  # by number; None if it was called off since
        self._dead: RuntimeError | None = None
        self._lock = threading.RLock()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids, by their numbers."""
        return [worker.pid for worker in self._processes.workers]

    def request(self, ticket: Hashable, epoch: int, indices: Sequence[int], *, urgent: bool = False) -> None:
        """Has a batch, named by its ticket, loaded; does not wait. Does nothing if it is under way already.

        ``urgent``: it goes ahead of what is not handed over yet, to all workers at once if it is divisible.
        """
        with self._lock:
            if ticket not in self._asked:
                count = min(len(self._processes.workers), len(indices)) if urgent and self._fetcher.divisible else 1
                parts = enumerate(np.array_split(indices, count), self._next_number)
                tasks = [_Task(number, (epoch, part.tolist(), count == 1)) for number, part in parts]
                self._next_number += count
                self._asked[ticket] = tasks
                if urgent:
                    self._waiting.extendleft(reversed(tasks))
                else:
                    self._waiting.extend(tasks)
            self._hand_on()

    def ready(self, ticket: Hashable) -> bool:
        """Says whether a batch is there."""
        self._look()
        tasks = self._asked.get(ticket)  # once: another thread may call it off
        return tasks is not None and all(task.come for task in tasks)

    def take(self, ticket: Hashable, timeout: float | None = None) -> Any:
        """Waits for the batch of a ticket, ``timeout`` seconds at most, and returns it.

        Raises:
            KeyError: If it was not requested, was taken already, or was discarded.
            WorkerKilled: If a signal ended a worker.
            RuntimeError: If a worker ended by itself, the batch did not come in time, or the pool is closed.
            Exception: Whatever the data set raised, with a note that has the worker's traceback.
        """
        tasks = self._asked[ticket]
        deadline = None if timeout is None else time.monotonic() + timeout
        self._look()
        while not all(task.come for task in tasks):
            if self._dead is not None:
                raise self._dead
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                raise RuntimeError(
                    f"the loader's workers made no batch within {timeout:g} s; raise timeout= or look at what the "
                    "data set waits for"
                )
            self._wait(rest)
        del self._asked[ticket]
        outcomes = [task.come.open() for task in tasks if task.come]
        for outcome in outcomes:
            if isinstance(outcome, WorkerFailure):
                raise outcome.to_raise()
        return outcomes[0] if len(outcomes) == 1 else self._fetcher.join(list(itertools.chain(*outcomes)))

    def discard(self, tickets: Iterable[Hashable]) -> None:
        """Calls batches off: those not begun are not loaded, the others are dropped when they come."""
        with self._lock:
            for task in itertools.chain(*(self._asked.pop(ticket, ()) for ticket in tickets)):
                if task.come is not None:
                    task.come.drop()
                elif task.number in self._handed:
                    self._handed[task.number] = None
                    self._marks[task.number % SLOTS] = 1
                else:
                    self._waiting.remove(task)
            self._hand_on()

    def close(self) -> None:
        """Ends the workers."""
        self._dead = self._dead or RuntimeError("the loader is closed")
        with self._lock:
            for task in itertools.chain(*self._asked.values()):
                if task.come is not None:
                    task.come.drop()
            self._asked.clear()
            self._waiting.clear()
        self._end()

    def _look(self) -> None:
        """Takes what has come, and hands over what waits; never blocks. Only for the thread that takes batches: another
        one would take what that one waits for.
        """
        if self._dead is not None:
            return
        with self._lock:
            with contextlib.suppress(BlockingIOError, EOFError, ConnectionError):  # a worker's death shows in `_wait`
                while self._handed:
                    self._come(shm_message.receive(self._processes.results, socket.MSG_DONTWAIT))
            self._hand_on()

    def _hand_on(self) -> None:
        """Hands over what waits; never blocks."""
        if self._dead is not None:
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._waiting and len(self._handed) < self._most:
                self._hand_over(self._waiting[0])

    def _hand_over(self, task: _Task) -> None:
        self._marks[task.number % SLOTS] = 0
        shm_message.send(self._processes.tasks, task.number, task.what, socket.MSG_DONTWAIT)
        task.what = None
        self._handed[task.number] = task
        self._waiting.popleft()

    def _come(self, found: shm_message.ShmMessage) -> None:
        task = self._handed.pop(found.number)
        if task is None:
            found.drop()
        else:
            task.come = found

    def _wait(self, seconds: float | None) -> None:
        """Waits for a batch or a worker's end."""
        longest = CHECK_SECONDS if seconds is None else min(seconds, CHECK_SECONDS)
        ready = {descriptor for descriptor, _ in self._poll.poll(longest * 1000)}
        self._look()  # also what a worker sent before it ended
        for number, worker in enumerate(self._processes.workers):
            if worker.sentinel in ready or (not ready and not worker.is_alive()):
                self._dead = self._say_ended(number)
                return

    def _say_ended(self, number: int) -> RuntimeError:
        worker = self._processes.workers[number]
        worker.join(END_SECONDS)
        code = worker.exitcode
        how = "ended"
        if code is not None:
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        advice = "; out of memory? fewer num_workers need less" if code == -signal.SIGKILL else ""
        kind = WorkerKilled if code is not None and code < 0 else RuntimeError
        return kind(f"loader worker {number} (pid {worker.pid}) {how}{advice}")
