"""Exceptions, deaths and ends: each is told, and no worker outlives its rank or leaves anything."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.torch.data.fetch import Fetcher
from elastic_launcher.torch.data.worker_pool import END_SECONDS, WorkerKilled, WorkerPool
from tests.support.launches import PATIENCE, until
from tests.support.places import ROOT
from tests.support.worker_pools import FORK, Gate, Items, lives, loaded, pool_of

# -- what goes wrong


class Odd(Exception):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} has {code}")
        self.name, self.code = name, code


class Rebuildable(Odd):
    def __reduce__(self) -> Any:
        return Rebuildable, (self.name, self.code)


def test_an_exception_keeps_its_type_and_tells_where_it_was_raised() -> None:
    def fails(index: int) -> Any:
        raise Rebuildable("sample", index)

    with pool_of(fails) as pool:
        with pytest.raises(Rebuildable, match="sample has 3") as caught:
            loaded(pool, 3)
        assert caught.value.code == 3
        (note,) = caught.value.__notes__
        assert f"in loader worker 0 (pid {pool.pids[0]})" in note and "in fails" in note


def test_an_exception_that_cant_travel_is_told() -> None:
    def fails(index: int) -> Any:
        raise Odd("sample", index)

    with pool_of(fails) as pool, pytest.raises(RuntimeError, match="Odd: sample has 3"):
        loaded(pool, 3)


def test_a_batch_that_cant_travel_is_an_error_and_no_end() -> None:
    with pool_of(lambda index: (lambda: None) if index else 5) as pool:
        with pytest.raises(Exception, match="lambda"):
            loaded(pool, 1)
        assert loaded(pool, 0) == [5]


def test_a_worker_lives_on_after_an_exception() -> None:
    with pool_of(lambda index: 1 / index) as pool:
        with pytest.raises(ZeroDivisionError):
            loaded(pool, 0)
        assert loaded(pool, 2) == [0.5]


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (37, "signal 37")])
def test_a_killed_worker_is_named(number: int, name: str) -> None:
    gate = Gate()
    with pool_of(lambda index: gate.wait(), 2) as pool:
        pool.request(0, 0, [0])
        assert gate.reached()
        os.kill(pool.pids[1], number)
        with pytest.raises(WorkerKilled, match=rf"loader worker 1 \(pid {pool.pids[1]}\) was killed by {name}"):
            pool.take(0, timeout=PATIENCE)
        pool.request(1, 0, [1])
        with pytest.raises(RuntimeError, match="worker 1"):
            pool.take(1)
        gate.open()


def test_a_worker_that_ends_is_named_and_what_it_had_made_stays() -> None:
    with pool_of(lambda index: os._exit(index) if index else index) as pool:
        pool.request("made", 0, [0])
        pool.request("not made", 0, [3])
        with pytest.raises(RuntimeError, match="loader worker 0 .* ended with exit code 3"):
            pool.take("not made", timeout=PATIENCE)
        assert pool.take("made") == [0]


def test_an_exception_in_one_part_of_a_batch_is_the_batchs() -> None:
    def fails(index: int) -> int:
        if index == 3:
            raise Rebuildable("sample", index)
        return index

    with pool_of(fails, 2, collate_fn=None) as pool:
        with pytest.raises(Rebuildable, match="sample has 3") as caught:
            loaded(pool, 1, 2, 3, 4, urgent=True)
        (note,) = caught.value.__notes__
        assert "in loader worker" in note and "in fails" in note
        assert loaded(pool, 1, 2, urgent=True).tolist() == [1, 2]


def test_a_worker_that_is_killed_in_its_part_of_a_batch_is_named() -> None:
    gate = Gate()
    with pool_of(lambda index: gate.wait(), 2, collate_fn=None) as pool:
        pool.request("it", 0, [1, 2, 3, 4], urgent=True)
        assert gate.reached() and gate.reached()
        os.kill(pool.pids[1], signal.SIGKILL)
        with pytest.raises(WorkerKilled, match=rf"loader worker 1 \(pid {pool.pids[1]}\) was killed by SIGKILL"):
            pool.take("it", timeout=PATIENCE)


def test_a_batch_that_does_not_come_in_time_is_an_error() -> None:
    gate = Gate()
    with pool_of(lambda index: gate.wait()) as pool:
        pool.request(0, 0, [0])
        with pytest.raises(RuntimeError, match=r"no batch within 0\.05 s"):
            pool.take(0, timeout=0.05)
        gate.open()
        assert pool.take(0, timeout=PATIENCE) == [None]


# -- how it ends


def test_closing_ends_idle_and_waiting_workers_at_once() -> None:
    with pool_of(lambda index: bytes(5000), 2) as pool, pool_of(lambda index: index):
        for ticket in range(500):
            pool.request(ticket, 0, [1])
        pool.take(0, timeout=PATIENCE)
        began = time.monotonic()
        pool.close()
        assert time.monotonic() - began < END_SECONDS and not any(map(lives, pool.pids))
        pool.close()
        with pytest.raises(KeyError):
            pool.take(1)
        pool.request(1, 0, [1])
        with pytest.raises(RuntimeError, match="the loader is closed"):
            pool.take(1)


@pytest.mark.parametrize("deaf", [False, True])
def test_closing_ends_a_worker_in_the_midst_of_a_sample(deaf: bool) -> None:
    gate, cleaned = Gate(), FORK.Event()

    def sample(index: int) -> None:
        try:
            if deaf:  # as in foreign code that never returns to Python
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            gate.wait()
        finally:
            cleaned.set()

    with pool_of(sample) as pool:
        pool.request(0, 0, [0])
        assert gate.reached()
        began = time.monotonic()
        pool.close()
        assert not lives(pool.pids[0])
        assert deaf != cleaned.is_set() and deaf == (time.monotonic() - began >= END_SECONDS)


def test_closing_at_any_moment_is_prompt_and_quiet() -> None:
    """A worker may be idle, about to begin, in the midst of a sample, or on its way out when it is asked to end."""
    gate = Gate()
    for closings in range(20):
        with pool_of(lambda index: gate.wait() if index else index, 2) as pool:
            for ticket in range(closings % 4):
                pool.request(ticket, 0, [0])
            pool.request("waits", 0, [1])
            if closings % 4:
                pool.take(0, timeout=PATIENCE)
            began = time.monotonic()
            pool.close()
            assert time.monotonic() - began < END_SECONDS
            codes = {worker.exitcode for worker in pool._processes.workers}
            assert codes <= {0, -signal.SIGTERM}  # by the signal: asked before it was set up


def test_closing_leaves_time_to_what_a_data_set_does_at_the_workers_exit() -> None:
    never, cleaned = FORK.Semaphore(0), FORK.Event()

    def clean() -> None:
        never.acquire(timeout=END_SECONDS / 5)  # the rank asks again and again meanwhile
        cleaned.set()

    def first(number: int) -> None:
        util.Finalize(None, clean, exitpriority=0)

    with pool_of(lambda index: index, worker_init_fn=first) as pool:
        assert loaded(pool, 1) == [1]
        pool.close()
        assert cleaned.is_set() and pool._processes.workers[0].exitcode == 0


def test_a_forgotten_pool_ends_its_workers() -> None:
    pool = WorkerPool(Fetcher(Items(lambda index: index), None, 7), 2)
    pids = pool.pids
    assert loaded(pool, 1).tolist() == [1]
    del pool
    gc.collect()
    assert not any(map(lives, pids))


SCRIPT = """
import os, signal, sys, threading
import torch
from elastic_launcher.torch.data.fetch import Fetcher
from elastic_launcher.torch.data.worker_pool import WorkerPool

threading.Thread(target=signal.sigwait, args=[{signal.SIGUSR1}], daemon=True).start()  # as a rank's heartbeat

class Items:
    def __len__(self): return 10
    def __getitem__(self, index):
        while index == 1:
            signal.pause()
        return torch.ones(100_000)

pools = [WorkerPool(Fetcher(Items(), None, 7), 2) for _ in range(2)]
for ticket in range(3):
    pools[0].request(ticket, 0, [0, 0])
pools[0].take(0)
pools[0].request("hangs", 0, [1])
pools[1].request("never taken", 0, [0])
print(*(pid for pool in pools for pid in pool.pids), flush=True)
"""
ENDS = {
    "killed": ("signal.pause()", -signal.SIGKILL),
    "ends": ("", 0),
    "exits": ("sys.exit(5)", 5),
    "fails": ("raise KeyError", 1),
    "leaves at once": ("os._exit(6)", 6),
}


@pytest.mark.parametrize(
    "end",
    [end if end in ("killed", "fails") else pytest.param(end, marks=pytest.mark.thorough) for end in ENDS],
)
def test_workers_end_with_their_rank_and_leave_nothing(end: str, tmp_path: Path) -> None:
    line, code = ENDS[end]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    rank = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + line],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert rank.stdout is not None
        pids = [int(word) for word in rank.stdout.readline().split()]
        assert len(pids) == 4
        if end == "killed":
            assert all(map(lives, pids))
            rank.kill()
        _, errors = rank.communicate(timeout=PATIENCE)  # ends when the workers' copies of its output are closed too
        assert (rank.returncode, errors if end != "fails" else "") == (code, "")
    finally:
        rank.kill()
        rank.wait()
    until(lambda: not any(map(lives, pids)), "the workers end")
    assert list(tmp_path.iterdir()) == []
    assert not [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in [rank.pid, *pids])]
