"""The work of `job.backward`: adds a micro-batch's gradient, and reduces the step's over all ranks."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable

import torch

from elastic_launcher.torch import rng
from elastic_launcher.torch.collectives.consensus import Agreement, Signals
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import BACKWARD, BREAK, STOP, Operation
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.data.micro_batches import MicroBatch
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.gradients.agreement import abstain
from elastic_launcher.torch.gradients.buckets import Slot
from elastic_launcher.torch.membership.reconcile import At, NextAction
from elastic_launcher.torch.reconfigure.divergence import (
    Check,
    Differences,
    compare,
    name_different_acts,
    name_positions,
    warn_of,
)
from elastic_launcher.torch.reconfigure.load_plan import LoadPlan
from elastic_launcher.torch.reconfigure.recovery import Recovery
from elastic_launcher.torch.reconfigure.resize import Resizer
from elastic_launcher.torch.session import LEAVE_OUT, Session
from elastic_launcher.torch.state.tensors import same_objects
from elastic_launcher.torch.step.autoscale import propose
from elastic_launcher.torch.step.memory import advice, free_memory, lower_limit
from elastic_launcher.torch.step.prepare import check_replaced

NOT_FINITE = (
    "the loss of a micro-batch that does not count is not finite. With a sharded model its backward pass runs all the "
    "same, and would make the gradient of the whole node nan. Divide by at least 1 where a mean is over tokens, and "
    "give job.backward their number as weight"
)

TWO_CALLS = (
    "job.backward was called twice for one micro-batch, in a job with deterministic=: what an optimizer changes "
    "between the two depends on how many micro-batches a rank has. Add the losses and call it once, or leave "
    "deterministic= out"
)


class Backward:
    """Ends the steps of one job in one process."""

    def __init__(self, session: Session, resizer: Resizer, recovery: Recovery, plan: LoadPlan) -> None:
        self._session = session
        self._resizer = resizer
        self._recovery = recovery
        self._plan = plan
        self._check: Check | None = None
        self._differing: set[str] = set()  # what was warned of
        self._still: dict[str, int] | None = None  # before this process's first step
        self._parameters: list[torch.Tensor] = []  # when the last step began

    def begin_step(self) -> None:
        """Restarts a step, without any gradient."""
        check_replaced(self._session)
        self._session.buffers.begin_step()
        self._session.reducer.begin_step()
        if self._session.noise is not None:
            self._session.noise.step = self._session.position.step
        self._session.held = set()
        if self._still is None:
            self._still = self._session.buffers.still()
        self._compare_new_parts()
        left_open = self._check is not None  # in a step that broke off: what it was made of may have changed since
        if self._resizer.check_due or left_open or self._begins_epoch():
            self._check, self._resizer.check_due = Check(self._session.state, self._session.buffers), False

    def compare_at_end(self, group: Group) -> None:
        """Warns of what differs between ranks after the last step: the training is over, and its result is there."""
        check = Check(self._session.state, self._session.buffers)
        combined = check.combined(self._differing).to_bytes(2, "big")
        if len(set(group.all_gather_bytes(combined))) > 1:
            found = compare(group, check)
            if group.rank == 0 and found.error:
                warnings.warn(found.error, stacklevel=2)
            self._warn_once(group, found)

    def _begins_epoch(self) -> bool:
        """Whether the ranks compare what the epoch before has left."""
        at = self._session.position
        if not at.step or at.step_in_epoch or self._resizer.joining:
            return False
        return self._session.need_membership("a step").world_size > 1

    def _compare_new_parts(self) -> None:
        """Has the ranks compare their parameters where the script has replaced some of them since the last step."""
        parameters, before = self._session.parameters(), self._parameters
        self._parameters = parameters
        if before and not self._resizer.joining and not same_objects(parameters, before):
            self._resizer.check_due |= self._session.need_membership("a step").world_size > 1

    def add(
        self,
        loss: torch.Tensor | None,
        weight: float | None,
        only: list[torch.Tensor] | None,
        owner: int,
        retain_graph: bool = False,
    ) -> None:
        """Adds a micro-batch's gradient, or none, and, when it completes the step, reduces (see `Job.backward`)."""
        session = self._session
        micro = session.micro
        if micro is None:
            raise RuntimeError("job.backward() was called outside the training loop (for batch in loader: ...)")
        if micro.dropped:
            return
        if micro.broke:
            self._leave_out(loss, only, micro)
            return
        call, micro.calls = micro.calls, micro.calls + 1
        if call and session.virtual_ranks:
            raise RuntimeError(TWO_CALLS)
        if micro.synced and session.latest.ended:
            self._show_gradients(None)  # as on peers, which have done this step again from here on
        micro.synced = False
        session.reducer.retain_graph = retain_graph
        if micro.rehearsal:
            micro.owners.append(owner)
            if loss is not None and loss.requires_grad:
                try:
                    session.reducer.rehearse(loss, call, only, owner)
                except torch.OutOfMemoryError as error:
                    self.redo_smaller(error, loss)
            return
        if call and micro.last and call == session.position.calls:
            session.hold()
        try:
            self._accumulate(loss, weight, call, only, owner, micro)
            if session.ordered is not None and micro.part is not None and micro.part.last:
                slot = session.ordered.slot(call, only, owner)
                session.ordered.end_part(slot, micro.part.virtual_rank, micro.part.samples / micro.count)
            if micro.last:
                self._reduce(call, only, owner, micro)
        except GroupError as error:
            micro.dropped, micro.error, micro.synced = True, error, False
            session.lose_gradients()
            if micro.last and session.member is not None and not self._resizer.joining:
                # here, since what follows in the script may sum over ranks too
                self._find_back(error, call, only, micro)
        except torch.OutOfMemoryError as error:
            if not micro.broke:
                raise  # not in its backward pass: peers may be waiting, or the optimizer may have stepped
            self.redo_smaller(error, loss, only)

    def redo_smaller(
        self, error: BaseException, loss: torch.Tensor | None = None, only: list[torch.Tensor] | None = None
    ) -> None:
        """Has this rank do its part of the step again in smaller micro-batches: the present one is too large for its
        memory.

        Raises:
            OutOfMemoryError: The same, if there are none, or the ranks can't do this step again.
        """
        session, micro = self._session, self._session.micro
        assert micro is not None
        call = max(0, micro.calls - bool(micro.broke))
        alone = session.membership is None or session.membership.world_size == 1
        reduced = not alone and (session.reducer.has_begun or (micro.last and call > session.position.calls))
        if reduced and session.member is None:
            error.add_note("ranks of plain torchrun can't do a step again whose gradient is being reduced")
            raise error
        searches = micro.rehearsal and micro.fits > 0
        if not searches and not lower_limit(session, micro):
            error.add_note(advice(session))
            raise error
        session.lose_gradients()
        free_memory(session, error, loss)
        micro.calls = max(1, micro.calls)  # as after job.backward
        if micro.rehearsal:
            micro.dropped = True
        else:
            self._redo(reduced, "a micro-batch was too large for memory", call, only, micro)

    def _leave_out(self, loss: torch.Tensor | None, only: list[torch.Tensor] | None, micro: MicroBatch) -> None:
        """Leaves a micro-batch out whose backward pass broke off: what that had added can't be taken back, so this
        rank does its part of the step again, without it.

        Raises:
            RuntimeError: If the script wants something else, or earlier calls of it are reduced and not applied.
        """
        session, call = self._session, micro.calls - 1
        if loss is not None:
            raise RuntimeError(f"{micro.broke}; {LEAVE_OUT}")
        if micro.last and call != session.position.calls:
            raise RuntimeError(f"{micro.broke}, after another one of its micro-batch was reduced: it can't be left out")
        session.left_out.add(micro.piece)
        session.lose_gradients()
        self._redo(session.reducer.has_begun, micro.broke, call, only, micro)

    def _redo(self, reduced: bool, why: str, call: int, only: list[torch.Tensor] | None, micro: MicroBatch) -> None:
        """Has this rank do its part of the step again, and all ranks where some of it is ``reduced``."""
        micro.dropped = True
        if not reduced:
            micro.recovered = True
            self._session.buffers.undo_step()
            return
        micro.error = error = GroupError(f"{why}, while its gradient was being reduced")
        if self._session.member is not None:
            self._find_back(error, call, only, micro)

    def _find_back(self, error: GroupError, call: int, only: list[torch.Tensor] | None, micro: MicroBatch) -> None:
        """Finds the peers again after a reduction that broke off: they may have completed it."""
        session = self._session
        session.buffers.undo_step()
        session.reducer.renew()
        way = self._recovery.recover(error, At.STEP)
        micro.error = None
        if way.todo is NextAction.ADOPT:
            session.apply_calls(call + 1)
            micro.dropped, micro.synced = False, True
            self._draw_alike()
            self._show_gradients(only, zeros=True)
        micro.recovered = way.todo is NextAction.AGAIN

    def _show_gradients(self, only: list[torch.Tensor] | None, *, zeros: bool = False) -> None:
        """Gives parameters zeros or no gradients, after a reduction that was taken over: what a script reads is there,
        and an optimizer that acted does nothing.
        """
        for parameter in self._session.parameters() if only is None else only:
            parameter.grad = torch.zeros_like(parameter) if zeros and parameter.requires_grad else None

    def exchange(self, *, stop: bool = False, left_loop: bool = False) -> None:
        """Takes part in the reduction of the next step without samples, to report to the peers that there is none."""
        session = self._session
        group, step = session.need_membership("the end of the training").group, session.position.step
        session.reducer.begin_step()
        self._check = None
        signals = self._signals(stop=stop, left_loop=left_loop)
        operation = Operation(STOP if stop else BREAK)
        parts = session.reducer.parts
        with session.agreed():
            with session.pace.waiting(operation.words(step), meets=BACKWARD):
                agreement = session.together.leave(
                    group, operation, step, lambda wire: abstain(wire, group, signals, session.device, parts)
                )
                self._resizer.finish_sending()
            self._check_agreement(agreement, signals)
        self._accept(agreement)

    def _accumulate(
        self,
        loss: torch.Tensor | None,
        weight: float | None,
        call: int,
        only: list[torch.Tensor] | None,
        owner: int,
        micro: MicroBatch,
    ) -> None:
        session = self._session
        membership = session.need_membership("job.backward")
        point("micro-batch", session.position.step)
        counted = 0.0 if micro.samples == 0 else float(micro.samples if weight is None else weight)
        sharded = session.shards is not None  # its ranks run all backward passes together
        if not sharded:
            membership.group.check()
        if loss is None or (not sharded and (counted == 0 or micro.piece in session.left_out)):
            session.reducer.check_clear()  # what is reduced is added to what there is
            if micro.samples:
                session.buffers.undo_micro_batch()
            elif not self._resizer.joining:  # a joiner's are being replaced by its peer's
                session.buffers.undo_step()
            return
        if counted == 0 and not self._resizer.joining:
            session.buffers.undo_micro_batch()
            if not bool(loss.isfinite()):
                raise ValueError(NOT_FINITE)
        slot = session.reducer.slot(call, only, owner)
        completes = micro.last and call >= session.position.calls
        expected = (
            not sharded
            and completes
            and session.ordered is None
            and session.together.expects(self._operation(call, owner, slot))
        )
        try:
            session.reducer.accumulate(
                slot,
                loss,
                scale=counted / micro.count,
                weight=counted,
                logged=getattr(loss, "elastic_unscaled", loss),
                samples=micro.samples,
                group=membership.group if expected else None,
                part=membership.world_size == 1 and not micro.last,
                counts=membership.rank < membership.dividing,
            )
        except GroupError:
            raise
        except Exception as error:
            micro.broke = f"job.backward broke off ({type(error).__name__})"
            raise

    def _reduce(self, call: int, only: list[torch.Tensor] | None, owner: int, micro: MicroBatch) -> None:
        session = self._session
        membership = session.need_membership("job.backward")
        if call < session.position.calls:  # this part of the step was taken before the step had to be done again
            if call == session.latest.missed:  # by peers: hooks, and the script, have to do here what is their own
                session.latest.missed = None
                micro.synced = True
                self._show_gradients(only, zeros=True)
            return
        with session.agreed():
            if self._resizer.take_state():
                session.buffers.begin_step()  # the step's beginning is what the peer sent, not what was here before
                session.reducer.begin_step()  # parameters may have been added or frozen before this rank came
                self._still = {}  # what the peer sent is no forward pass's doing
            if self._still:
                session.buffers.refuse_changed(self._still)
                self._still = {}
            slot = session.reducer.slot(call, only, owner)
            share_samples = sum(one.samples for one in session.shares.of(micro.count, membership.division).values())
            signals = self._signals(first=call == 0)
            operation, step = self._operation(call, owner, slot), session.position.step
            point("reduction", step)
            with session.pace.waiting(operation.words(step), meets=BACKWARD):
                session.begin(operation)
                agreement = session.reducer.reduce(
                    slot, membership.group, signals, samples=share_samples, count=micro.count
                )
                session.together.confirm(membership.group, agreement, operation, step)
                self._resizer.finish_sending()
            point("reduced", session.position.step)
            if session.device.type == "cuda":
                torch.cuda.synchronize(session.device)  # an aborted NCCL reduction shows only when its end is seen here
            self._check_agreement(agreement, signals)
        if not self._accept(agreement):
            micro.dropped = True
            return
        session.reduced()
        if session.noise is not None:
            session.noise.commit()
        session.loss = agreement.loss if call == 0 else session.loss + agreement.loss
        self._draw_alike()
        micro.synced = True
        point("step", session.position.step)

    def _draw_alike(self) -> None:
        """Has the optimizer and the script draw the same from here on, on all ranks of a deterministic job."""
        session = self._session
        if session.virtual_ranks:
            seed = rng.step_seed(session.seed, session.position.step, session.virtual_ranks)
            rng.seed_all(seed, session.device)

    def _operation(self, call: int, owner: int, slot: Slot) -> Operation:
        return Operation(BACKWARD, call, owner, self._session.reducer.wire(slot))

    def _signals(self, *, first: bool = True, stop: bool = False, left_loop: bool = False) -> Signals:
        session = self._session
        steps = first and not stop and not left_loop
        ready = self._ready() if steps else None
        # a change of the batch and of the ranks never come together: where the next loop begins would be unknown
        batch_size = propose(session) if steps and ready is None and not self._resizer.joining else 0
        check = self._check.combined(self._differing) if self._check is not None else 0
        save = halt = False
        if session.checkpoints is not None:
            save, halt = session.checkpoints.wishes()
        acted = session.latest.calls_in_words()
        acts = (zlib.crc32(acted.encode()) & 0xFFFF or 1) if acted else 0
        return Signals(
            session.position.mark(), ready, stop, left_loop, save, halt, check, acts=acts, batch_size=batch_size
        )

    def _ready(self) -> int | None:
        data = self._session.data
        formation = self._resizer.ready(lambda: data is None or self._plan.is_loaded(data))
        return formation.number if formation is not None else None

    def _check_agreement(self, agreement: Agreement, signals: Signals) -> None:
        """Checks what the ranks agreed on, and takes the formation to which they change.

        Raises:
            RuntimeError: If ranks are at different steps, have stepped different optimizers, differ in their
                parameters, or one has left the loop alone.
            GroupError: If that formation was given up.
        """
        session = self._session
        group = session.need_membership("a step").group
        if not agreement.same_position:
            raise RuntimeError(name_positions(group, session.position))
        doubt = session.checkpoints.doubt if session.checkpoints is not None else str
        if not agreement.same_acts:
            raise RuntimeError(
                name_different_acts(group, session.latest.calls_in_words(), session.position.step) + doubt()
            )
        if self._check is not None and not agreement.same_check:
            self._refuse_differences(group, self._check, doubt)
        if agreement.stop:
            return
        if agreement.left_loop:
            if agreement.left_loop != group.world_size:
                raise RuntimeError(name_positions(group, session.position, left_loop=signals.left_loop))
            return
        halts = session.checkpoints is not None and agreement.halt  # the job stops after this step
        if agreement.formation is not None and not halts:
            self._resizer.agree(agreement.formation)

    def _accept(self, agreement: Agreement) -> bool:
        """Acts on what the ranks agreed on; returns whether the step counts."""
        session = self._session
        self._check = None
        if agreement.stop:
            session.end_training()
        elif not agreement.left_loop and session.checkpoints is not None:
            session.checkpoints.agree(agreement)
        dropped = bool(agreement.stop or agreement.left_loop)
        if dropped:
            session.reduced(NextAction.STOPPED if agreement.stop else NextAction.LEFT)
            for parameter in session.parameters():
                parameter.grad = None
        elif agreement.batch_size:
            session.change_batch(agreement.batch_size, session.position.step + 1)
        return not dropped

    def _refuse_differences(self, group: Group, check: Check, doubt: Callable[[], str]) -> None:
        """Ends the job where parameters or options of param groups differ, and warns once where anything else does.

        Raises:
            RuntimeError: That names them.
            GroupError: If a peer was lost.
        """
        found = compare(group, check)
        if found.error:
            raise RuntimeError(found.error + doubt())
        self._warn_once(group, found)

    def _warn_once(self, group: Group, found: Differences) -> None:
        """Warns on rank 0 of what the script may mean to differ."""
        if group.rank == 0:
            warn_of(found, self._differing)
        self._differing |= found.names()
