"""Ranks in processes of their own, which the test talks to; none outlives it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from elastic_launcher.coordinator.runtime.store import serve_on
from elastic_launcher.torch.collectives.group import Group, build_group

PATIENCE = 60.0
"""Seconds that a test waits for something that ought to come within a few, on a machine that does other things too."""

CONTEXT = multiprocessing.get_context("forkserver")  # forks from a process that has torch, but no threads
CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "tests.support.rank_processes"])


@dataclass
class Rank:
    """What a rank's function gets: who it is, and the line to the test."""

    number: int
    world_size: int
    store: str
    line: Connection

    def tell(self, thing: Any) -> None:
        """Tells the test something."""
        self.line.send(("told", thing))

    def hear(self) -> Any:
        """Waits for what the test says."""
        assert self.line.poll(PATIENCE), "the test says nothing"
        return self.line.recv()

    def group(self, formation: int | str = 1, timeout: float = 30.0, long_timeout: float = 60.0) -> Group:
        """Forms a group with all others."""
        cpu = torch.device("cpu")
        return build_group(self.store, formation, self.number, self.world_size, timeout, cpu, long_timeout)

    def cut_when_told(self, group: Group) -> None:
        """Has another thread cut a group when the test says something: as the launcher does, who knows of a death."""

        def cut() -> None:
            self.hear()
            group.cut()

        threading.Thread(target=cut, daemon=True).start()


class Ranks:
    """The test's view of the ranks."""

    def __init__(self, processes: list[Any], lines: list[Connection]) -> None:
        self.processes, self.lines = processes, lines

    def heard(self, rank: int) -> Any:
        """Waits for what a rank tells or returns; fails with its traceback if it failed."""
        assert self.lines[rank].poll(PATIENCE), f"rank {rank} says nothing"
        kind, thing = self.lines[rank].recv()
        assert kind != "failed", f"rank {rank} failed:\n{thing}"
        return thing

    def heard_all(self) -> list[Any]:
        """Waits for one thing from each rank."""
        return [self.heard(rank) for rank in range(len(self.lines))]

    def say(self, rank: int, thing: Any = None) -> None:
        """Says something to a rank."""
        self.lines[rank].send(thing)

    def kill(self, rank: int) -> None:
        """Kills a rank at once."""
        os.kill(self.processes[rank].pid, signal.SIGKILL)

    def freeze(self, rank: int) -> None:
        """Stops a rank, and returns when it stands still."""
        pid = self.processes[rank].pid
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while not all(_is_stopped(pid, task) for task in os.listdir(f"/proc/{pid}/task")):
            assert time.monotonic() < deadline, "the rank does not stop"


def _is_stopped(pid: int, task: str) -> bool:
    with open(f"/proc/{pid}/task/{task}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def _run(function: Callable[..., Any], rank: Rank, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        rank.line.send(("returned", function(rank, *arguments)))
    except BaseException:
        rank.line.send(("failed", traceback.format_exc()))
        raise


@contextlib.contextmanager
def ranks(function: Callable[..., Any], world_size: int, *arguments: Any) -> Iterator[Ranks]:
    """Starts ranks that run ``function(rank, *arguments)``; all are dead afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # as the coordinator's
        port = listener.getsockname()[1]
        store = serve_on(listener.detach(), port)
    processes, lines = [], []
    try:
        for number in range(world_size):
            here, there = CONTEXT.Pipe()
            rank = Rank(number, world_size, f"127.0.0.1:{port}", there)
            process = CONTEXT.Process(target=_run, args=(function, rank, arguments), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            lines.append(here)
        yield Ranks(processes, lines)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        for line in lines:
            line.close()
        del store


def run_ranks(function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """Runs ``function(rank, *arguments)`` on each rank, and returns what each of them returned."""
    with ranks(function, world_size, *arguments) as started:
        return started.heard_all()
