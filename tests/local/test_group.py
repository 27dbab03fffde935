"""Process groups of real processes: they reduce, and a group that is cut ends at once wherever somebody waits in it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import elastic_launcher.torch.collectives.group as group_module
from elastic_launcher.coordinator.runtime.store import serve_on
from elastic_launcher.torch.collectives.c10d_clients import connect_store, leased_store
from elastic_launcher.torch.collectives.group import Group, build_group, group_from_store, release_cut
from elastic_launcher.torch.collectives.work import GroupError
from tests.support.rank_processes import PATIENCE, Rank, ranks, run_ranks

CPU = torch.device("cpu")


def _sum(group: Group, value: float, numel: int = 100_000) -> float:
    tensor = torch.full((numel,), value)
    group.all_reduce(tensor).wait()
    return tensor[-1].item()


def _reduce_all(rank: Rank) -> dict[str, Any]:
    group = rank.group()
    works = [group.all_reduce(torch.full((size,), float(rank.number + 1))) for size in (1, 1000, 300_000)]
    tensors = [work.tensors[0] for work in works] if rank.world_size > 1 else []
    for work in works:
        work.wait()
        work.wait()  # once more changes nothing
    largest = torch.tensor([rank.number, -rank.number])
    group.all_reduce(largest, op="max").wait()
    return {
        "sums": [[t[0].item(), t[-1].item()] for t in tensors],
        "max": largest.tolist(),
        "bytes": group.all_gather_bytes(b"x" * rank.number),
        "rank": (group.rank, group.world_size),
    }


@pytest.mark.parametrize(
    "world_size",
    [pytest.param(2, marks=pytest.mark.quick), *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 3, 4)), 5],
)
def test_all_ranks_get_sums_maxima_and_texts(world_size: int) -> None:
    total = world_size * (world_size + 1) / 2
    for number, result in enumerate(run_ranks(_reduce_all, world_size)):
        assert result == {
            "sums": [[total, total]] * 3 if world_size > 1 else [],
            "max": [world_size - 1, 0],
            "bytes": [b"x" * other for other in range(world_size)],
            "rank": (number, world_size),
        }


def _exchange(rank: Rank) -> list[tuple[list[float], list[float]]]:
    group, found = rank.group(), []
    for kind in (torch.float32, torch.bfloat16, torch.float64):
        sent = torch.tensor([[10.0 * rank.number + other] * 3 for other in range(rank.world_size)], dtype=kind)
        received, gathered = torch.empty_like(sent), torch.empty_like(sent)
        group.all_to_all(received, sent).wait()
        group.all_gather(gathered, sent[0]).wait()
        found.append((received[:, -1].tolist(), gathered[:, -1].tolist()))
    return found


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_each_rank_gets_its_row_of_all_others(world_size: int) -> None:
    for number, found in enumerate(run_ranks(_exchange, world_size)):
        rows = [10.0 * other + number for other in range(world_size)]
        assert found == [(rows, [10.0 * other for other in range(world_size)])] * 3


def _send_and_reduce(rank: Rank) -> tuple[float, list[bool]]:
    group = rank.group()
    kinds = [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64, torch.uint8]
    sent = [(torch.arange(50_000) % 7).to(kind) for kind in kinds] + [torch.tensor(3.5), torch.empty(0)]

    def talk() -> list[bool]:
        if rank.number == 0:
            for number, tensor in enumerate(sent):
                group.send(tensor, 1, 40 + number)
            return []
        received = [torch.zeros_like(tensor) for tensor in sent]
        for number, tensor in enumerate(received):
            group.recv(tensor, 0, 40 + number)
        return [torch.equal(a, b) for a, b in zip(sent, received, strict=True)]

    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(talk) if rank.number < 2 else None
        total = sum(_sum(group, 1.0) for _ in range(20))
        return total, talking.result() if talking else []


def test_sends_of_any_type_run_beside_reductions() -> None:
    results = run_ranks(_send_and_reduce, 3)
    assert [total for total, _ in results] == [60.0] * 3
    assert results[1][1] == [True] * 8


def _wait_until_cut(rank: Rank) -> tuple[str, bool]:
    """Reduces once, then waits in an operation that a peer never joins until another thread cuts the group.

    Returns:
        The error, and whether gloo itself ended all its operations, as it can wherever no message is under way.
    """
    group = rank.group(long_timeout=10 * PATIENCE)
    assert _sum(group, 1.0) == rank.world_size
    rank.tell("ready")
    how = rank.hear()
    if how == "cut":
        threading.Timer(0.2, group.cut).start()
    try:
        if how == "receive":
            threading.Timer(0.2, group.cut).start()
            group.recv(torch.zeros(10), rank.world_size - 1, 3)
        else:
            _sum(group, 1.0)
    except GroupError as error:
        group.cut()  # whoever sees an error cuts, so that all see one
        return str(error), group.can_be_released()
    return "no error", False


@pytest.mark.quick
def test_cutting_a_group_ends_the_wait_for_a_frozen_peer() -> None:
    with ranks(_wait_until_cut, 3) as started:
        assert started.heard_all() == ["ready"] * 3
        started.freeze(2)
        started.say(0, "cut")
        started.say(1, "cut")  # its own connection to the frozen rank tells it nothing of rank 0's cut
        for rank in (0, 1):
            error, ended = started.heard(rank)
            assert ("cut" in error or "lost" in error) and ended


def test_cutting_a_group_ends_a_receive_in_another_thread() -> None:
    with ranks(_wait_until_cut, 2) as started:
        started.heard_all()
        started.freeze(1)
        started.say(0, "receive")
        error, ended = started.heard(0)
        assert "was cut" in error and ended


@pytest.mark.thorough
def test_all_of_five_ranks_see_a_killed_one_once_the_first_cut() -> None:
    with ranks(_wait_until_cut, 5) as started:
        started.heard_all()
        for rank in (0, 1, 2, 3):
            started.say(rank, "wait")
        started.kill(4)
        for rank in (0, 1, 2, 3):
            error, ended = started.heard(rank)
            assert ("cut" in error or "lost" in error) and ended


def _lose_the_other_half_way(rank: Rank, giver: int) -> str:
    """Gives much to a peer that is killed when the first of it is there, or gets much from one."""
    group, memory = rank.group(), torch.zeros(50_000_000)
    peer = int(group.all_gather_bytes(str(os.getpid()).encode())[1])

    def kill_half_way() -> None:
        while not memory[0]:
            pass
        os.kill(peer, signal.SIGKILL)

    rank.cut_when_told(group)
    try:
        if rank.number == giver:
            group.send(memory + 1, 1 - giver, 3)
        else:
            threading.Thread(target=kill_half_way, daemon=True).start()
            group.recv(memory, giver, 3)
    except GroupError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("giver", [pytest.param(0, marks=pytest.mark.quick), 1])
def test_cutting_a_group_ends_a_message_whose_other_end_died_half_way(giver: int) -> None:
    """gloo itself tells neither a sender nor a receiver; and what it still holds does not keep the process."""
    with ranks(_lose_the_other_half_way, 2, giver) as started:
        started.processes[1].join(PATIENCE)
        assert started.processes[1].exitcode == -signal.SIGKILL
        started.say(0, "cut")
        assert "was cut" in started.heard(0)
        started.processes[0].join(PATIENCE / 4)
        assert started.processes[0].exitcode == 0


def _wait_though_no_connection_ends(rank: Rank) -> str:
    group = rank.group()
    if rank.number == 1:
        rank.hear()
        return ""
    group_module.shut_connections = lambda listeners: 0  # as where gloo loses the word
    threading.Timer(0.1, group.cut).start()
    try:
        _sum(group, 1.0)
    except GroupError as error:
        return str(error)
    return "no error"


def test_a_reduction_that_gloo_never_ends_ends_with_its_group() -> None:
    with ranks(_wait_though_no_connection_ends, 2) as started:
        assert "was cut" in started.heard(0)
        started.processes[0].join(PATIENCE / 4)
        assert started.processes[0].exitcode == 0


def _cut_among_other_sockets(rank: Rank) -> list[bool]:
    """Cuts one of two groups while threads open and close sockets of their own."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            with socket.create_server(("127.0.0.1", 0)) as other, socket.create_connection(other.getsockname()):
                pass

    disturber = threading.Thread(target=disturb)
    disturber.start()
    kept, cut = rank.group("kept"), rank.group("cut")
    mine = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    _sum(cut, 1.0)
    _sum(kept, 1.0)
    cut.cut()
    cut.cut()
    stop.set()
    disturber.join()
    mine.sendall(b"alive")
    found = [theirs.recv(5) == b"alive", _sum(kept, 1.0) == rank.world_size]
    with pytest.raises(GroupError, match="was cut"):
        cut.all_reduce(torch.zeros(1))
    assert socket.create_connection(listener.getsockname())
    return found


def test_a_cut_shuts_the_sockets_of_its_own_group_only() -> None:
    assert run_ranks(_cut_among_other_sockets, 2) == [[True, True]] * 2


def _form_again_and_again(rank: Rank, rounds: int) -> tuple[bool, int]:
    """Uses many groups one after the other, each closed as soon as this rank's own operation has ended."""
    good, threads = True, 0
    meeting = rank.group("meeting")
    for number in range(rounds):
        group = rank.group(number)
        good = good and _sum(group, 1.0, numel=200_000) == rank.world_size
        if number % 3 == 0:
            _sum(meeting, 1.0)
            group.cut()
        else:
            group.close()
        group.close()
    release_cut()
    deadline = time.monotonic() + PATIENCE
    while (threads := len(os.listdir("/proc/self/task"))) > 7 and time.monotonic() < deadline:
        pass
    return good, threads


def test_groups_that_follow_each_other_disturb_nothing_and_leave_nothing() -> None:
    for good, threads in run_ranks(_form_again_and_again, 3, 30):
        assert good
        assert threads <= 7


def _leave_unfinished(rank: Rank) -> str:
    group = rank.group()
    if rank.number == 0:
        rank.tell("begun")
        group.all_reduce(torch.zeros(10))
        return "left"
    try:
        group.recv(torch.zeros(10), 0, 1)
    except GroupError as error:
        return str(error)
    return "no error"


def test_a_process_ends_though_an_operation_is_under_way() -> None:
    with ranks(_leave_unfinished, 2) as started:
        assert started.heard(0) == "begun"
        assert started.heard(0) == "left"
        assert "lost" in started.heard(1)
        started.processes[0].join(PATIENCE / 4)
        assert started.processes[0].exitcode == 0


def _alone(rank: Rank) -> tuple[str, float, int]:
    """Waits in vain for its peers, and counts how often another thread runs meanwhile."""
    turns, done = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    began = time.monotonic()
    try:
        build_group(rank.store, 1, 0, 3, 1.0, CPU)
    except GroupError as error:
        return str(error), time.monotonic() - began, turns
    finally:
        done.set()
        counter.join()
    return "formed", 0.0, 0


def test_forming_names_who_is_missing_and_lets_other_threads_run() -> None:
    ((error, took, turns),) = run_ranks(_alone, 1)
    assert "rank 1, 2 did not come within 1 s" in error
    assert 0.9 < took < 10
    assert turns > 100


def test_a_store_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(GroupError, match=f"c10d store at 127.0.0.1:{port} can't be reached"):
        build_group(f"127.0.0.1:{port}", 1, 0, 2, 0.5, CPU)


def _serve(port: int) -> TCPStore:
    listener = socket.create_server(("127.0.0.1", port))
    port = listener.getsockname()[1]
    return serve_on(listener.detach(), port)


def test_a_connection_to_the_store_is_used_again_until_it_breaks() -> None:
    server = _serve(0)
    address = f"127.0.0.1:{server.port}"
    connect_store(address, 10.0)
    with leased_store(address, 10.0) as first, leased_store(address, 10.0) as beside:
        assert beside is not first
    with leased_store(address, 10.0) as again:
        assert again in (first, beside)
    port = server.port
    del server
    server = _serve(port)  # a coordinator that came back at the same address
    with leased_store(address, 10.0) as renewed:
        renewed.set("key", "value")
    assert renewed not in (first, beside)
    assert server.get("key") == b"value"


def _in_a_given_store(rank: Rank) -> float:
    host, port = rank.store.split(":")
    store = TCPStore(host, int(port), None, False, timedelta(seconds=30), wait_for_workers=False)
    return _sum(group_from_store(store, "mine", rank.number, rank.world_size, 30.0, CPU), 2.0)


def test_a_group_forms_in_a_store_that_is_there() -> None:
    assert run_ranks(_in_a_given_store, 2) == [4.0, 4.0]


def test_a_world_of_one_needs_no_store() -> None:
    group = build_group("", 1, 0, 1, 1.0, CPU)
    tensor = torch.ones(3)
    group.all_reduce(tensor, op="max").wait()
    group.close()
    assert tensor.tolist() == [1, 1, 1]
    assert group.all_gather_bytes(b"me") == [b"me"]
