"""State that moves between real processes is the sender's, bit by bit, while both reduce on the same group."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.state.training_state import StateMismatch, TrainingState
from elastic_launcher.torch.state.transfer import receive_state, send_state
from tests.support.rank_processes import Rank, ranks, run_ranks
from tests.support.trainings import KINDS, STEPS_AFTER, STEPS_BEFORE, picture, trained

MB = 1_000_000


def take_state(group: Group, src: int, state: TrainingState, timeout: float = 300.0) -> dict[str, Any]:
    """Receives a peer's state and puts it in place."""
    received = receive_state(group, src, state, timeout)
    state.finish(received.header, received.tensors)
    return received.header


def _move_all(rank: Rank, kinds: list[str]) -> list[Any]:
    """Moves a training of each kind from rank 1 to ranks 0 and 2, which train on; returns how all of them look."""
    group = rank.group()
    pictures = []
    for kind in kinds:
        training = trained(kind, rank.number, STEPS_BEFORE if rank.number == 1 else 0)
        if rank.number == 1:
            captured = training.state.capture()
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda dst: send_state(group, dst, captured), (0, 2)))  # noqa: B023
        else:
            take_state(group, 1, training.state)
        for number in range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER):
            training.step(number)
        pictures.append(picture(training))
    return pictures


def test_every_kind_of_training_goes_on_the_same() -> None:
    first, sender, last = run_ranks(_move_all, 3, list(KINDS))
    for kind, one, two, three in zip(KINDS, first, sender, last, strict=True):
        assert one == two == three, kind


def _large(mebibytes: float, value: float, layout: torch.memory_format = torch.contiguous_format) -> TrainingState:
    """Makes a model with Adam state of some size in all, in tensors of different sizes and layouts."""
    elements = int(mebibytes * MB / 12)
    sizes = [elements // 2, elements // 3, elements - elements // 2 - elements // 3 - 1000, 600, 400]
    model = nn.Module()
    for number, size in enumerate(sizes):
        tensor = torch.full((size // 100, 4, 5, 5), value + number).to(memory_format=layout)
        model.register_parameter(f"p{number}", nn.Parameter(tensor))
    optimizer = torch.optim.Adam(model.parameters())
    for number, parameter in enumerate(model.parameters()):
        state = {"exp_avg": torch.full_like(parameter, value - number), "exp_avg_sq": torch.full_like(parameter, value)}
        optimizer.state[parameter] = {"step": torch.tensor(value), **state}
    return TrainingState([model], [optimizer])


def _sums(state: TrainingState) -> list[float]:
    return [tensor.double().sum().item() for tensor in state.capture().tensors]


def _move_while_reducing(rank: Rank, mebibytes: float, turned: int) -> tuple[list[float], int, int]:
    """Moves a state from rank 0 to rank 1 while both reduce; ``turned`` ranks have another memory layout."""
    group = rank.group()
    layout = torch.channels_last if rank.number < turned else torch.contiguous_format
    state = _large(mebibytes, 3.0 if rank.number == 0 else 0.0, layout)
    if rank.number == 1:
        state.optimizers[0].state.clear()
    reduced = good = 0
    with ThreadPoolExecutor(1) as pool:
        if rank.number == 0:
            moving = pool.submit(send_state, group, 1, state.capture())
        else:
            moving = pool.submit(take_state, group, 0, state)  # type: ignore[arg-type]
        going_on = torch.ones(1)
        while going_on:
            tensor = torch.full((100_000,), float(rank.number))
            group.all_reduce(tensor).wait()
            reduced, good = reduced + 1, good + bool((tensor == 1).all())
            going_on = torch.tensor([0.0 if moving.done() else 1.0])
            group.all_reduce(going_on, op="max").wait()
        moving.result()
    return _sums(state), reduced, good


@pytest.mark.parametrize(
    "turned",
    [
        pytest.param(0, marks=pytest.mark.thorough, id="plain"),
        pytest.param(1, id="sender in another layout"),
        pytest.param(2, marks=pytest.mark.thorough, id="both in another layout"),
    ],
)
def test_25_megabytes_move_while_reductions_run(turned: int) -> None:
    (sent, _, _), (received, reduced, good) = run_ranks(_move_while_reducing, 2, 25, turned)
    assert sent == received
    assert reduced == good > 1


def _resident() -> int:
    """Returns the memory that this process has now, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def _measure_memory(rank: Rank, mebibytes: float) -> int:
    """Returns by how many bytes memory grows at most while state is moved into memory that is there already."""
    group = rank.group()
    done = threading.Event()
    highest = 0

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.001):
            highest = max(highest, _resident())

    watcher = threading.Thread(target=watch)
    state = _large(mebibytes, float(rank.number))
    _sums(state)
    before = _resident()
    watcher.start()
    if rank.number == 0:
        send_state(group, 1, state.capture())
    else:
        take_state(group, 0, state)
    done.set()
    watcher.join()
    return highest - before


def test_moving_100_megabytes_needs_no_second_100_megabytes() -> None:
    for grown in run_ranks(_measure_memory, 2, 100):
        assert grown < 40 * MB


def _move_until_cut(rank: Rank) -> str:
    """Moves state until the test has something happen to a peer, and then this group cut, as the launcher does."""
    group = rank.group()
    state = _large(25, 1.0)
    rank.tell("ready")

    rank.cut_when_told(group)
    try:
        for number in itertools.count():
            if rank.number == 0:
                send_state(group, 1, state.capture())
            else:
                take_state(group, 0, state)
            if number == 0:
                rank.tell("moving")
    except GroupError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("event", ["cut", pytest.param("kill", marks=pytest.mark.thorough)])
def test_a_cut_or_a_lost_peer_ends_a_transfer_on_both_sides(event: str) -> None:
    with ranks(_move_until_cut, 2) as started:
        assert started.heard_all() == ["ready"] * 2
        assert started.heard_all() == ["moving"] * 2
        if event == "cut":
            started.say(1, "cut")
        else:
            started.kill(1)
        started.say(0, "cut")
        for rank in (0, 1) if event == "cut" else (0,):
            error = started.heard(rank)
            assert "cut" in error or "lost" in error


def _wait_in_vain(rank: Rank) -> str:
    group = rank.group()
    try:
        if rank.number == 0:
            send_state(group, 1, _large(1, 1.0).capture(), timeout=0.5)
        else:
            rank.hear()
    except GroupError as error:
        return str(error)
    return "no error"


def test_a_peer_that_does_not_take_part_is_waited_for_a_bounded_time() -> None:
    with ranks(_wait_in_vain, 2) as started:
        assert "Timed out" in started.heard(0)


def _differ(rank: Rank) -> str:
    group = rank.group()
    state = _large(1 if rank.number == 0 else 2, 1.0)
    try:
        if rank.number == 0:
            send_state(group, 1, state.capture())
        else:
            take_state(group, 0, state)
    except StateMismatch as error:
        group.cut()
        return str(error)
    except GroupError:
        return "group error"
    return "no error"


def test_a_receiver_that_built_another_model_says_so_before_anything_changes() -> None:
    sender, receiver = run_ranks(_differ, 2)
    assert sender == "group error"
    assert receiver.startswith("p0 is float32[")
