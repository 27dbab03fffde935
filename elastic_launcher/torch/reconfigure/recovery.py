"""Recovers this rank after a broken collective operation: finds its peers again in a new group.

Whatever the operation is, the ranks that are left form a new group, exchange their progress (`standing`), and
those that are behind take the state of the most advanced; then each goes on with its own script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from elastic_launcher.control.messages import StepFailed, StepRedone
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import END, Operation
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.membership.connection import leave
from elastic_launcher.torch.membership.formations import JobOver
from elastic_launcher.torch.membership.latest import Latest
from elastic_launcher.torch.membership.membership import Division, Formation, Membership
from elastic_launcher.torch.membership.reconcile import At, NextAction, RankStatus, RecoveryPlan
from elastic_launcher.torch.reconfigure.load_plan import LoadPlan
from elastic_launcher.torch.reconfigure.resize import Resizer
from elastic_launcher.torch.reconfigure.state_sync import meet
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.state.course import decode_sums, encode_sums

Sums = dict[str, torch.Tensor]
FORMING = "in the forming of another generation"
WRITING = "in the writing of what a lost rank 0 may have left"
AFTER_FAILURE = ("recover", "start")
"""Modes of formations after a failure."""


class Recovery:
    """Finds a rank a membership after a failure."""

    def __init__(self, session: Session, resizer: Resizer, plan: LoadPlan) -> None:
        self._session = session
        self._resizer = resizer
        self._plan = plan
        self._adopted: Any = None

    def recover(self, error: Exception, at: At) -> RecoveryPlan:
        """Waits until this rank, after an error in an operation, has peers again, and the same state as they.

        Raises:
            GroupError: If there is nobody who could form another generation.
            SystemExit: With 0, if the job ends without needing this rank, or stops here.
        """
        session, began = self._session, time.monotonic()
        membership = session.need_membership("a step")
        membership.group.cut()
        joiner = self._resizer.drop()
        member = session.member
        if member is None:
            raise error
        if joiner:
            session.membership = None
            member.formations.give_up(membership.formation, error)
            self._resizer.admit({})
            return RecoveryPlan(NextAction.AGAIN, 0, takes=True)
        if session.checkpoints is not None and session.any_on_node(member.orders.drops_step):
            session.checkpoints.halt(whole=not (session.torn or session.position.calls or self._in_body(at)))
        while True:
            formation = session.need_membership("a step").formation.number
            member.reports.put(StepFailed(formation, session.position.step, str(error)))
            try:
                with session.pace.waiting(FORMING, meets=None):  # for peers, which may be frozen or stuck
                    found = self._resizer.wait_for_formation(
                        lambda f: f.mode in AFTER_FAILURE and f.group is not None, self._expect
                    )
            except JobOver:
                session.leave_job()
            self._resizer.close_old()
            assert found.group is not None
            self._resizer.take_membership(Membership(member.number, found, found.group, found.group.world_size))
            try:
                with session.pace.waiting(FORMING, meets=None):
                    way = self._meet(found.group, at)
            except GroupError as broken:
                found.group.cut()
                error = broken
                continue
            except LookupError as nobody:
                leave(str(nobody))
            first_step = session.position.step + (way.todo is NextAction.ADOPT or self._in_body(at))
            self._resizer.activate(found, first_step, first_step + 1, time.monotonic() - began)
            if way.todo in (NextAction.ADOPT, NextAction.RESULT):  # a peer has completed an operation of all ranks
                session.writes.met()
            elif found.group.rank == 0:
                with session.pace.aside(WRITING):
                    session.writes.make_up()
            return way

    def _expect(self, coming: Formation) -> None:
        """Has the workers load what this rank does again, while its group is formed."""
        if coming.mode in AFTER_FAILURE:
            self._expect_left(coming.members)

    def expect_early(self, left: Sequence[int]) -> None:
        """Does so in the orders' thread, where this rank has all that it needs of the step, and has not reduced it."""
        micro = self._session.micro
        if micro is not None and micro.last and not micro.synced:
            self._expect_left(left)

    def _expect_left(self, left: Sequence[int]) -> None:
        """Has the workers load what this rank does again with those that are left."""
        member = self._session.member
        if member is not None and member.number in left:
            self._plan.expect(Division(left.index(member.number), len(left)))

    def sums(
        self,
        what: str,
        compute: Callable[[Membership], Sums],
        describe: Callable[[Sums], str],
        reduce: Callable[[Group, Sums], Sums],
    ) -> Sums:
        """Sums over all ranks, once more with those that are left when one is lost.

        Args:
            what: The script called.
            compute: Returns this rank's own part.
            describe: Says what it sums, the same on all ranks.
            reduce: Reduces it over a group.
        """
        session = self._session
        session.check_unlocked(what)
        while True:
            membership, own = session.need_membership(what), dict[str, torch.Tensor]()
            where = Operation(what).words(session.step)
            try:
                with session.pace.aside(where):
                    own = compute(membership)
                if session.micro is not None and session.micro.dropped and session.micro.error is None:
                    return own  # no peer comes: the step is done again, or the training ends
                point("sums", session.position.step)
                operation = Operation(what, content=describe(own))
                with session.agreed():
                    with session.pace.waiting(where):
                        session.begin(operation)
                        totals = reduce(membership.group, own)
                    point("summed", session.position.step)
            except GroupError as error:
                todo = self.recover(error, At.SUMS).todo
                if todo is NextAction.DROP:
                    return own  # the step is done again, and with it the script's own statements
                if todo is not NextAction.RESULT:
                    continue
                totals = self._adopted
            else:
                self._resizer.tell_recovered()
            session.summed({name: value.clone() for name, value in totals.items()})
            return dict(totals)

    def confirm_end(self, compare: Callable[[Group], None]) -> None:
        """Waits until all ranks have completed the last step: after that none of them needs another one's state.

        ``compare`` compares what they have trained.
        """
        session = self._session
        while session.membership is not None and session.membership.world_size > 1:
            try:
                point("end", session.position.step)
                operation = Operation(END)
                with session.pace.waiting(operation.words(session.position.step)), session.agreed():
                    session.begin(operation)
                    compare(session.need_membership(END).group)
                session.writes.met()
            except GroupError as error:
                self.recover(error, At.END)
                continue
            return

    def _meet(self, group: Group, at: At) -> RecoveryPlan:
        session = self._session
        latest = session.latest
        mine = RankStatus(
            at=at,
            operations=session.position.operations,
            step=session.position.step,
            torn=session.torn,
            in_body=self._in_body(at),
            acted=latest.acted,
            outcome=latest.outcome,
            loss=session.loss,
            result=encode_sums(latest.result),
            lost=sorted(session.lost),
        )
        calls = session.position.calls
        way, source = meet(session, group.replicas, mine)
        if way.todo is NextAction.RESULT:
            self._adopted = decode_sums(source.result)
        elif way.todo is NextAction.ADOPT:
            session.adopted(dict(source.acted), ended=not source.in_body)
            session.loss = source.loss
        elif way.todo is NextAction.AGAIN and way.takes and mine.operations < source.operations:
            session.loss = source.loss
            if mine.operations >= 0 and calls < session.position.calls:
                session.missed(dict(source.acted))
            else:
                session.latest = Latest(acted=dict(source.acted))  # since a reduction in which this rank took no part
        elif way.todo in (NextAction.STOPPED, NextAction.LEFT):
            session.reduced(way.todo)
            if way.todo is NextAction.STOPPED:
                session.end_training()
        elif way.todo is NextAction.DROP:
            session.drop_step()
        elif at is At.STEP and group.rank == 0:
            session.report(StepRedone(session.position.step))
        return way

    def _in_body(self, at: At) -> bool:
        micro = self._session.micro
        return at is At.SUMS and micro is not None and micro.synced
