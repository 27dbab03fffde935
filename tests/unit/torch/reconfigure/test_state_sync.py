"""A state that could not be taken over is an error of whoever waits for it, whatever the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.membership.reconcile import NextAction, RecoveryPlan
from elastic_launcher.torch.reconfigure import state_sync
from elastic_launcher.torch.reconfigure.state_sync import Receiver
from elastic_launcher.torch.state.codec import decode
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.tracked import Tracked
from elastic_launcher.torch.state.training_state import Captured, TrainingState


class Full:
    """A group on a machine that has no memory left for what a peer sends."""

    def recv(self, *arguments: Any) -> None:
        raise MemoryError("no room for the state")


def test_a_state_that_could_not_be_taken_is_no_state() -> None:
    receiver = Receiver(cast(Group, Full()), 0, TrainingState([], [], [], [], {}, {}))
    with pytest.raises(MemoryError, match="no room"):
        receiver.finish()


def test_who_lost_a_reduction_gets_tracked_tensors_as_it_left_them_and_others_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total, tracked = torch.tensor([3.0]), Tracked()
    sent: dict[int, Any] = {}
    tracked.add({"total": total}, "sum")
    tracked.end_reduction()
    total.zero_()  # the script begins an epoch

    class Noted:
        def __init__(self, group: Any, rank: int, captured: Captured, *at: Any) -> None:
            sent[rank] = decode(captured.header["tracked"], captured.tensors)

        def wait(self) -> None:
            pass

    monkeypatch.setattr(state_sync, "Sender", Noted)
    session: Any = SimpleNamespace(
        state=TrainingState(tracked=tracked),
        buffers=SimpleNamespace(tracked=tracked),
        position=Position(),
        schedule=None,
    )
    ways = [
        RecoveryPlan(NextAction.AGAIN, 0, takes=False),
        RecoveryPlan(NextAction.ADOPT, 0, takes=True),
        RecoveryPlan(NextAction.AGAIN, 0, takes=True),
    ]
    state_sync._give(session, cast(Group, None), ways)
    assert {rank: state["0.total"].tolist() for rank, state in sent.items()} == {1: [3.0], 2: [0.0]}
