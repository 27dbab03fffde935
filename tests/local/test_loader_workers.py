"""What a worker is: how tasks go to workers and batches come back, and what they keep their hands off."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, get_worker_info

from elastic_launcher.batch_schedule import BatchSchedule, DataPass
from elastic_launcher.torch.data.fetch import Fetcher
from elastic_launcher.torch.data.loader import ElasticLoader
from elastic_launcher.torch.data.worker_pool import AHEAD
from tests.support.launches import PATIENCE, until
from tests.support.worker_pools import FORK, Gate, Items, lives, loaded, pool_of

# -- the same samples


def augmented(index: int) -> tuple[int, float, float, torch.Tensor]:
    return index, random.random(), float(np.random.randn()), torch.randn(3)


@pytest.mark.quick
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("division", [[12], [5, 7], [1] * 12])
def test_augmented_samples_do_not_depend_on_workers_or_division(workers: int, division: list[int]) -> None:
    order = list(range(100, 112))
    expected = Fetcher(Items(augmented), None, 7).fetch(3, order)
    with pool_of(augmented, workers, collate_fn=None) as pool:
        start, tickets = 0, []
        for size in division:
            tickets.append(start)
            pool.request(start, 3, order[start : start + size])
            start += size
        batches = [pool.take(ticket, timeout=PATIENCE) for ticket in reversed(tickets)][::-1]
    for column, reference in zip(zip(*batches, strict=True), expected, strict=True):
        assert torch.equal(torch.cat(column), reference)


def test_batches_may_hold_anything() -> None:
    def sample(index: int) -> dict[str, Any]:
        return {"name": f"sample {index}", "pixels": torch.full((2,), index), "meta": (index, [float(index)])}

    with pool_of(sample, 2, collate_fn=None) as pool:
        batch = loaded(pool, 4, 2)
    assert batch["name"] == ["sample 4", "sample 2"] and batch["pixels"].tolist() == [[4, 4], [2, 2]]
    assert batch["meta"][0].tolist() == [4, 2] and batch["meta"][1][0].tolist() == [4.0, 2.0]


def test_the_users_function_collates_in_the_worker() -> None:
    with pool_of(lambda index: index, collate_fn=lambda samples: (sum(samples), os.getpid())) as pool:
        assert loaded(pool, 1, 2, 3) == (6, pool.pids[0])


def test_no_batch_is_made_in_dev_shm() -> None:
    with pool_of(
        lambda index: torch.ones(100), collate_fn=lambda samples: default_collate(samples).is_shared()
    ) as pool:
        assert loaded(pool, 1, 2) is False


# -- how tasks go


def test_many_batches_under_way_never_block() -> None:
    """More than the lines hold in both directions, asked for before any is taken, and taken from the last on."""
    indices = list(range(3000))  # more than goes through a line at once
    with pool_of(lambda index: index, 2, collate_fn=lambda samples: bytes(7000)) as pool:
        for ticket in range(1500):
            pool.request(ticket, 0, indices if ticket % 50 == 0 else [1])
        assert all(len(pool.take(ticket, timeout=PATIENCE)) == 7000 for ticket in reversed(range(1500)))


def test_a_request_does_not_wait_for_a_busy_worker() -> None:
    gate = Gate()
    with pool_of(lambda index: gate.wait()) as pool:
        for ticket in range(2000):
            pool.request(ticket, 0, [1])
        assert not any(map(pool.ready, range(2000)))
        gate.open()
        assert pool.take(0, timeout=PATIENCE) == [None]
        pool.discard(range(2000))
        gate.open()  # for the one that it may have begun


def test_whichever_worker_is_free_takes_the_next_batch() -> None:
    gate = Gate()
    with pool_of(lambda index: gate.wait() if index == 0 else index, 2) as pool:
        pool.request(0, 0, [0])
        assert gate.reached()
        assert [loaded(pool, index) for index in range(1, 20)] == [[index] for index in range(1, 20)]
        assert not pool.ready(0)
        gate.open()
        assert pool.take(0, timeout=PATIENCE) == [None]


def test_ready_says_when_a_batch_is_there() -> None:
    gate = Gate()
    with pool_of(lambda index: gate.wait()) as pool:
        assert not pool.ready("never asked for")
        pool.request("it", 0, [1])
        assert not pool.ready("it")
        gate.open()
        until(lambda: pool.ready("it"), "the batch comes")
        assert pool.take("it") == [None]
        assert not pool.ready("it")


def test_a_batch_is_taken_once() -> None:
    with pool_of(lambda index: index) as pool:
        pool.request("it", 0, [1])
        pool.request("it", 0, [2])  # under way already
        assert pool.take("it", timeout=PATIENCE) == [1]
        with pytest.raises(KeyError):
            pool.take("it")


def test_what_is_called_off_is_not_loaded() -> None:
    """Neither what a worker has been handed, nor what still waits."""
    gate, count = Gate(), FORK.Value("i", 0)

    def sample(index: int) -> int:
        with count:
            count.value += 1
        if index == 0:
            gate.wait()
        return index

    last = 3 * AHEAD
    with pool_of(sample) as pool:
        for ticket in range(last + 1):
            pool.request(ticket, 0, [ticket])
        assert gate.reached()
        pool.discard([*range(1, last), "never asked for"])
        gate.open()
        assert pool.take(last, timeout=PATIENCE) == [last] and pool.take(0, timeout=PATIENCE) == [0]
    assert count.value == 2


def test_a_batch_that_is_called_off_keeps_its_worker_no_longer_than_the_sample_that_it_loads() -> None:
    gate, loaded_ones = Gate(), FORK.SimpleQueue()

    def sample(index: int) -> int:
        loaded_ones.put(index)
        if index == 0:
            gate.wait()
        return index

    with pool_of(sample) as pool:
        pool.request("old", 0, [0, 1, 2])
        assert gate.reached()
        pool.discard(["old"])
        pool.request("new", 0, [3])
        gate.open()
        assert pool.take("new", timeout=PATIENCE) == [3]
        assert [loaded_ones.get(), loaded_ones.get()] == [0, 3]


def test_what_was_called_off_can_be_asked_for_again() -> None:
    gate = Gate()
    with pool_of(lambda index: gate.wait() if index == 0 else index) as pool:
        pool.request("it", 0, [0])
        assert gate.reached()
        pool.discard(["it"])
        pool.request("it", 0, [5])
        gate.open()  # what comes now is stale
        assert pool.take("it", timeout=PATIENCE) == [5]
        pool.request("it", 0, [6])
        until(lambda: pool.ready("it"), "the batch comes")
        pool.discard(["it"])
        assert not pool.ready("it")


def test_large_batches_come_without_their_memory_staying() -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return Path("/proc/self/maps").read_text().count("elastic-batch"), len(os.listdir("/proc/self/fd"))

    megabytes, batches = 50, 12
    with pool_of(lambda index: torch.full((megabytes * 2**18 // 4,), float(index)), 2, collate_fn=None) as pool:
        before = held()
        began = time.perf_counter()
        for ticket in range(batches):
            pool.request(ticket, 0, [ticket] * 4)
        for ticket in range(batches):
            batch = pool.take(ticket, timeout=PATIENCE)
            assert batch.nbytes == megabytes * 2**20 and batch[0, 0] == batch[3, -1] == ticket
        seconds = time.perf_counter() - began
        del batch
        assert held() == before
    print(f"{batches * megabytes / seconds:.0f} MB/s with 2 workers")


# -- several workers at one batch


class Pair(NamedTuple):
    name: str
    pixels: torch.Tensor


def of_all_kinds(index: int) -> dict[str, Any]:
    image = torch.randn(4, 5, 3)
    return {
        "number": index,
        "drawn": (random.random(), np.float32(np.random.randn()), index % 2 == 0),
        "name": f"sample {index}",
        "array": np.random.randn(3, 4).astype(np.float32).T,
        "pair": Pair(str(index), image.permute(2, 0, 1)),
        "video": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "gray": [torch.randn(2, 1, 4, 5), torch.randn(2, 3, 1, 1), torch.randn(())],
        "large": torch.randn(200, 200, dtype=torch.float64).t(),
        "large array": np.random.randn(200, 100),
        "empty": torch.empty(0, 3),
    }


def described(batch: Any) -> Any:
    """All that can be seen of a batch, so that two of them can be compared bit for bit."""
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.device, batch.shape, batch.stride(), batch.numpy().tobytes()
    if isinstance(batch, dict):
        return {key: described(value) for key, value in batch.items()}
    return type(batch), [described(value) for value in batch] if isinstance(batch, (list, tuple)) else batch


@pytest.mark.parametrize("make", [of_all_kinds, augmented, lambda index: torch.randn(4), lambda index: index])
@pytest.mark.parametrize(("workers", "size"), [(2, 1), (2, 2), (2, 3), (3, 2), (3, 7)])
def test_a_batch_loaded_in_parts_is_the_one_that_a_worker_loads(
    make: Callable[[int], Any], workers: int, size: int
) -> None:
    indices = list(range(20, 20 + size))[::-1]
    with pool_of(make, workers, collate_fn=None) as pool:
        pool.request("whole", 3, indices)
        pool.request("in parts", 3, indices, urgent=True)
        whole, joined = (pool.take(ticket, timeout=PATIENCE) for ticket in ("whole", "in parts"))
        with pytest.raises(KeyError):
            pool.take("in parts")
    assert described(joined) == described(whole)


def test_workers_load_an_urgent_batch_at_the_same_time() -> None:
    together = FORK.Barrier(3)

    def sample(index: int) -> int:
        together.wait(PATIENCE)
        return index

    with pool_of(sample, 3, collate_fn=None) as pool:
        assert loaded(pool, 5, 6, 7, urgent=True).tolist() == [5, 6, 7]


def test_a_batch_that_the_users_function_collates_is_loaded_by_one_worker() -> None:
    with pool_of(lambda index: os.getpid(), 2, collate_fn=lambda samples: [*samples, os.getpid()]) as pool:
        made = loaded(pool, 1, 2, 3, urgent=True)
    assert made in [[pid] * 4 for pid in pool.pids]


def test_an_urgent_batch_goes_ahead_of_what_is_not_handed_over() -> None:
    gate, order = Gate(), FORK.SimpleQueue()

    def sample(index: int) -> int:
        order.put(index)
        if index == 0:
            gate.wait()
        return index

    last = 2 * AHEAD
    with pool_of(sample) as pool:
        for ticket in range(last):
            pool.request(ticket, 0, [ticket])
        assert gate.reached()
        pool.request(last, 0, [last], urgent=True)
        gate.open()
        assert [pool.take(ticket, timeout=PATIENCE) for ticket in range(last + 1)] == [[n] for n in range(last + 1)]
    assert [order.get() for _ in range(last + 1)] == [*range(AHEAD), last, *range(AHEAD, last)]


def test_parts_that_are_called_off_are_not_loaded_further() -> None:
    gate, order = Gate(), FORK.SimpleQueue()

    def sample(index: int) -> int:
        order.put(index)
        if index < 4:
            gate.wait()
        return index

    with pool_of(sample, 2, collate_fn=None) as pool:
        pool.request("old", 0, [0, 1, 2, 3], urgent=True)
        assert gate.reached() and gate.reached()
        pool.discard(["old"])
        pool.request("old", 0, [4, 5], urgent=True)
        gate.open()
        gate.open()
        assert pool.take("old", timeout=PATIENCE).tolist() == [4, 5]
    assert {order.get() for _ in range(4)} == {0, 2, 4, 5} and order.empty()


def test_a_part_that_has_come_is_dropped_with_its_batch() -> None:
    def kept() -> int:
        return sum(
            "elastic-batch" in os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()
        )

    gate = Gate()

    def sample(index: int) -> torch.Tensor:
        if index == 2:
            gate.wait()
        return torch.ones(100_000)

    with pool_of(sample, 2, collate_fn=None) as pool:
        pool.request("it", 0, [1, 2], urgent=True)
        assert gate.reached()
        until(lambda: not pool.ready("it") and kept() == 1, "the first part comes")
        pool.discard(["it"])
        assert kept() == 0
        gate.open()
        assert loaded(pool, 3, 4, urgent=True).shape == (2, 100_000) and kept() == 0


def test_only_the_first_of_a_loaders_urgent_micro_batches_is_loaded_in_parts() -> None:
    together, loads = FORK.Barrier(2), FORK.Value("i", 0)

    def sample(index: int) -> tuple[int, int]:
        with loads:
            loads.value += 1
        if index < 2:
            together.wait(PATIENCE)
        return index, os.getpid()

    loader = ElasticLoader(
        Items(sample, size=8),
        first_batch=8,
        data_pass=lambda data: DataPass(BatchSchedule.fixed(8), data.size, 0),
        device=torch.device("cpu"),
        train=lambda loader: iter(()),
        autoscale=lambda *arguments: None,
        epoch=None,
        num_workers=2,
    )
    try:
        pieces = [(0, 0, 2), (0, 2, 3), (0, 5, 3)]
        loader.want(pieces, urgent=True)
        loader.want(pieces)  # under way already
        (first, by_first), *others = (loader.take(piece) for piece in pieces)
        assert first.tolist() == [0, 1] and len(set(by_first.tolist())) == 2
        assert [indices.tolist() for indices, _ in others] == [[2, 3, 4], [5, 6, 7]]
        assert [len(set(by.tolist())) for _, by in others] == [1, 1]
        assert loads.value == 8
    finally:
        loader.close()


# -- what a worker is


def test_a_worker_is_set_up_as_torchs_own() -> None:
    def sample(index: int) -> Any:
        info: Any = get_worker_info()
        return info.id, info.num_workers, type(info.dataset) is Items, torch.get_num_threads()

    numbers = FORK.Array("i", 3)

    def first(number: int) -> None:
        numbers[number] += 1

    with pool_of(sample, 3, worker_init_fn=first) as pool:
        assert loaded(pool, 1)[0][1:] == (3, True, 1)
        for ticket in range(50):
            pool.request(ticket, 0, [1])
        assert {pool.take(ticket, timeout=PATIENCE)[0][0] for ticket in range(50)} <= {0, 1, 2}
        until(lambda: list(numbers) == [1, 1, 1], "each worker is set up once")
    assert get_worker_info() is None


def test_what_the_users_set_up_raises_comes_with_the_first_batch() -> None:
    def first(number: int) -> None:
        raise ValueError("no such disk")

    with pool_of(lambda index: index, worker_init_fn=first) as pool, pytest.raises(ValueError, match="no such disk"):
        loaded(pool, 1)


def test_a_worker_leaves_signals_to_its_rank_and_its_programs_do_not() -> None:
    def sample(index: int) -> int:
        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
        return int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)

    with pool_of(sample) as pool:
        loaded(pool, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pool.pids[0], number)
        (ignored,) = loaded(pool, 0)
    assert not ignored & (1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1)


def test_peers_notice_the_ranks_end_though_workers_live() -> None:
    """No worker holds a socket that was open when it was forked, be it connected or listening."""
    here, there = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    served, _ = listener.accept()
    address = listener.getsockname()
    with there, client, pool_of(lambda index: index, 2) as first, pool_of(lambda index: index) as second:
        assert [loaded(first, 1), loaded(second, 1)] == [[1], [1]]
        for mine in (here, served, listener):
            mine.close()
        for peer in (there, client):
            peer.settimeout(PATIENCE)
            assert peer.recv(1) == b""
        until(lambda: refused(address), "the port is free")
        assert all(map(lives, first.pids + second.pids))


def refused(address: Any) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) != 0
