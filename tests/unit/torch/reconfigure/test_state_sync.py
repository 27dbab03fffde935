"""A state that could not be taken over is an error of whoever waits for it, whatever the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.membership.reconcile import NextAction, RecoveryPlan
from elastic_launcher.torch.reconfigure import state_sync
from elastic_launcher.torch.reconfigure.state_sync import Receiver
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.codec import decode
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.training_state import Captured, TrainingState


class Full:
    """A group on a machine that has no memory left for what a peer sends."""

    def recv(self, *arguments: Any) -> None:
        raise MemoryError("no room for the state")


def test_a_state_that_could_not_be_taken_is_no_state() -> None:
    receiver = Receiver(cast(Group, Full()), 0, TrainingState([], [], [], [], {}, {}))
    with pytest.raises(MemoryError, match="no room"):
        receiver.finish()


def test_who_lost_a_reduction_gets_buffers_and_tracked_tensors_as_it_left_them_and_others_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total, buffers, model = torch.tensor([3.0]), ModelBuffers(), nn.Module()
    sent: dict[int, Any] = {}
    model.register_buffer("turns", torch.tensor([5 + 1j]))
    model.register_buffer("seen", torch.tensor([5]))
    buffers.add([model])
    buffers.tracked.add({"total": total}, "sum")
    buffers.end_reduction()
    total.zero_()  # the script begins an epoch
    model.turns *= 2
    model.seen = model.seen + 2

    class Noted:
        def __init__(self, group: Any, rank: int, captured: Captured, *at: Any) -> None:
            tracked = decode(captured.header["tracked"], captured.tensors)["0.total"]
            sent[rank] = [tensor.item() for tensor in (tracked, *captured.tensors[:2])]

        def wait(self) -> None:
            pass

    monkeypatch.setattr(state_sync, "Sender", Noted)
    session: Any = SimpleNamespace(
        state=TrainingState([model], tracked=buffers.tracked),
        buffers=buffers,
        position=Position(),
        schedule=None,
    )
    ways = [
        RecoveryPlan(NextAction.AGAIN, 0, takes=False),
        RecoveryPlan(NextAction.ADOPT, 0, takes=True),
        RecoveryPlan(NextAction.AGAIN, 0, takes=True),
    ]
    state_sync._give(session, cast(Group, None), ways)
    assert sent == {1: [3.0, 5 + 1j, 5], 2: [0.0, 10 + 2j, 7]}
    buffers.end_reduction(alone=True)
    assert not buffers.after_reduction() and not buffers.tracked.after_reduction  # no copies that nobody needs
