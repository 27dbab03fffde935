"""Gives a joiner the state of a peer, in the background, while both go on with the step."""

from __future__ import annotations

import threading

import torch

from elastic_launcher.torch.group import Group, GroupError
from elastic_launcher.torch.position import Position
from elastic_launcher.torch.state import Captured, TrainingState
from elastic_launcher.torch.transfer import receive_state, send_state

POSITION_TAG = 7001  # apart from the tags of the state itself


def receive_position(group: Group, rank: int) -> Position:
    """Waits until a peer tells which step is next: with this, a joiner is admitted.

    Raises:
        GroupError: If the group was cut meanwhile.
    """
    numbers = torch.zeros(len(Position().numbers()), dtype=torch.int64)
    group.recv(numbers, rank, POSITION_TAG)
    return Position.from_numbers(numbers.tolist())


class _Background:
    """Runs something beside the training thread, and hands its error over when waited for."""

    def __init__(self, name: str) -> None:
        self._error: GroupError | RuntimeError | None = None
        self._thread = threading.Thread(target=self._guard, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        raise NotImplementedError

    def _guard(self) -> None:
        try:
            self._run()
        except RuntimeError as error:
            self._error = error

    def abandon(self) -> None:
        """Waits for the end, whatever it is; the group has been cut, so it comes at once."""
        self._thread.join()

    def wait(self) -> None:
        """Waits for the end.

        Raises:
            GroupError: If the peer or the group was lost.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error


class Sender(_Background):
    """Sends captured state to a peer out of live memory; nothing of it may change until `wait` has returned."""

    def __init__(self, group: Group, rank: int, captured: Captured, position: Position) -> None:
        self._group, self._rank, self._captured = group, rank, captured
        self._position = torch.tensor(position.numbers(), dtype=torch.int64)
        super().__init__("elastic-send-state")

    def _run(self) -> None:
        self._group.send(self._position, self._rank, POSITION_TAG)
        send_state(self._group, self._rank, self._captured)


class Receiver(_Background):
    """Receives a peer's state into this process's own memory."""

    def __init__(self, group: Group, rank: int, state: TrainingState) -> None:
        self._group, self._rank, self._state = group, rank, state
        self._received: Captured | None = None
        super().__init__("elastic-receive-state")

    def _run(self) -> None:
        self._received = receive_state(self._group, self._rank, self._state)

    def finish(self) -> bool:
        """Waits for the state and puts it in place; returns whether this call did so.

        Raises:
            GroupError: If the peer or the group was lost.
            StateMismatch: If this rank has built something else.
        """
        self.wait()
        received, self._received = self._received, None
        if received is None:
            return False
        self._state.finish(received.header, received.tensors)
        return True
