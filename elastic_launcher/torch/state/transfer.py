"""Sends a rank's state to a peer, out of and into the tensors' own memory, beside the reductions of a step.

Large tensors go in pieces, so that a reduction that shares the connection waits for one of them at most; the next
piece is on its way while the last one is waited for. Small tensors are packed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.work import Work
from elastic_launcher.torch.state.tensors import TensorForm
from elastic_launcher.torch.state.training_state import (
    DIGEST_BYTES,
    Captured,
    TrainingState,
    forms,
    frozen_parameters,
    write_values,
)

LENGTH_TAG, HEADER_TAG, TENSOR_TAG, DIGESTS_TAG, DIFFER_TAG = 7100, 7101, 7102, 7103, 7104
SMALL_BYTES = 64 * 2**10  # below this a message of its own costs more than a copy
PACK_BYTES = 4 * 2**20
PIECE_BYTES = 16 * 2**20  # 5-10 ms on one machine
PIECES_UNDER_WAY = 2
ALIGNMENT = 16  # of a tensor in a pack
TIMEOUT = 300.0  # of one piece: a peer that is slow but lives is not given up; who is dead the coordinator judges

Piece = tuple[torch.Tensor, Callable[[], None] | None]


def send_state(group: Group, dst: int, captured: Captured, timeout: float = TIMEOUT) -> None:
    """Sends captured state to a peer that calls `receive_state`; its tensors must not change before this returns.

    Frozen parameters are sent where the peer has built others, by a digest of each.

    Other threads may use the group meanwhile. Any one message may take ``timeout`` seconds.

    Raises:
        GroupError: If the peer was lost, the group was cut, or the time is over.
    """
    text = json.dumps(captured.header, allow_nan=False).encode()
    header = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    group.send(torch.tensor([header.numel()]), dst, LENGTH_TAG, timeout)
    group.send(header, dst, HEADER_TAG, timeout)
    wanted = forms(captured.header)
    frozen = frozen_parameters(captured.header, DIGEST_BYTES)
    differ = torch.ones(len(frozen), dtype=torch.uint8)
    if frozen:
        group.send(captured.digests(), dst, DIGESTS_TAG, timeout)
        group.recv(differ, dst, DIFFER_TAG, timeout)
    sent = _without(len(wanted), frozen, differ)
    pieces = outgoing([wanted[n] for n in sent], [captured.tensors[n] for n in sent])
    _run(((group.start_send(memory, dst, TENSOR_TAG), None) for memory in pieces), timeout)


def receive_state(
    group: Group, src: int, state: TrainingState, timeout: float = TIMEOUT, keep_own: bool = False
) -> Captured:
    """Receives the state that a peer sends with `send_state`; `TrainingState.finish` puts it in place.

    Other threads may use the group meanwhile. Any one message may take ``timeout`` seconds. With ``keep_own``,
    registered objects and frozen parameters stay as they are. Returns the header, and this rank's memory that holds the
    tensors now.

    Raises:
        GroupError: If the peer was lost, the group was cut, or the time is over; the state is a mixture then.
        StateMismatch: If this rank has built something else.
    """
    length = torch.zeros(1, dtype=torch.int64)
    group.recv(length, src, LENGTH_TAG, timeout)
    text = torch.empty(int(length), dtype=torch.uint8)
    group.recv(text, src, HEADER_TAG, timeout)
    header: dict[str, Any] = json.loads(text.numpy().tobytes())
    targets = state.targets(header, keep_own)
    wanted = forms(header)
    frozen = frozen_parameters(header, DIGEST_BYTES)
    kept = state.kept(header) if keep_own else set()
    for number in kept.difference(frozen):
        targets[number] = torch.empty_like(targets[number])
    captured = Captured(header, targets)
    differ = torch.ones(len(frozen), dtype=torch.uint8)
    if frozen:
        own = captured.digests()
        theirs = torch.empty_like(own)
        group.recv(theirs, src, DIGESTS_TAG, timeout)
        differ = (own != theirs).to(torch.uint8)
        differ[[number in kept for number in frozen]] = 0
        group.send(differ, src, DIFFER_TAG, timeout)
    sent = _without(len(wanted), frozen, differ)
    pieces = incoming([wanted[n] for n in sent], [targets[n] for n in sent])
    _run(((group.start_recv(memory, src, TENSOR_TAG), put) for memory, put in pieces), timeout)
    return captured


def _without(count: int, frozen: list[int], differ: torch.Tensor) -> list[int]:
    """Returns the numbers of the tensors that are sent: all but the frozen ones that do not differ."""
    same = {number for number, differs in zip(frozen, differ.tolist(), strict=True) if not differs}
    return [number for number in range(count) if number not in same]


def _run(started: Iterable[tuple[Work, Callable[[], None] | None]], timeout: float) -> None:
    """Waits for messages in their order, a few of them under way at a time."""
    under_way: deque[tuple[Work, Callable[[], None] | None]] = deque()

    def end_one() -> None:
        work, then = under_way.popleft()
        work.wait(timeout)
        if then is not None:
            then()

    for item in started:
        under_way.append(item)
        if len(under_way) >= PIECES_UNDER_WAY:
            end_one()
    while under_way:
        end_one()


def _packs(wanted: list[TensorForm]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Divides the small tensors into packs: each pack's size, and its tensors' numbers and places."""
    places: list[tuple[int, int]] = []
    end = 0
    for number, form in enumerate(wanted):
        if not 0 < form.size < SMALL_BYTES:
            continue
        if end + form.size > PACK_BYTES:
            yield end, places
            places, end = [], 0
        places.append((number, end))
        end += -(-form.size // ALIGNMENT) * ALIGNMENT
    if places:
        yield end, places


def _packed(pack: torch.Tensor, start: int, form: TensorForm) -> torch.Tensor:
    """Returns the place of a tensor in a pack, with its dimensions as they follow in memory."""
    shape = form.shape if form.order is None else [form.shape[i] for i in form.order]
    return pack[start : start + form.size].view(getattr(torch, form.dtype)).view(shape)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def outgoing(wanted: list[TensorForm], tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields the messages that carry tensors of these forms: packs of small ones, then pieces of large ones."""
    for size, places in _packs(wanted):
        pack = torch.empty(size, dtype=torch.uint8)
        for number, start in places:
            _packed(pack, start, wanted[number]).copy_(wanted[number].arranged(tensors[number]))
        yield pack
    for form, tensor in zip(wanted, tensors, strict=True):
        if form.size >= SMALL_BYTES:
            for piece in _memory(form.arranged(tensor).contiguous()).split(PIECE_BYTES):
                yield piece.cpu()


def incoming(wanted: list[TensorForm], targets: list[torch.Tensor]) -> Iterator[Piece]:
    """Yields the memory for each message of `outgoing`, and what is to be done when it is there."""
    for size, places in _packs(wanted):
        pack = torch.empty(size, dtype=torch.uint8)

        def unpack(pack: torch.Tensor = pack, places: list[tuple[int, int]] = places) -> None:
            for number, start in places:
                write_values(wanted[number].arranged(targets[number]), _packed(pack, start, wanted[number]))

        yield pack, unpack
    for form, target in zip(wanted, targets, strict=True):
        if form.size >= SMALL_BYTES:
            yield from _incoming_large(form.arranged(target))


def _incoming_large(target: torch.Tensor) -> Iterator[Piece]:
    memory = target if target.is_contiguous() else torch.empty(target.shape, dtype=target.dtype, device=target.device)
    pieces = _memory(memory).split(PIECE_BYTES)
    for number, piece in enumerate(pieces):
        host = piece if piece.device.type == "cpu" else torch.empty_like(piece, device="cpu")
        is_last = number == len(pieces) - 1

        def put(piece: torch.Tensor = piece, host: torch.Tensor = host, is_last: bool = is_last) -> None:
            if host is not piece:
                piece.copy_(host)
            if is_last and memory is not target:
                write_values(target, memory)

        yield host, put
