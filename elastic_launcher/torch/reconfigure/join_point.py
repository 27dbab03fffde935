"""Decides in which loop of the script joiners come in, and whether they wait in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.membership.formations import MovedOn
from elastic_launcher.torch.membership.membership import Formation
from elastic_launcher.torch.reconfigure.fingerprint import difference, fingerprint
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.statistical_epochs import end_within, is_over


class JoinPoint:
    """Compares where joiners wait with where the job trains.

    Attributes:
        elsewhere: Where the job has gone on to while this rank waited for admission.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._first_data: TrainingData | None = None  # of this epoch: joiners come into its first loop
        self._meets: dict[int, tuple[TrainingData | None, int, int]] = {}  # by formation, where its joiners come in
        self._waits = 0  # for admission, in one loop of the script after the other
        self.elsewhere = Position()

    def begin_loop(self, data: TrainingData) -> None:
        """Notes that the script begins a training loop."""
        if self._session.course.loop == 0:
            self._first_data = data

    def wait(self, in_another_loop: bool) -> int:
        """Returns the number of this wait for admission: another one in another loop."""
        self._waits += in_another_loop
        return self._waits

    def may_come(self, formation: Formation, data: TrainingData) -> bool:
        """Whether the loop in which a formation's joiners wait comes yet, when the script begins one over this data."""
        return bool(self._session.course.loop) or self._meets.get(formation.number) == self._meeting(data)

    def is_here(self, formation: Formation) -> bool:
        """Whether a formation's joiners wait in the loop that runs."""
        meets = self._meets.pop(formation.number, None)
        return meets == self._meeting(self._session.data) and not self._session.course.loop

    def _meeting(self, data: TrainingData | None) -> tuple[TrainingData | None, int, int]:
        """Returns what is the same in all loops in which a joiner that waits in one of them can come in: it can begin
        with a later epoch of its `job.epochs`, but not with a later one of the script's own loops.
        """
        course = self._session.course
        return data, course.phase, 0 if course.counted else course.epoch

    def is_next(self, formation: Formation) -> bool:
        """Whether the step after the one that runs is in the loop in which joiners wait, as far as that is known."""
        session, course, data = self._session, self._session.course, self._session.data
        if data is None or course.loop or self._meets.get(formation.number) != self._meeting(data):
            return False
        position, whole = session.position, session.data_pass(data, session.position)
        if end_within(session, whole, position.step + 2) < position.step + 2:
            return False
        if position.step_in_epoch + 1 < whole.steps:
            return True
        last = session.autoscaling is None and session.epochs is not None and position.epoch + 1 >= session.epochs
        return course.counted and course.repeats() and data.epoch is None and not last

    def reserve(self, formation: Formation) -> None:
        """Has joiners see whether they wait in the right loop, and make the memory ready for what they will get, beside
        the training: new memory is slow at first.

        Raises:
            GroupError: If a peer was lost, or the formation was given up.
            MovedOn: If the job has gone on to another loop.
        """
        group, state = formation.group, self._session.state
        assert group is not None
        joins, data = self._session.need_member().number in formation.joiners, self._first_data
        outline = b""
        if not joins and data is not None:
            self._meets[formation.number] = self._meeting(data)
            if group.rank == 0:
                outline = json.dumps(self._outline(data)).encode()
        told = json.loads(group.all_gather_bytes(outline)[0] or "null")
        if told is None:
            raise MovedOn("the training is between two loops")
        if joins:
            self._compare(told)
            state.reserve(told["state"])
        group.all_gather_bytes(b"")  # all joiners have it

    def _outline(self, data: TrainingData) -> dict[str, Any]:
        session = self._session
        position = session.position
        following = replace(position, epoch=_first_to_come(position))
        return {
            "position": position.numbers(),
            "more": not is_over(session, following),
            "of_epoch": data.epoch is not None,
            "fingerprint": fingerprint(session, data),
            "sums": session.sums.known,
            "state": session.state.outline(),
        }

    def _compare(self, told: dict[str, Any]) -> None:
        """Sees whether this rank, which waits for admission, waits where the job can take it in.

        Raises:
            MovedOn: If it has to go on to a later epoch first.
            GroupError: If what it trains differs.
        """
        session, member, wait = self._session, self._session.need_member(), self._waits
        there, here, data = Position(*told["position"]), session.course, session.data
        if data is None:
            raise MovedOn("this rank is on its way to another epoch", wait)
        different = difference(told["fingerprint"], fingerprint(session, data))
        at_once = (there.phase, there.epoch) == (here.phase, here.epoch)
        later = here.counted and there.phase == here.phase and not (told["of_epoch"] or data.epoch is not None)
        if not different and (at_once or later):
            return
        if at_once:
            member.formations.interrupt(RuntimeError(different))
            raise GroupError(different)
        session.sums.known = {**told["sums"], **session.sums.known}
        if told["more"]:
            self.elsewhere = there.at(there.phase, _first_to_come(there))
            member.formations.interrupt(MovedOn("", wait))
        raise MovedOn("the training has gone on to another epoch", wait)


def _first_to_come(position: Position) -> int:
    """Returns the first epoch whose first loop is not over."""
    return position.epoch + (position.loop > 0)
