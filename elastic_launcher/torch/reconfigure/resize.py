"""Changes this rank to the next generation between two steps.

A new group is built beside the training (`member`). Once all ranks have said, inside one gradient reduction, that
theirs stands, they change to it at the same boundary. Those that leave go at once. Joiners get their state during the
next step, out of the live memory of a peer, take part in that step's reduction without samples, and then apply the
same optimizer step as all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from elastic_launcher.control import messages
from elastic_launcher.control.introduction import Introduction
from elastic_launcher.torch.collectives.group import Group, release_cut
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.membership.formations import JobOver, MovedOn
from elastic_launcher.torch.membership.membership import Formation, Membership, mark_log
from elastic_launcher.torch.membership.reconcile import RankStatus
from elastic_launcher.torch.reconfigure.fingerprint import data_of
from elastic_launcher.torch.reconfigure.join_point import JoinPoint
from elastic_launcher.torch.reconfigure.state_sync import Receiver, Sender, meet, receive_progress
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.state.optimizer_state import SetOptions
from elastic_launcher.torch.statistical_epochs import begin_counting

LOAD_SECONDS = 2.0  # how long a change waits for loader workers


@dataclass(frozen=True)
class Activation:
    """The report on a generation's first step that is still due.

    Attributes:
        first_step: The first step whose samples are divided among all its members.
        done_at: Steps that have to be done first.
        survivor: Whether this rank was there before.
        stood: Seconds that it stood still at least.
    """

    formation: Formation
    first_step: int
    done_at: int
    survivor: bool
    stood: float = 0.0


class Resizer:
    """Changes this rank's membership.

    Attributes:
        join_point: Where joiners come in.
        check_due: Whether the ranks are to compare their parameters.
        transition: The formation to which this rank changes in the step that runs.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next: Formation | None = None
        self._activation: Activation | None = None
        self._senders: list[Sender] = []
        self._receiver: Receiver | None = None
        self._options = SetOptions([])
        self._old_group: Group | None = None
        self._fingerprint: dict[str, Any] = {}
        self.join_point = JoinPoint(session)
        self.check_due = False
        self.transition: Formation | None = None

    @property
    def joining(self) -> bool:
        """Whether this rank is in the step during which it gets its state."""
        return self._receiver is not None

    def standing(self) -> Formation | None:
        """Returns the complete formation to which this rank could change between two steps, if any."""
        member = self._session.member
        formation = member.formations.ready() if member is not None and self.transition is None else None
        return formation if formation is not None and formation.mode in ("grow", "shrink") else None

    def ready(self, is_loaded: Callable[[], bool]) -> Formation | None:
        """Returns the formation to which this rank could change after the step that runs now.

        ``is_loaded`` says whether workers have loaded what this rank would need first.
        """
        formation = self.standing()
        if formation is not None and formation.mode == "grow" and not self.join_point.is_next(formation):
            return None
        if formation is None or formation.group is None or is_loaded():
            return formation
        waited = time.monotonic() - self._session.need_member().formations.ready_since
        return formation if waited > LOAD_SECONDS else None

    def begin_loop(self, data: TrainingData) -> None:
        """Notes that the script begins a training loop, and gives up a growth whose joiners wait in another one that
        does not come again.
        """
        self.join_point.begin_loop(data)
        if self._session.course.loop == 0 and self._session.checkpoints is not None:
            self._session.checkpoints.note_data(data_of(data))
        formation = self.standing()
        if formation is not None and formation.mode == "grow" and not self.join_point.may_come(formation, data):
            moved = MovedOn("the training has gone on to another loop")
            self._session.need_member().formations.decline(formation, moved)

    def agree(self, number: int) -> None:
        """Notes that all ranks are ready for a formation: the change comes at the next boundary.

        Raises:
            GroupError: If the coordinator has given it up in the meantime.
        """
        self._next = self._session.need_member().formations.take(number)
        if self._next is None:
            raise GroupError(f"formation {number} was given up after the ranks had agreed on it")

    def admit(self, fingerprint: dict[str, Any]) -> bool:
        """Waits until this rank is in a generation with ranks of the same ``fingerprint``; returns whether it is.

        It is not where the job has gone on to another loop in the meantime, to which the script has to go.

        Raises:
            RuntimeError: If the job trains something else.
            SystemExit: With 0, if the job ends without needing it.
        """
        member = self._session.need_member()
        if fingerprint:
            self._fingerprint = fingerprint
        member.reports.put(messages.Warm(fingerprint, self.join_point.wait(bool(fingerprint))))
        while True:
            try:
                formation = self.wait_for_formation(lambda f: member.number in f.members and f.group is not None)
                try:
                    with self._session.agreed(formation.group):
                        self.enter(formation)
                    return True
                except GroupError as error:
                    member.formations.check_over()
                    member.formations.give_up(formation, error)
                    if self._session.membership is not None:  # this rank had entered, and another one of its node not
                        self._session.membership = None
                        self.drop()
            except MovedOn:
                self._session.move_to(self.join_point.elsewhere)
                return False
            except JobOver:
                self._session.leave_job()

    def wait_for_formation(
        self, wanted: Callable[[Formation], bool], prepare: Callable[[Formation], None] = lambda formation: None
    ) -> Formation:
        """Waits until a formation of a wanted kind is complete; all ranks of a node that share a model take the same.

        They may see one that is given up, and the next, at different moments. A rank does not take one before all have
        it: it would not report that it was given up. See `Formations.wait_for`.
        """
        shards, formations = self._session.shards, self._session.need_member().formations
        if shards is None:
            return formations.wait_for(wanted, prepare)
        found = formations.wait_for(wanted, prepare, takes=False)
        while True:
            latest, same = shards.latest(found.number)
            if same:
                formations.take(found.number)  # if it was given up since, its group is cut, and what follows fails
                return found
            if found.number < latest:
                assert found.group is not None
                found.group.cut()
                found = formations.wait_for(partial(_is_from, latest, wanted), prepare, takes=False)

    def enter(self, formation: Formation, number: int | None = None) -> None:
        """Enters this rank's first generation, and takes the state that goes with it.

        ``number`` is this rank, in a group that never changes (plain torchrun); None for a member's own number.
        """
        session = self._session
        me = self._session.need_member().number if number is None else number
        group = formation.group
        assert group is not None
        growing = formation.mode == "grow"
        if growing:
            giver = formation.giver_of(me)
            position, schedule = receive_progress(group.replicas, giver)
            session.move_to(position)
            session.take_schedule(schedule)
            self._options = SetOptions(session.state.optimizers)
            self._receiver = Receiver(group.replicas, giver, session.state)
        else:
            if session.checkpoints is not None and group.replicas.rank == 0:
                session.checkpoints.resume(self._fingerprint)
            meet(session, group.replicas, RankStatus(start=session.start))
            begin_counting(session)
        dividing = group.world_size - (len(formation.joiners) if growing else 0)
        self.take_membership(Membership(me, formation, group, dividing))
        if session.checkpoints is not None:
            session.checkpoints.note_training(self._fingerprint)
        self.transition = formation if growing else None
        if session.course.counted and growing:
            session.course.epoch = session.position.epoch  # it may have come a few epochs later than it looked for
        first_step = session.position.step + growing
        self._activation = Activation(formation, first_step, session.position.step + 1, survivor=False)

    def take_membership(self, membership: Membership) -> None:
        """Takes a membership as this rank's own."""
        self._session.membership = membership
        self._session.pace.renew()
        self._session.together.renew()
        membership.publish(self._session.launch.local_rank)
        if self._session.member is not None:
            mark_log(membership)

    def _send(self, formation: Formation, me: int) -> None:
        """Starts to send this rank's state to those that get it from here."""
        assert formation.group is not None
        receivers = formation.takers_from(me)
        if receivers:
            captured = self._session.state.capture()
            for rank in receivers:
                at = self._session.position, self._session.schedule
                self._senders.append(Sender(formation.group.replicas, rank, captured, *at))
            point("give", self._session.position.step)

    def finish_sending(self) -> None:
        """Waits until nobody reads this rank's state any more: the optimizer may step."""
        senders, self._senders = self._senders, []
        for sender in senders:
            sender.wait()

    def before_step(self, *, ends: bool = False) -> None:
        """Changes to a larger generation, if the ranks have agreed on one: the next step is the joiners' first.

        ``ends``: this rank's script ends the training instead, which it reports in the group of all.
        """
        if self._next is None or self._next.mode != "grow":
            return
        formation, self._next = self._next, None
        if not ends and not self.join_point.is_here(formation):
            raise GroupError("ranks that join wait in another training loop than the one that has come")
        membership = self._session.need_membership("a resize")
        assert formation.group is not None
        self._old_group = membership.group
        self.take_membership(Membership(membership.member, formation, formation.group, membership.world_size))
        self.transition = formation
        first_step = self._session.position.step + 1
        self._activation = Activation(formation, first_step, first_step, survivor=True)
        self._send(formation, membership.member)

    def take_state(self) -> bool:
        """Waits until a joiner's state is complete and puts it in place; returns whether this call did so.

        What the loop body has set in param groups stays: the peer's body has set the same after its state was taken.

        Raises:
            GroupError: If the peer that sends it was lost.
        """
        if self._receiver is None:
            return False
        point("receive", self._session.position.step)
        with self._options.kept():
            return self._receiver.finish()

    def after_step(self) -> None:
        """Ends a joiner's first step, reports a new generation, and leaves or changes to a smaller one if the
        ranks agreed on it.

        Raises:
            SystemExit: With 0, on a rank that leaves.
        """
        session = self._session
        if self.transition is not None:
            self.transition, self._receiver = None, None
            membership = session.need_membership("a resize")
            membership.dividing = membership.world_size
            session.pace.renew()
        self.close_old()
        if self._activation is not None and session.position.step >= self._activation.done_at:
            self.tell_active(session.pace.late())
        if self._next is not None and self._next.mode == "shrink":
            formation, self._next = self._next, None
            self._shrink(formation)

    def _shrink(self, formation: Formation) -> None:
        session = self._session
        member = self._session.need_member()
        if member.number in formation.leavers:
            member.reports.put(messages.Left(session.position.step))
            session.leave_job()
        session.writes.met()  # also where rank 0 leaves: it comes here after what the script had it write
        membership = session.need_membership("a resize")
        assert formation.group is not None
        membership.group.close()
        self.take_membership(Membership(membership.member, formation, formation.group, formation.group.world_size))
        step = session.position.step
        self._activation = Activation(formation, step, step + 1, survivor=True)

    def tell_active(self, late: float = 0.0) -> None:
        """Reports that a new generation works, if that is still due; for ``late`` see `StepTimer.late`."""
        if self._activation is None:
            return
        told, self._activation = self._activation, None
        session = self._session
        pause = max(told.stood, late) if told.survivor else 0.0
        at = session.position
        session.report(
            messages.Active(told.formation.number, told.first_step, at.step, at.epoch, round(pause, 4), at.phase)
        )
        self.check_due = session.membership is not None and session.membership.world_size > 1

    def tell_recovered(self) -> None:
        """Reports a generation after a failure that is known to work without a step."""
        if self._activation is not None and self._activation.stood:
            self.tell_active()

    def activate(self, formation: Formation, first_step: int, done_at: int, stood: float) -> None:
        """Notes the report on a generation after a failure (see `Activation`)."""
        self._activation = Activation(formation, first_step, done_at, survivor=True, stood=stood)

    def drop(self) -> bool:
        """Drops all that was under way after a failure; returns whether this rank was in the step in which it joins."""
        self._drop_handovers()
        joiner, self._receiver, self.transition = self._receiver is not None, None, None
        self._next = self._activation = None
        return joiner

    def close_old(self) -> None:
        """Closes the group before the one that trains now, and gives up those that were cut."""
        release_cut()
        if self._old_group is not None:
            self._old_group.close()
            self._old_group = None

    def _drop_handovers(self) -> None:
        for sender in self._senders:
            sender.abandon()
        self._senders = []

    def introduction(self) -> Introduction:
        """Returns where the training stands here."""
        at, sums = self._session.position, self._session.sums.lasting()
        return Introduction(os.getpid(), at.step, at.epoch, at.samples, phase=at.phase, sums=sums)


def _is_from(first: int, wanted: Callable[[Formation], bool], formation: Formation) -> bool:
    return formation.number >= first and wanted(formation)
