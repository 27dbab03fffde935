"""Moves a rank's state to a peer, straight out of and into the tensors' own memory; small ones are packed together."""

from __future__ import annotations

import json
from typing import Any

import torch

from elastic_launcher.torch.group import Group
from elastic_launcher.torch.state import Captured, TrainingState

LENGTH_TAG, HEADER_TAG, TENSOR_TAG = 7100, 7101, 7102
SMALL_BYTES = 64 * 1024  # below this a message of its own costs more than a copy
PACK_BYTES = 4 * 2**20


def _packs(sizes: list[int]) -> tuple[list[list[int]], list[int]]:
    """Divides tensors into packs of small ones and single large ones, by number; the same on both sides."""
    packs: list[list[int]] = []
    large: list[int] = []
    room = 0
    for number, size in enumerate(sizes):
        if size >= SMALL_BYTES:
            large.append(number)
            continue
        if not packs or room < size:
            packs.append([])
            room = PACK_BYTES
        packs[-1].append(number)
        room -= size
    return packs, large


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor's memory as bytes."""
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    return tensor.reshape(-1).view(torch.uint8)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def send_state(group: Group, rank: int, captured: Captured) -> None:
    """Sends captured state to a peer; the tensors must not change before this returns.

    Raises:
        GroupError: If the peer or the group is lost.
    """
    header = torch.frombuffer(bytearray(json.dumps(captured.header).encode()), dtype=torch.uint8)
    group.send(torch.tensor([header.numel()]), rank, LENGTH_TAG)
    group.send(header, rank, HEADER_TAG)
    packs, large = _packs([_size(t) for t in captured.tensors])
    for pack in packs:
        joined = torch.cat([_bytes(captured.tensors[n].contiguous()).cpu() for n in pack])
        if joined.numel():
            group.send(joined, rank, TENSOR_TAG)
    for number in large:
        group.send(_bytes(captured.tensors[number].contiguous()), rank, TENSOR_TAG)


def receive_state(group: Group, rank: int, state: TrainingState) -> dict[str, Any]:
    """Receives a peer's state into this rank's own; returns the header.

    Raises:
        GroupError: If the peer or the group is lost; the state is then a mixture and must be received again.
        StateMismatch: If this rank has built something else.
    """
    length = torch.zeros(1, dtype=torch.int64)
    group.recv(length, rank, LENGTH_TAG)
    raw = torch.empty(int(length), dtype=torch.uint8)
    group.recv(raw, rank, HEADER_TAG)
    header: dict[str, Any] = json.loads(bytes(raw.numpy()))
    targets = state.targets(header)
    packs, large = _packs([_size(t) for t in targets])
    for pack in packs:
        joined = torch.empty(sum(_size(targets[n]) for n in pack), dtype=torch.uint8)
        if joined.numel():
            group.recv(joined, rank, TENSOR_TAG)
        offset = 0
        for number in pack:
            _fill(targets[number], joined[offset : offset + _size(targets[number])])
            offset += _size(targets[number])
    for number in large:
        target = targets[number]
        if target.is_contiguous():
            group.recv(_bytes(target), rank, TENSOR_TAG)
        else:
            part = torch.empty(_size(target), dtype=torch.uint8, device=target.device)
            group.recv(part, rank, TENSOR_TAG)
            _fill(target, part)
    state.finish(header, targets)
    return header


def _fill(target: torch.Tensor, raw: torch.Tensor) -> None:
    """Copies bytes into a tensor of any layout."""
    if target.numel():
        with torch.no_grad():
            target.copy_(raw.clone().view(target.dtype).view(target.shape))
