"""A group whose ranks are threads of one process: the real reducer with only the wire replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.membership.environment import Launch
from elastic_launcher.torch.membership.membership import Formation, Membership
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.training_state import TrainingState

WAIT_SECONDS = 60.0
CPU = torch.device("cpu")


class _Meeting:
    """One collective operation; a rank that waits for it lets another one run."""

    def __init__(self, turn: threading.Lock) -> None:
        self._turn = turn
        self.tensors: list[torch.Tensor] = []
        self.texts: dict[int, bytes] = {}
        self.done = threading.Event()
        self.failed = False

    def fail(self) -> None:
        """Wakes those who wait for a rank that will not come."""
        self.failed = True
        self.done.set()

    def wait(self) -> None:
        """Waits for the end."""
        self._turn.release()
        try:
            assert self.done.wait(WAIT_SECONDS), "a rank is missing in an operation"
        finally:
            self._turn.acquire()
        assert not self.failed, "a rank has ended before an operation that others wait for"


class Exchange:
    """Where the ranks' tensors meet, operation by operation."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.turn = threading.Lock()  # one rank runs at a time: they share the random generator
        self._lock = threading.Lock()
        self._meetings: dict[int, _Meeting] = {}
        self._left = False

    def leave(self) -> None:
        """Ends a rank: what others wait for will not come any more."""
        with self._lock:
            self._left = True
            for meeting in self._meetings.values():
                if max(len(meeting.tensors), len(meeting.texts)) < self.world_size:
                    meeting.fail()

    def _meeting(self, number: int) -> _Meeting:
        if number not in self._meetings:
            self._meetings[number] = _Meeting(self.turn)
            if self._left:
                self._meetings[number].fail()
        return self._meetings[number]

    def enter(self, number: int, tensor: torch.Tensor, op: str) -> _Meeting:
        """Brings a tensor to an operation; the last rank computes it for all."""
        with self._lock:
            meeting = self._meeting(number)
            meeting.tensors.append(tensor)
            complete = len(meeting.tensors) == self.world_size
        if complete:
            assert len({t.shape for t in meeting.tensors}) == 1, "ranks reduce tensors of different shapes"
            stacked = torch.stack(meeting.tensors)
            result = stacked.sum(0) if op == "sum" else stacked.amax(0)
            for member in meeting.tensors:
                member.copy_(result)
            meeting.done.set()
        return meeting

    def gather(self, number: int, rank: int, data: bytes) -> list[bytes]:
        """Collects bytes of all ranks."""
        with self._lock:
            meeting = self._meeting(number)
            meeting.texts[rank] = data
            if len(meeting.texts) == self.world_size:
                meeting.done.set()
        meeting.wait()
        return [meeting.texts[r] for r in range(self.world_size)]


class _Done:
    """The work of an operation that has ended."""

    def wait(self) -> None:
        """Does nothing."""


class ThreadGroup:
    """One rank's view of an exchange."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange = exchange
        self.rank = rank
        self.world_size = exchange.world_size
        self._number = 0

    def check(self) -> None:
        """Does nothing: it is never cut."""

    def cut(self) -> None:
        """Does nothing: its operations end by themselves."""

    def set_replicas(self, replicas: Any) -> None:
        """Does nothing: it exchanges no parts of a sharded model."""

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Gives every rank what each rank brought."""
        self._number += 1
        return self._exchange.gather(self._number, self.rank, data)

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> Any:
        """Gives each rank its row of what each rank sends."""
        for rank, rows in enumerate(self._brought(sent)):
            received[rank].copy_(rows[self.rank])
        return _Done()

    def all_gather(self, gathered: torch.Tensor, own: torch.Tensor) -> Any:
        """Gives each rank what each rank brings."""
        for rank, row in enumerate(self._brought(own)):
            gathered[rank].view(-1).copy_(row.view(-1))
        return _Done()

    def _brought(self, own: torch.Tensor) -> list[torch.Tensor]:
        texts = self.all_gather_bytes(own.contiguous().view(torch.uint8).numpy().tobytes())
        return [torch.frombuffer(bytearray(text), dtype=own.dtype).view(own.shape) for text in texts]

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Any:
        """Starts a reduction; `wait` of the result ends it."""
        self._number += 1
        return self._exchange.enter(self._number, tensor, op)


def run_ranks(world_size: int, body: Callable[[ThreadGroup], Any]) -> list[Any]:
    """Runs ``body(group)`` as every rank at once and returns their results in rank order."""
    exchange = Exchange(world_size)

    def play(rank: int) -> Any:
        with exchange.turn:
            try:
                return body(ThreadGroup(exchange, rank))
            finally:
                exchange.leave()

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(play, rank) for rank in range(world_size)]
        return [future.result() for future in futures]


def thread_job(
    group: ThreadGroup,
    global_batch_size: int,
    max_batch_per_gpu: int,
    seed: int = 0,
    device: torch.device = CPU,
    virtual_ranks: int = 0,
) -> Job:
    """Returns a job whose peers are threads: all of the library but processes and sockets."""
    launch = Launch(control=None, member=None, node=None, torchrun=False, local_rank=0)
    state = TrainingState([], [], [], [], {}, {})
    schedule = BatchSchedule.fixed(global_batch_size)
    session = Session(
        schedule, max_batch_per_gpu, seed, device, launch, None, ModelBuffers(), state, virtual_ranks=virtual_ranks
    )
    formation = Formation(1, 1, "start", tuple(range(group.world_size)), group=group)  # type: ignore[arg-type]
    session.membership = Membership(group.rank, formation, group, group.world_size)  # type: ignore[arg-type]
    return Job(session)
