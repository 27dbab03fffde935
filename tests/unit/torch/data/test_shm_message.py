from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elastic_launcher.torch.data import shm_message

LARGE = shm_message.LARGE_BYTES  # elements of at least a byte each


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = shm_message.open_line()
    with here, there:
        yield here, there


def sent(line: tuple[socket.socket, socket.socket], thing: Any) -> Any:
    shm_message.send(line[0], 5, thing)
    return shm_message.receive(line[1]).open()


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("elastic-batch")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3),
        torch.arange(LARGE),
        torch.tensor(2.5, dtype=torch.float64),
        torch.rand(8, 3, 64, 64).to(memory_format=torch.channels_last),
        torch.rand(300, 400).t(),
        torch.rand(2 * LARGE)[LARGE:],
        torch.rand(2 * LARGE)[::2],
        torch.rand(1).expand(LARGE),
        torch.rand(LARGE).to(torch.bfloat16),
        torch.rand(LARGE) < 0.5,
        torch.rand(LARGE, dtype=torch.complex64).conj(),
        torch.empty(0, 3),
        torch.eye(3).to_sparse(),
        torch.ones(3, requires_grad=True),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_a_tensor_arrives_as_it_was(line: tuple[socket.socket, socket.socket], tensor: torch.Tensor) -> None:
    came = sent(line, [tensor])[0]
    assert came.dtype == tensor.dtype and came.shape == tensor.shape and came.layout == tensor.layout
    assert came.requires_grad == tensor.requires_grad
    assert torch.equal(came.to_dense(), tensor.to_dense())


@pytest.mark.parametrize("elements", [3, LARGE])
def test_what_arrives_can_be_written(line: tuple[socket.socket, socket.socket], elements: int) -> None:
    tensor, array = sent(line, (torch.zeros(elements), np.zeros(elements)))
    tensor += 1
    array += 1
    assert tensor.sum() == array.sum() == elements


def test_the_order_in_memory_stays(line: tuple[socket.socket, socket.socket]) -> None:
    tensor = sent(line, torch.rand(8, 3, 64, 64).to(memory_format=torch.channels_last))
    assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_a_view_brings_only_its_own_elements(line: tuple[socket.socket, socket.socket]) -> None:
    view = torch.zeros(1000, LARGE)[7]
    assert sent(line, view).untyped_storage().nbytes() == view.nbytes


def test_anything_picklable_arrives(line: tuple[socket.socket, socket.socket]) -> None:
    thing = {"text": "x" * 10 * LARGE, "none": None, "nested": [(1, b"2"), {3.5}], "array": np.arange(LARGE)}
    came = sent(line, thing)
    assert (came.pop("array") == thing.pop("array")).all()  # type: ignore[attr-defined]
    assert came == thing


def test_parcels_keep_their_numbers_and_order(line: tuple[socket.socket, socket.socket]) -> None:
    for number in (3, 2**64 - 1, 0):
        shm_message.send(line[0], number, torch.full((LARGE,), number % 7))
    came = [shm_message.receive(line[1]) for _ in range(3)]
    assert [(p.number, int(p.open()[0])) for p in came] == [(n, n % 7) for n in (3, 2**64 - 1, 0)]


def test_memory_goes_with_the_tensor_that_uses_it(line: tuple[socket.socket, socket.socket]) -> None:
    before = mappings(), descriptors()
    batch = sent(line, [torch.ones(LARGE), torch.ones(LARGE), torch.ones(3)])
    assert (mappings(), descriptors()) == (before[0] + 2, before[1])
    kept = batch[0][5:]
    del batch
    assert mappings() == before[0] + 1
    assert kept.sum() == LARGE - 5
    del kept
    assert mappings() == before[0]


def test_a_parcel_that_nobody_opens_holds_nothing(line: tuple[socket.socket, socket.socket]) -> None:
    before = mappings(), descriptors()
    for _ in range(2):
        shm_message.send(line[0], 1, torch.ones(LARGE))
    shm_message.receive(line[1]).drop()
    shm_message.receive(line[1])
    assert (mappings(), descriptors()) == before


def test_what_cant_be_pickled_leaves_the_line_usable(line: tuple[socket.socket, socket.socket]) -> None:
    before = descriptors()
    with pytest.raises((AttributeError, TypeError)):
        shm_message.send(line[0], 1, [torch.ones(LARGE), lambda: None])
    assert descriptors() == before
    assert sent(line, "next") == "next"


def test_an_empty_line_blocks_nobody_who_does_not_want_to_wait(line: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(BlockingIOError):
        shm_message.receive(line[1], socket.MSG_DONTWAIT)


@pytest.mark.parametrize("elements", [1, LARGE])
def test_a_full_line_takes_a_parcel_whole_or_not_at_all(
    line: tuple[socket.socket, socket.socket], elements: int
) -> None:
    before, count = descriptors(), 0
    with pytest.raises(BlockingIOError):
        while True:
            shm_message.send(line[0], count, torch.full((elements,), count), socket.MSG_DONTWAIT)
            count += 1
    assert descriptors() == before and count > 100
    assert [int(shm_message.receive(line[1]).open()[0]) for _ in range(count)] == list(range(count))


def test_the_end_of_the_other_side_shows(line: tuple[socket.socket, socket.socket]) -> None:
    line[1].close()
    with pytest.raises(ConnectionError):
        shm_message.send(line[0], 1, "x")
    with pytest.raises(EOFError):
        shm_message.receive(line[0])


def test_too_many_open_files_are_named(
    line: tuple[socket.socket, socket.socket],
) -> None:
    shm_message.send(line[0], 1, torch.ones(LARGE))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 5, hard))
        with pytest.raises(OSError):
            while True:
                held.append(os.dup(0))
        with pytest.raises(OSError, match="too many open files"):
            shm_message.receive(line[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


def test_what_the_kernel_reads_and_writes_in_pieces_arrives_whole(
    line: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does with more than 2 GB at once."""
    text, read, write = bytes(range(256)) * 2_000, os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda file, views, at: read(file, [view[:60_000] for view in views], at))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:70_000], at))
    assert sent(line, [text, torch.arange(LARGE)])[0] == text
