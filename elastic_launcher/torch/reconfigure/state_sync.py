"""Gives a rank the state of a peer: a joiner in the background, while both go on with the step; and all that need it,
in a recovery.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch

from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.threads import start_thread
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.membership.reconcile import NextAction, RankStatus, RecoveryPlan, compare_starts, find_way
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.training_state import Captured, TrainingState
from elastic_launcher.torch.state.transfer import receive_state, send_state

if TYPE_CHECKING:
    from elastic_launcher.torch.session import Session

POSITION_TAG = 7001  # apart from the tags of the state itself


def receive_progress(group: Group, rank: int) -> tuple[Position, BatchSchedule]:
    """Waits until a peer sends which step comes next, and by which schedule: that admits a joiner.

    Raises:
        GroupError: If the group was cut meanwhile.
    """
    numbers = torch.zeros(len(Position().numbers()) + 1, dtype=torch.int64)
    group.recv(numbers, rank, POSITION_TAG)
    *position, entries = numbers.tolist()
    schedule = torch.zeros((entries, 2), dtype=torch.int64)
    group.recv(schedule, rank, POSITION_TAG)
    return Position(*position), BatchSchedule(tuple((step, size) for step, size in schedule.tolist()))


class _Background:
    """Runs something beside the training thread, and hands its error over when waited for."""

    def __init__(self, name: str) -> None:
        self._error: Exception | None = None
        self._thread = start_thread(name, self._guard)

    def _run(self) -> None:
        raise NotImplementedError

    def _guard(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - who waits is to know that it did not happen
            self._error = error

    def abandon(self) -> None:
        """Waits for the end, good or bad; the group has been aborted, so it comes within tenths of a second."""
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

    def __init__(
        self, group: Group, rank: int, captured: Captured, position: Position, schedule: BatchSchedule
    ) -> None:
        self._group, self._rank, self._captured = group, rank, captured
        entries = schedule.entries
        self._position = torch.tensor([*position.numbers(), len(entries)], dtype=torch.int64)
        self._schedule = torch.tensor(entries, dtype=torch.int64)
        super().__init__("elastic-send-state")

    def _run(self) -> None:
        self._group.send(self._position, self._rank, POSITION_TAG)
        self._group.send(self._schedule, self._rank, POSITION_TAG)
        send_state(self._group, self._rank, self._captured)


class Receiver(_Background):
    """Receives a peer's state into this process's own memory.

    ``keep_own``: registered objects and the script's own values stay as they are; the script goes on with them.
    """

    def __init__(self, group: Group, rank: int, state: TrainingState, keep_own: bool = False) -> None:
        self._group, self._rank, self._state, self._keep_own = group, rank, state, keep_own
        self._received: Captured | None = None
        super().__init__("elastic-receive-state")

    def _run(self) -> None:
        self._received = receive_state(self._group, self._rank, self._state, keep_own=self._keep_own)

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
        self._state.finish(received.header, received.tensors, self._keep_own)
        return True


def meet(session: Session, group: Group, mine: RankStatus) -> tuple[RecoveryPlan, RankStatus]:
    """Lets all ranks of a new group that hold the same part of the model, which all call this with their progress, have
    the same state.

    Returns this rank's next action, and the progress of the rank that gave its state.

    Raises:
        GroupError: If another one was lost; this rank's state may be torn then.
        LookupError: If no rank that is left has the state.
        RuntimeError: If they are to start a new job at different positions.
    """
    point("meet", session.position.step)
    with session.agreed():
        standings = [
            RankStatus(**json.loads(text)) for text in group.all_gather_bytes(json.dumps(asdict(mine)).encode())
        ]
        compare_starts(standings)
        ways = [find_way(standings, rank) for rank in range(group.world_size)]
        way = ways[group.rank]
        if way.takes:
            session.torn = mine.operations >= 0
            position, schedule = receive_progress(group, way.source)
            Receiver(group, way.source, session.state, keep_own=session.torn).finish()
        elif group.rank == way.source and any(one.takes for one in ways):
            _give(session, group, ways)
    if way.takes:
        session.take_schedule(schedule)
        if mine.operations < 0:
            session.move_to(position)
        elif way.todo is NextAction.AGAIN:
            session.move_to(replace(session.position, calls=position.calls, operations=position.operations))
        session.torn, session.lost = False, set(standings[way.source].lost)
    return way, standings[way.source]


def _give(session: Session, group: Group, ways: list[RecoveryPlan]) -> None:
    """Sends this rank's state to those that take it.

    Who lost a reduction gets buffers and tracked tensors as they were right after it: what the script has done with
    them since, its own script does too.
    """
    takers = [rank for rank, way in enumerate(ways) if way.takes]
    adopting = [rank for rank in takers if ways[rank].todo is NextAction.ADOPT]
    others = [rank for rank in takers if rank not in adopting]
    senders: list[Sender] = []
    buffers = session.buffers
    for ranks, earlier in ((others, ()), (adopting, (buffers.after_reduction(), buffers.tracked.after_reduction))):
        if ranks:
            captured = session.state.capture(*earlier)
            senders += [Sender(group, rank, captured, session.position, session.schedule) for rank in ranks]
    point("give", session.position.step)
    for sender in senders:
        sender.wait()
