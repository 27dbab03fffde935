"""How this rank comes into a generation, changes to the next one between two steps, and finds back after a failed step.

A new group is built beside the training (`member`). Once all ranks have said, inside one gradient reduction, that
theirs stands, they change to it at the same boundary. Those that leave go at once. Joiners get their state during the
next step, out of the live memory of a peer, take part in that step's reduction without samples, and then apply the
same optimizer step as all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic_launcher.torch.group import Group, GroupError
from elastic_launcher.torch.handover import Receiver, Sender, receive_position
from elastic_launcher.torch.member import JobOver, Member
from elastic_launcher.torch.place import Formation, Place, mark_log
from elastic_launcher.torch.session import Session

LOAD_SECONDS = 2.0  # how long a change waits for loader workers


@dataclass(frozen=True)
class Activation:
    """What is still to be told of a generation: that its first step is done."""

    formation: Formation
    first_step: int
    survivor: bool


class Resizer:
    """Changes this rank's place.

    Args:
        session: The job.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next: Formation | None = None
        self._activation: Activation | None = None
        self._senders: list[Sender] = []
        self._receiver: Receiver | None = None
        self._old_group: Group | None = None
        self.check_due = False
        self.transition: Formation | None = None
        if session.member is not None:
            session.member.before_growing = self._reserve

    @property
    def joining(self) -> bool:
        """Whether this rank is in the step during which it gets its state."""
        return self._receiver is not None

    def standing(self) -> Formation | None:
        """Returns the formation whose group stands and to which this rank could change between two steps, if any."""
        member = self._session.member
        formation = member.ready() if member is not None and self.transition is None else None
        return formation if formation is not None and formation.mode in ("grow", "shrink") else None

    def ready(self, is_loaded: Callable[[], bool]) -> Formation | None:
        """Returns the formation to which this rank could change after the step that runs now.

        Args:
            is_loaded: Says whether workers have loaded what this rank would need first.
        """
        formation = self.standing()
        if formation is None or formation.group is None or is_loaded():
            return formation
        return formation if time.monotonic() - self._member().ready_since() > LOAD_SECONDS else None

    def agree(self, number: int) -> None:
        """Notes that all ranks are ready for a formation: the change comes at the next boundary.

        Raises:
            GroupError: If the coordinator has given it up in the meantime.
        """
        member = self._session.member
        assert member is not None
        self._next = member.take(number)
        if self._next is None:
            raise GroupError(f"formation {number} was given up after the ranks had agreed on it")

    def admit(self, fingerprint: dict[str, Any]) -> None:
        """Waits until this rank is in a generation.

        Args:
            fingerprint: What must be the same on all ranks.

        Raises:
            SystemExit: With 0, if the job ends without needing it.
        """
        member = self._member()
        member.report("warm", fingerprint=fingerprint)
        while True:
            try:
                formation = member.wait_for(lambda f: member.number in f.members and f.group is not None)
                try:
                    self._enter(formation)
                    return
                except GroupError as error:
                    member.check_over()
                    member.give_up(formation, error)
            except JobOver as over:
                self._session.over = True
                raise SystemExit(0) from over

    def start(self, formation: Formation, number: int) -> None:
        """Takes the place of rank ``number`` in a group that never changes (plain torchrun)."""
        self._enter(formation, number)

    def _enter(self, formation: Formation, number: int | None = None) -> None:
        """Takes this rank's place in its first generation, and the state that goes with it."""
        session = self._session
        me = self._member().number if number is None else number
        group = formation.group
        assert group is not None
        source = formation.sources.get(me)
        growing = formation.mode == "grow"
        if source is not None:
            session.position = receive_position(group, formation.rank_of(source))
            receiver = Receiver(group, formation.rank_of(source), session.state)
            if growing:
                self._receiver = receiver
            else:
                receiver.finish()
        elif not growing:
            self._send(formation, me)
            self._finish_sending()
        dividing = group.world_size - (len(formation.joiners) if growing else 0)
        self._take_place(Place(me, formation, group, dividing))
        self.transition = formation if growing else None
        self._activation = Activation(formation, session.position.step + growing, survivor=False)

    def _take_place(self, place: Place) -> None:
        self._session.place = place
        place.publish(self._session.launch.local_rank)
        if self._session.member is not None:
            mark_log(place)

    def _send(self, formation: Formation, me: int) -> None:
        """Starts to send this rank's state to those that get it from here."""
        assert formation.group is not None
        receivers = [receiver for receiver, source in formation.sources.items() if source == me]
        if receivers:
            captured = self._session.state.capture()
            for receiver in receivers:
                rank = formation.rank_of(receiver)
                self._senders.append(Sender(formation.group, rank, captured, self._session.position))

    def _finish_sending(self) -> None:
        senders, self._senders = self._senders, []
        for sender in senders:
            sender.wait()

    def _reserve(self, formation: Formation) -> None:
        """Has joiners make the memory ready for what they will get, beside the training: new memory is slow at first.

        Raises:
            GroupError: If a peer was lost, or the formation was given up.
        """
        group, state = formation.group, self._session.state
        assert group is not None
        outline = json.dumps(state.outline()).encode() if group.rank == 0 else b""
        wanted = group.all_gather_bytes(outline)[0]
        if self._member().number in formation.joiners:
            state.reserve(json.loads(wanted))
        group.all_gather_bytes(b"")  # all joiners have it

    def before_step(self) -> None:
        """Changes to a larger generation, if the ranks have agreed on one: the next step is the joiners' first."""
        if self._next is None or self._next.mode != "grow":
            return
        formation, self._next = self._next, None
        place = self._session.need_place("a resize")
        assert formation.group is not None
        self._old_group = place.group
        self._take_place(Place(place.member, formation, formation.group, place.world_size))
        self.transition = formation
        self._activation = Activation(formation, self._session.position.step + 1, survivor=True)
        self._send(formation, place.member)

    def take_state(self) -> bool:
        """Waits until a joiner's state is complete and puts it in place; returns whether this call did so.

        Raises:
            GroupError: If the peer that sends it was lost.
        """
        return self._receiver is not None and self._receiver.finish()

    def complete_reduction(self) -> None:
        """Waits until nobody reads this rank's state any more: the optimizer may step."""
        self._finish_sending()

    def after_step(self, gap: float) -> None:
        """Ends a joiner's first step, tells about a new generation, and leaves or changes to a smaller one if the
        ranks agreed on it.

        Args:
            gap: Seconds since the step before was completed.

        Raises:
            SystemExit: With 0, on a rank that leaves.
        """
        session = self._session
        if self.transition is not None:
            self.transition, self._receiver = None, None
            place = session.need_place("a resize")
            place.dividing = place.world_size
        if self._old_group is not None:
            self._old_group.close()
            self._old_group = None
        self._tell_active(gap)
        if self._next is not None and self._next.mode == "shrink":
            formation, self._next = self._next, None
            self._shrink(formation)

    def _shrink(self, formation: Formation) -> None:
        session = self._session
        member = self._member()
        if member.number in formation.leavers:
            member.report("left", step=session.position.step)
            session.over = True
            raise SystemExit(0)
        place = session.need_place("a resize")
        assert formation.group is not None
        place.group.close()
        self._take_place(Place(place.member, formation, formation.group, formation.group.world_size))
        self._activation = Activation(formation, session.position.step, survivor=True)

    def _tell_active(self, gap: float) -> None:
        if self._activation is None:
            return
        told, self._activation = self._activation, None
        session = self._session
        pause = max(0.0, gap - session.pace.usual()) if told.survivor else 0.0
        session.report(
            "active",
            formation=told.formation.number,
            first_step=told.first_step,
            step=session.position.step,
            epoch=session.position.epoch,
            pause_seconds=round(pause, 4),
        )
        self.check_due = session.place is not None and session.place.world_size > 1

    def finish(self) -> None:
        """Tells what is still to be told when the training is over."""
        self._tell_active(0.0)

    def recover(self, error: Exception) -> bool:
        """Finds this rank a generation after a failed step.

        Args:
            error: What failed.

        Returns:
            Whether the same step is to be done again; False if this rank took the state of one that had completed it.

        Raises:
            GroupError: If there is nobody who could form another generation.
            SystemExit: With 0, if the job ends without needing this rank.
        """
        session = self._session
        place = session.need_place("a resize")
        place.group.cut()
        self._drop_handovers()
        self._next = None
        joiner, self._receiver, self.transition = self._receiver is not None, None, None
        member = session.member
        if member is None:
            raise error
        if joiner:
            self._activation = None
            session.place = None
            member.give_up(place.formation, error)
            self.admit({})
            return True
        self._activation = None
        member.report("step_failed", formation=place.formation.number, step=session.position.step, error=str(error))
        try:
            formation = member.wait_for(lambda f: f.mode == "recover")
        except JobOver as over:
            session.over = True
            raise SystemExit(0) from over
        if self._old_group is not None:
            self._old_group.close()
            self._old_group = None
        return self._resume(formation)

    def _resume(self, formation: Formation) -> bool:
        session = self._session
        me = self._member().number
        group = formation.group
        assert group is not None
        self._take_place(Place(me, formation, group, group.world_size))
        source = formation.sources.get(me)
        if source is not None:
            session.position = receive_position(group, formation.rank_of(source))
            Receiver(group, formation.rank_of(source), session.state).finish()
        else:
            self._send(formation, me)
            self._finish_sending()
        self._activation = Activation(formation, session.position.step, survivor=True)
        if source is None and group.rank == 0:
            session.report("step_redone", step=session.position.step)
        return source is None

    def _drop_handovers(self) -> None:
        for sender in self._senders:
            sender.abandon()
        self._senders = []

    def _member(self) -> Member:
        assert self._session.member is not None
        return self._session.member
