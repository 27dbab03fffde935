"""The step engine: optimizer steps by explicit calls, for any driver of a training loop.

    if engine.begin_loop(data):
        for micro in engine.rehearse():
            work_on(micro)
        if engine.admit():
            while engine.begin_step():
                for micro in engine.micro_batches():
                    work_on(micro)
                engine.end_step()
            engine.end_loop()
        engine.close_loop()

`work_on` calls `begin_micro_batch`, `backward`, the optimizer and `end_micro_batch`. `begin_step` and `end_step` do all
that is between two steps: reconfigurations, checkpoints, the end of the training on all ranks. A step that a lost peer
spoiled is redone with the ranks that are left, and counts once.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator

import torch

from elastic_launcher.torch import rng
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.data.micro_batches import MicroBatch, Part, Piece, parts_of, pieces_of
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.membership.member import Hooks
from elastic_launcher.torch.membership.membership import Division
from elastic_launcher.torch.membership.reconcile import At, NextAction
from elastic_launcher.torch.reconfigure.fingerprint import fingerprint
from elastic_launcher.torch.reconfigure.load_plan import LoadPlan
from elastic_launcher.torch.reconfigure.recovery import Recovery
from elastic_launcher.torch.reconfigure.resize import Resizer
from elastic_launcher.torch.reconfigure.start import begin_at_start
from elastic_launcher.torch.session import LEAVE_OUT, Session
from elastic_launcher.torch.state.codec import encode
from elastic_launcher.torch.statistical_epochs import count_rest, count_step, is_over
from elastic_launcher.torch.step.autoscale import announce, check_loop, keep_bounds, note_step, report_changes
from elastic_launcher.torch.step.backward import Backward
from elastic_launcher.torch.step.phases import Phases
from elastic_launcher.torch.step.prepare import refuse_sharded_late, warn_of_unprepared_schedulers
from elastic_launcher.torch.step.progress import Progress
from elastic_launcher.torch.step.rehearsal import rehearse
from elastic_launcher.torch.step.step_times import TimeReports


class StepEngine:
    """Runs the optimizer steps of one job in one process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.phases = Phases(session)
        self.progress = Progress(session)
        self._times = TimeReports(session)
        self._resizer = Resizer(session)
        self._plan = LoadPlan(session, self._resizer)
        self.recovery = Recovery(session, self._resizer, self._plan)
        self._backward = Backward(session, self._resizer, self.recovery, self._plan)
        self._pieces: list[Piece] = []  # of this rank in the step that runs
        self._sizes: tuple[int, ...] = ()  # how many samples of each count
        self._parts: list[Part] = []  # to which virtual ranks they belong, where there are some
        self._samples = 0  # in all of them
        self._count = 0  # of the step, over all ranks
        self._warned = False
        self._carried = 0  # optimizers whose state is known to travel

    def hooks(self) -> Hooks:
        """Returns what this process's member asks of the training."""
        return Hooks(
            self._session.pace.vitals,
            self._resizer.introduction,
            self._resizer.join_point.reserve,
            self.recovery.expect_early,
        )

    # -- a training loop

    def begin_loop(self, data: TrainingData) -> bool:
        """Begins a loop over some data; returns whether there is something to do: the job may have done it already.

        Raises:
            RuntimeError: If no optimizer was prepared, or another loop runs.
            ValueError: If it has no step, or steps that can't be divided as the model needs it.
        """
        session = self._session
        if session.data is not None:
            raise RuntimeError(
                "two training loaders are iterated at once; combine the data sets in one, e.g. with torch's "
                "StackDataset or ConcatDataset"
            )
        if not session.state.optimizers:
            raise RuntimeError("no optimizer was prepared: call job.prepare(model, optimizer) before the training loop")
        self.phases.begin_loop()
        self._resizer.begin_loop(data)
        refuse_sharded_late(session)
        warn_of_unprepared_schedulers(session)
        if session.course.is_ahead(session.position):
            return False
        begin_at_start(session, data)
        check_loop(session, data)
        for count in session.data_pass(data, session.position).counts():
            session.shares.of(count, Division(0, 1))
        session.data = data
        return True

    def rehearse(self) -> Iterator[MicroBatch]:
        """Yields micro-batches of which nothing is kept, where this rank is not admitted yet (see `rehearsal`)."""
        if self._session.membership is None:
            yield from rehearse(self._session, self._rehearsal)
            self._session.micro = None  # what loads its state at the admission may end the job

    def admit(self) -> bool:
        """Waits until this rank is a member of a generation, and has its peers' state; returns whether it has.

        It has not where the job has gone on to another loop, to which the script has to go.

        Raises:
            RuntimeError: If the job trains something else.
            SystemExit: With 0, if the job ends without needing it.
        """
        session = self._session
        if session.membership is None and not self._resizer.admit(fingerprint(session, self._data)):
            return False
        membership = session.need_membership("a training loop")
        if session.unequal:  # ranks of plain torchrun
            self._resizer.enter(membership.formation, membership.member)
            session.unequal = False
        keep_bounds(session)
        announce(session)
        return True

    def end_loop(self) -> None:
        """Ends the loop after its last step."""
        self.progress.report(self._data, at_epoch_end=True)
        self.phases.end_loop()

    def close_loop(self) -> None:
        """Forgets the loop, however it ended."""
        session = self._session
        session.data, session.micro = None, None
        session.pace.end_loop()

    @property
    def _data(self) -> TrainingData:
        data = self._session.data
        assert data is not None
        return data

    def _is_left(self) -> bool:
        """Whether there is a step left of the loop."""
        session = self._session
        ahead = session.course.is_ahead(session.position)
        if session.over or ahead:
            return False
        return self._has_step(self._data)

    def _has_step(self, data: TrainingData) -> bool:
        """Whether a loop over some data has a step at the present position."""
        session, position = self._session, self._session.position
        if position.step_in_epoch >= session.data_pass(data, position).steps:
            return False
        return session.autoscaling is None or position.loop > 0 or not is_over(session)

    # -- one step

    def begin_step(self) -> bool:
        """Begins the next step, or begins one again; returns False where the loop is over.

        Raises:
            SystemExit: With 0, on a rank that leaves the job.
        """
        session = self._session
        while self._is_left():
            if session.wants_stop():
                self.exchange(stop=True)
                continue
            try:
                point("begin", session.position.step)
                with session.agreed():
                    self._resizer.before_step()
                    session.need_membership("a step").group.check()  # a step that can't be done has nothing loaded
                self._begin_try()
                return True
            except GroupError as error:
                self._find_back(error)
        return False

    def _begin_try(self) -> None:
        session = self._session
        session.begin_try()
        membership, position = session.need_membership("a step"), session.position
        samples = session.data_pass(self._data, position).samples(position.step_in_epoch)
        rng.seed_all(rng.step_seed(session.seed, position.step, membership.rank), session.device)
        self._backward.begin_step()
        self._plan.load(self._data)
        mine = session.shares.of(samples.count, membership.division)
        self._pieces = pieces_of(position.order(), samples, mine.values(), session.shares.max_micro_batch)
        self._sizes = tuple(size for share in mine.values() for size in share.micro_batches) or (0,)
        self._parts = parts_of(mine) if session.virtual_ranks else []
        self._samples, self._count = sum(share.samples for share in mine.values()), samples.count
        session.pace.begin_work([size for _, _, size in self._pieces], position.step)

    def micro_batches(self) -> Iterator[MicroBatch]:
        """Yields this rank's micro-batches of the step, up to one with which it is known not to count.

        A rank without a share gets one with a few samples of which nothing is kept: it takes part in the reduction.
        """
        for number, (piece, samples) in enumerate(zip(self._pieces, self._sizes, strict=True)):
            last = number == len(self._pieces) - 1
            part = self._parts[number] if self._parts else None
            micro = MicroBatch(samples, self._count, last=last, first=number == 0, piece=piece, part=part)
            yield micro
            if micro.dropped:
                return

    def _rehearsal(self, size: int) -> MicroBatch:
        session, position = self._session, self._session.position
        samples = session.data_pass(self._data, position).samples(position.step_in_epoch)
        count = samples.count if session.autoscaling is None else session.autoscaling.bounds.max_batch_size
        taken = min(size, count)
        piece = (position.order(), min(samples.start, self._data.size - taken), taken)
        return MicroBatch(0, count, last=True, rehearsal=True, piece=piece)

    def begin_micro_batch(self, micro: MicroBatch) -> None:
        """Begins the work on a micro-batch, whose samples are there."""
        session = self._session
        if micro.part is not None and micro.part.first:
            self._begin_part(micro.part)
        if micro.samples or session.shards is not None:
            session.buffers.begin_micro_batch()
        session.asked = False
        session.micro = micro

    def _begin_part(self, part: Part) -> None:
        """Begins the work of a virtual rank, as a process of its own would: from the beginning of the step."""
        session = self._session
        seed = rng.step_seed(session.seed, session.position.step, part.virtual_rank)
        rng.seed_all(seed, session.device)
        session.buffers.undo_step()

    def backward(
        self,
        loss: torch.Tensor | None,
        weight: float | None = None,
        *,
        only: list[torch.Tensor] | None = None,
        owner: int = -1,
        retain_graph: bool = False,
    ) -> None:
        """Adds a micro-batch's gradient, or none, and, when it completes the step, reduces (see `Job.backward`).

        Args:
            loss: The mean over the micro-batch.
            weight: Over how many samples or tokens it was taken; its samples by default.
            only: The parameters that get gradients; all by default.
            owner: The number of the optimizer that steps them; -1 for all.
            retain_graph: As in torch.
        """
        self._backward.add(loss, weight, only, owner, retain_graph)

    @contextlib.contextmanager
    def redone_smaller(self) -> Iterator[None]:
        """Does a micro-batch again in smaller parts that runs out of memory within (see `Job.micro_batch`)."""
        micro = self._session.micro
        try:
            yield
        except torch.OutOfMemoryError as error:
            if micro is None or micro.synced:
                raise
            if not micro.dropped:
                self._backward.redo_smaller(error)

    def end_micro_batch(self, micro: MicroBatch) -> None:
        """Ends the work on a micro-batch.

        Raises:
            RuntimeError: If its gradient was not added.
        """
        if micro.rehearsal or micro.dropped:
            return
        if micro.broke:
            raise RuntimeError(f"{micro.broke}, and the loop body went on; {LEAVE_OUT}")
        if not micro.calls or (micro.last and not micro.synced):
            raise RuntimeError(
                f"the loop body ended without job.backward(loss); call it once for each micro-batch; {LEAVE_OUT}. "
                "A loop over a loader trains: what only looks at data, a test set say, is job.evaluate(fn, loader)"
            )

    def end_step(self) -> bool:
        """Ends the step after its last micro-batch; returns whether it counts, and is not to be done again.

        Raises:
            SystemExit: With 0, on a rank that leaves the job.
        """
        session = self._session
        micro = session.micro
        assert micro is not None
        try:
            if not micro.dropped:
                self._complete()
                return True
            if micro.error is not None:
                raise micro.error
            session.micro = None
            session.buffers.drop_step()  # with what the loop body did after the reduction
            if not micro.recovered:  # the ranks agreed to end the loop or the training before this step
                self.end_loop()
        except GroupError as error:
            self._find_back(error)
        return False

    def _find_back(self, error: GroupError) -> NextAction:
        session = self._session
        session.micro = None
        session.buffers.drop_step()
        session.reducer.renew()
        return self.recovery.recover(error, At.STEP).todo

    def _complete(self) -> None:
        session = self._session
        point("stepped", session.position.step)
        if not session.asked and not self._warned and not math.isnan(session.loss):
            self._warned = True
            warnings.warn(
                f"step {session.position.step} ended without optimizer.step(): its gradient is dropped. job.backward "
                "accumulates over the global batch by itself; call optimizer.step() after it each time, without "
                "`if (i + 1) % k == 0` around it: it acts when the global batch is complete",
                stacklevel=2,
            )
        self.advance()
        self._refuse_what_stays()
        self.pass_boundary(self._data)

    def advance(self) -> None:
        """Moves on to the next step."""
        session = self._session
        session.buffers.end_step()
        count_step(session, self._count)
        session.move_to(session.position.after_step(self._count))
        session.micro, session.lost, session.left_out = None, set(), set()

    def _refuse_what_stays(self) -> None:
        """Refuses after the first step what can't travel, not when somebody joins after hours; of a script by itself,
        what it keeps in `job.state`.
        """
        state = self._session.state
        if len(state.optimizers) == self._carried:
            return
        self._carried = len(state.optimizers)
        try:
            if self._session.member is None:
                encode(state.user, "job.state")
            else:
                state.capture()
        except TypeError as error:
            raise TypeError(f"{error}. It is there since its first step; joiners and checkpoints need it") from None

    def pass_boundary(self, data: TrainingData) -> None:
        """Reports, saves, and changes to a smaller generation, where it is time for that after a step."""
        self.progress.report(data)
        report_changes(self._session)
        checkpoints = self._session.checkpoints
        if checkpoints is not None and checkpoints.after_step():
            self._resizer.check_due = self._session.need_membership("a checkpoint").world_size > 1
        self._session.pace.tick(self._samples)
        note_step(self._session, self._count)
        self._times.report()
        self._resizer.after_step()

    # -- ends

    def exchange(self, *, stop: bool) -> None:
        """Tells the other ranks, if there are any, that this one ends the training before the next step, or has left
        the loop.
        """
        session = self._session
        while session.need_membership("the end of the loop").world_size > 1:
            try:
                if stop:
                    self._resizer.before_step(ends=True)  # where peers are that go on
                self._backward.exchange(stop=stop, left_loop=not stop)
                return
            except GroupError as error:
                if self._find_back(error) is not NextAction.AGAIN:
                    return
        if stop:
            session.end_training()

    def leave_loop(self, data: TrainingData) -> None:
        """Ends a loop that the script has left: the peers must have left it at the same step.

        Raises:
            RuntimeError: If they have not.
            SystemExit: With 0, on a rank that leaves the job.
        """
        session = self._session
        stop = session.wants_stop()
        if self._has_step(data) and not session.over:
            self.exchange(stop=stop)
            self._resizer.tell_active()  # a job that resumes where it had left the loop does no step
            if not session.over:
                count_rest(session, session.data_pass(data, session.position))
        elif stop and session.need_membership("the end of the loop").world_size == 1:
            session.end_training()
        self.phases.end_loop()

    def note_last_step(self, data: TrainingData) -> None:
        """Reports the step after which the script ended."""
        self.progress.report(data)
        report_changes(self._session)
        self._resizer.after_step()

    def finish(self) -> None:
        """Ends the training on all ranks together, after the last epoch."""
        self.recovery.confirm_end(self._backward.compare_at_end)
        self._resizer.tell_active()
        self._times.report(at_end=True)
        self.progress.finish()
