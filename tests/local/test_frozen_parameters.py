"""Frozen parameters are sent to a joiner only where it has built others, and its state is the sender's bit by bit."""

from __future__ import annotations

from typing import Any

import torch

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.state.tensors import digest
from elastic_launcher.torch.state.training_state import DIGEST_BYTES, TrainingState
from elastic_launcher.torch.state.transfer import receive_state, send_state
from tests.support.adapters import adapted, sizes, thaw_last_block, train
from tests.support.rank_processes import Rank, run_ranks


def _sent(group: Group, state: TrainingState) -> int:
    """Sends a state to rank 1; returns how many bytes."""
    sent = 0
    send, start = group.send, group.start_send

    def counting_send(tensor: torch.Tensor, *rest: Any, **named: Any) -> None:
        nonlocal sent
        sent += tensor.nbytes
        send(tensor, *rest, **named)

    def counting_start(tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
        nonlocal sent
        sent += tensor.nbytes
        return start(tensor, *rest, **named)

    group.send, group.start_send = counting_send, counting_start  # type: ignore[method-assign]
    send_state(group, 1, state.capture())
    del group.send, group.start_send
    return sent


def _same_base(state: TrainingState, sends: bool) -> None:
    """Nothing but the adapters differs."""


def _other_layer(state: TrainingState, sends: bool) -> None:
    if not sends:
        with torch.no_grad():  # values in other places: their sum is the same
            weight = state.models[0].blocks[2].linear1.weight
            weight.copy_(weight.flip(0))


def _thawed(state: TrainingState, sends: bool) -> None:
    if sends:
        thaw_last_block(state)
        train(state, 2, 2)


def _thawed_and_frozen(state: TrainingState, sends: bool) -> None:
    _thawed(state, sends)
    state.models[0].blocks[-1].requires_grad_(False)


def _rewritten(state: TrainingState, sends: bool) -> None:
    """Such as a teacher that follows its student."""
    if sends:
        for parameter in state.models[0].blocks[0].parameters():
            parameter.data.mul_(0.5)


CASES = {
    "same base": _same_base,
    "a layer with its rows in another order": _other_layer,
    "thawed": _thawed,
    "thawed and frozen again": _thawed_and_frozen,
    "rewritten": _rewritten,
}


def _hand_over_all(rank: Rank) -> list[tuple[int, int, int, list[Any]]]:
    """Hands a training of each case over; returns bytes sent, of the whole state, frozen ones, and how it looks."""
    group, found = rank.group(), []
    for seed, change in ((0, _same_base), (1, _same_base), *((0, change) for change in list(CASES.values())[1:])):
        sends = rank.number == 0
        state = adapted(0 if sends else seed)
        if sends:
            train(state, 0, 2)
        change(state, sends)
        sent = 0
        if sends:
            sent = _sent(group, state)
        else:
            received = receive_state(group, 0, state)
            state.finish(received.header, received.tensors)
        train(state, 4, 1)
        captured = state.capture()
        look = [captured.header, *(int(digest(t)) for t in captured.tensors)]
        found.append((sent, *sizes(state), look))
    return found


def test_a_joiner_gets_what_differs_and_trains_on_like_the_sender() -> None:
    sender, receiver = run_ranks(_hand_over_all, 2)
    names = ["same base", "another base", *list(CASES)[1:]]
    bytes_sent = {}
    for name, (sent, whole, frozen, look), (_, _, _, other) in zip(names, sender, receiver, strict=True):
        assert look == other, name
        bytes_sent[name] = sent
        print(f"{name}: {sent / 1e6:.3f} MB sent of {whole / 1e6:.3f} MB, {frozen / 1e6:.3f} MB of them frozen")
    whole, once = sender[0][1], bytes_sent["same base"]
    assert once < whole / 40
    assert whole < bytes_sent["another base"] < 1.01 * whole
    block = adapted().models[0].blocks[-1]
    assert bytes_sent["a layer with its rows in another order"] == once + block.linear1.weight.nbytes
    large = sum(p.nbytes for p in block.parameters() if p.dim() > 1)
    assert bytes_sent["rewritten"] == once + large
    for name in ("thawed", "thawed and frozen again"):  # with two moments of Adam
        assert once + 3 * large < bytes_sent[name] < once + 3.1 * large, name


def _look(state: TrainingState, trained: bool) -> list[int]:
    """Returns digests of the parameters that are trained, or of the others."""
    return [int(digest(p.detach())) for p in state.models[0].parameters() if p.requires_grad == trained]


def _adopt(rank: Rank) -> tuple[list[int], list[int]]:
    """Takes over a step of rank 0, whose script has changed frozen parameters since; returns the looks."""
    group, state = rank.group(), adapted(0)
    train(state, 0, 2)
    if rank.number == 0:
        train(state, 2, 1)
        _rewritten(state, True)
        _sent(group, state)
    else:
        received = receive_state(group, 0, state, keep_own=True)
        state.finish(received.header, received.tensors, keep_own=True)
    return _look(state, True), _look(state, False)


def test_who_takes_a_step_over_keeps_its_frozen_parameters() -> None:
    """Its own script does with them what the sender's has done: an average of the weights moves once."""
    (ahead, rewritten), (taken, kept) = run_ranks(_adopt, 2)
    sizes_rewritten = [p.nbytes for p in adapted().models[0].blocks[0].parameters()]
    assert min(sizes_rewritten) < DIGEST_BYTES < max(sizes_rewritten)
    assert taken == ahead
    assert kept == _look(adapted(), False) != rewritten
