"""A state that could not be taken over is an error of whoever waits for it, whatever the reason."""

from __future__ import annotations

from typing import Any, cast

import pytest

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.reconfigure.state_sync import Receiver
from elastic_launcher.torch.state.training_state import TrainingState


class Full:
    """A group on a machine that has no memory left for what a peer sends."""

    def recv(self, *arguments: Any) -> None:
        raise MemoryError("no room for the state")


def test_a_state_that_could_not_be_taken_is_no_state() -> None:
    receiver = Receiver(cast(Group, Full()), 0, TrainingState([], [], [], [], {}, {}))
    with pytest.raises(MemoryError, match="no room"):
        receiver.finish()
