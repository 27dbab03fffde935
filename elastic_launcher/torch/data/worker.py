"""The worker process that loads micro-batches ahead for a rank."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import signal
import socket
import stat
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data._utils import worker as torch_worker

from elastic_launcher.torch import rng
from elastic_launcher.torch.data import shm_message

SLOTS = 1 << 16  # for marks on tasks that are called off; many times what can be handed over at once
CLOSING = SLOTS  # behind them: the mark that the loader closes
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here, not in a process that was just forked


class Loader(Protocol):
    """Loads batches in a worker; `Fetcher` says what of."""

    @property
    def dataset(self) -> Any:
        """What is loaded from, for torch's worker information."""

    @property
    def seed(self) -> int:
        """What random numbers derive from."""

    @property
    def divisible(self) -> bool:
        """Whether several workers may load one batch."""

    def load(self, epoch: int, indices: Sequence[int], wanted: Callable[[], bool]) -> Any:
        """Returns the batch of some samples, or None once it is no longer wanted."""

    def samples(self, epoch: int, indices: Sequence[int], wanted: Callable[[], bool]) -> list[Any] | None:
        """Returns a part of a divisible batch."""

    def join(self, samples: list[Any]) -> Any:
        """Makes a batch of its parts."""


class WorkerFailure:
    """An exception of a worker, on its way to the rank."""

    def __init__(self, error: Exception, number: int) -> None:
        self._trace = "".join(traceback.format_exception(error)).rstrip()
        self._text = f"in loader worker {number} (pid {os.getpid()}):\n{self._trace}"
        self._error = self._travelling(error)

    def _travelling(self, error: Exception) -> Exception:
        """Returns the exception, or the nearest thing to it that can be sent."""
        for candidate in (error, RuntimeError(f"{type(error).__name__}: {error}")):
            try:
                if type(pickle.loads(pickle.dumps(candidate))) is type(candidate):
                    return candidate
            except Exception:  # noqa: BLE001 - an exception's own pickling may raise anything
                continue
        return RuntimeError(type(error).__name__)

    def to_raise(self) -> Exception:
        """Returns the exception, with the place where it was raised."""
        self._error.add_note(self._text)
        return self._error


def _close_sockets(keep: set[int]) -> None:
    """Lets go of every inherited socket but those; its number stays taken, since Python objects still hold it."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        with contextlib.suppress(OSError):  # the listing's own is gone
            if number not in keep and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


@dataclass(frozen=True)
class WorkerPost:
    """What a worker is given when it is forked.

    Attributes:
        tasks: Where tasks come from, one to whichever worker is free.
        results: Where batches go.
        marks: Memory that all share: a byte for each task, 1 if nobody wants it any more, and `CLOSING`.
        parent: The rank's process id.
        thread_lives_on: Whether the thread that forks lives as long as the rank.
    """

    fetcher: Loader
    workers: int
    tasks: socket.socket
    results: socket.socket
    marks: mmap.mmap
    parent: int
    thread_lives_on: bool
    worker_init_fn: Callable[[int], None] | None


def serve(post: WorkerPost, number: int) -> None:
    """Runs one worker until its rank is gone or closes the line."""
    if post.thread_lives_on:  # the kernel counts the thread that forked as the parent
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != post.parent:
        return

    loading = False

    def heard(*_: object) -> None:
        nonlocal loading
        if loading and post.marks[CLOSING]:  # a worker that loads nothing sees the end of its line
            loading = False  # not once more, while the data set cleans up
            raise SystemExit(0)

    # not merely ignored: programs that a data set starts would be deaf too
    signal.signal(signal.SIGINT, heard)
    signal.signal(signal.SIGTERM, heard)
    _close_sockets({post.tasks.fileno(), post.results.fileno()})
    failure = _prepare(post, number)

    def wanted() -> bool:
        return not post.marks[task.number % SLOTS]

    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            task = shm_message.receive(post.tasks)
            outcome: Any = None
            if wanted():
                epoch, indices, whole = task.open()
                load = post.fetcher.load if whole else post.fetcher.samples
                loading = True
                if post.marks[CLOSING]:  # it may have been heard just before
                    loading = False
                    return
                outcome = failure or _outcome(load, number, epoch, indices, wanted)
                loading = False
            try:
                shm_message.send(post.results, task.number, outcome)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - a batch that can't be sent, for any reason
                shm_message.send(post.results, task.number, WorkerFailure(error, number))
            del task, outcome


def _prepare(post: WorkerPost, number: int) -> WorkerFailure | None:
    """Sets the worker up as torch's own are; returns what went wrong in the user's part of that."""
    torch.set_num_threads(1)  # threads of a forked process's pool would hang
    # torch's default collating asks for storages in /dev/shm when it runs in a worker; a parcel needs none
    torch.UntypedStorage._new_shared = classmethod(  # type: ignore[assignment,method-assign]
        lambda cls, size, *, device="cpu": cls(size, device=device)
    )
    seed = rng.derive(post.fetcher.seed, number)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=post.workers, seed=seed, dataset=post.fetcher.dataset
    )
    rng.seed_all(seed)
    try:
        if post.worker_init_fn is not None:
            post.worker_init_fn(number)
    except Exception as error:  # noqa: BLE001 - any error goes to the rank
        return WorkerFailure(error, number)
    return None


def _outcome(
    load: Callable[..., Any], number: int, epoch: int, indices: Sequence[int], wanted: Callable[[], bool]
) -> Any:
    try:
        return load(epoch, indices, wanted)
    except Exception as error:  # noqa: BLE001 - any error goes to the rank
        return WorkerFailure(error, number)
