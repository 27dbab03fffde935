"""The training loop: issues each step's micro-batches, does a step again that a lost peer spoiled, and ends epochs and
training on all ranks together. What `job.backward` does in it is in `backward`.
"""

from __future__ import annotations

import contextlib
import gc
import math
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any

from elastic_launcher.torch import rng
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.data.loader import ElasticLoader, Piece
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.membership.reconcile import At, NextAction
from elastic_launcher.torch.reconfigure.fingerprint import fingerprint
from elastic_launcher.torch.reconfigure.micro_batches import SPARE_SAMPLES, LoadPlan, share_of_step
from elastic_launcher.torch.reconfigure.recovery import Recovery
from elastic_launcher.torch.reconfigure.resize import Resizer
from elastic_launcher.torch.session import LEAVE_OUT, MicroBatch, Session
from elastic_launcher.torch.step.backward import Backward
from elastic_launcher.torch.step.prepare import warn_of_unprepared_schedulers
from elastic_launcher.torch.step.progress import Progress
from elastic_launcher.torch.step.rehearsal import rehearse


class StepLoop:
    """Runs the steps of one job in one process.

    Args:
        session: The job.
        resizer: Changes this rank's place between steps.
        recovery: Finds this rank a place after a failure.
        backward: Ends each step.
        plan: Has workers load ahead.
    """

    def __init__(
        self, session: Session, resizer: Resizer, recovery: Recovery, backward: Backward, plan: LoadPlan
    ) -> None:
        self._session = session
        self._resizer = resizer
        self._recovery = recovery
        self._backward = backward
        self._plan = plan
        self._progress = Progress(session)
        self._samples = 0
        self._warned = False
        self._carried = 0  # optimizers whose state is known to travel
        self._left: ElasticLoader | None = None
        self._left_complete = False
        self._left_early = False
        self._put_back = rng.keep()  # the random generators, to where they were before the loop
        self._only_looks = True  # whether the script has not come back yet for the loop's second micro-batch

    # -- phases, epochs and loops

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the epochs that are left, the first one at once, wherever the job stands; none of a phase that the job
        has done already.
        """
        session, course = self._session, self._session.course
        self.settle()
        self._begin_phase(total)
        phase = course.phase
        if session.position.phase > phase:
            self._end_phase()
            return
        try:
            while not self._is_over(total):
                course.begin_epoch(session.position.epoch)
                self._progress.begin_epoch()
                if course.epoch:  # the first one begins with what the script has drawn before it, everywhere
                    self._go_on_alike(*course.where)
                yield course.epoch
                if session.loader is not None:
                    raise RuntimeError("job.epochs() was asked for the next epoch from inside the training loop")
                if course.phase != phase:
                    raise RuntimeError("job.epochs() was asked for the next epoch after another job.epochs() had begun")
                self.settle()
                self._progress.end_epoch()
                self._turn_epoch()
        finally:
            if course.phase == phase:
                self._end_phase()
        if session.position.phase > phase:
            return  # the job has ended it while this rank waited for admission
        self._recovery.confirm_end()
        self._resizer.tell_active()
        self._progress.finish()

    def _begin_phase(self, total: int | None) -> None:
        """Notes that the script begins a `job.epochs`, or loops outside of any: after another one it trains again."""
        session, course = self._session, self._session.course
        course.begin_phase(counted=total is not None)
        session.epochs = total
        if course.phase:
            session.stop_reason = None  # it was meant for the one before
        if session.position.phase < course.phase:
            session.position.begin(course.phase, 0, 0)
            session.over = False
            session.report("again", phase=course.phase, step=session.position.step, sums=session.sums.lasting())

    def _end_phase(self) -> None:
        course = self._session.course
        course.end_phase()
        self._go_on_alike(course.phase)

    def _go_on_alike(self, *where: int) -> None:
        """Has all ranks draw the same random numbers from here on: each has drawn its own in the steps."""
        rng.seed_all(rng.after_seed(self._session.seed, *where), self._session.device)

    def _is_over(self, total: int) -> bool:
        session = self._session
        if session.position.phase > session.course.phase:
            return True
        if session.stop_reason is not None and not session.over and session.position.epoch < total:
            self._tell_stop()
        return session.over or session.position.epoch >= total

    def _turn_epoch(self) -> None:
        position, course = self._session.position, self._session.course
        if (position.phase, position.epoch) == (course.phase, course.epoch):
            position.begin(course.phase, course.epoch + 1, 0)

    def train(self, loader: ElasticLoader) -> Iterator[Any]:
        """Yields this rank's micro-batches until the loop over this loader is over; none where the job has done it.

        Raises:
            RuntimeError: If two training loaders are used at once, or a rank leaves the loop alone.
            SystemExit: With 0, on a rank that leaves the job.
        """
        yield from self._train(loader)
        self._go_on_alike(*self._session.course.where)

    def _train(self, loader: ElasticLoader) -> Iterator[Any]:
        session = self._session
        if session.loader is not None:
            raise RuntimeError(
                "two training loaders are iterated at once; combine the data sets in one, e.g. with torch's "
                "StackDataset or ConcatDataset"
            )
        if not session.state.optimizers:
            raise RuntimeError("no optimizer was prepared: call job.prepare(model, optimizer) before the training loop")
        self.settle()
        self._begin_loop(loader)
        warn_of_unprepared_schedulers(session)
        for step in (0, loader.steps_per_epoch - 1):  # a full step and the epoch's tail
            session.share(loader.step_size(step), 1, 0)
        if session.course.is_ahead(session.position):
            return
        session.loader = loader
        try:
            if session.place is None:
                yield from self._rehearse(loader)
                if not self._resizer.admit(fingerprint(session, loader)):
                    return
                self._only_looks = session.position.step_in_epoch == 0  # as on the ranks that have trained there
            elif session.unequal:
                self._resizer.enter(session.place.formation, session.place.member)
                session.unequal = False
            while self._goes_on(loader):
                yield from self._step(loader)
            self._progress.tell(loader, at_epoch_end=True)
            self._end_loop()
        finally:
            session.loader, session.micro = None, None
            session.pace.end_loop()

    def _begin_loop(self, loader: ElasticLoader) -> None:
        session, course = self._session, self._session.course
        if course.between:
            self._begin_phase(None)
        if not course.counted:
            course.begin_epoch(course.epoch + 1)
        course.begin_loop()
        self._put_back = rng.keep()
        self._only_looks = True
        if session.position.where < course.where:
            session.position.begin(*course.where)
        self._resizer.begin_loop(loader)

    def _goes_on(self, loader: ElasticLoader) -> bool:
        session = self._session
        ahead = session.course.is_ahead(session.position)
        return not session.over and not ahead and session.position.step_in_epoch < loader.steps_per_epoch

    def _end_loop(self) -> None:
        session = self._session
        if not session.over and not session.course.is_ahead(session.position):
            phase, epoch, loop = session.course.where
            session.position.begin(phase, epoch, loop + 1)

    def _rehearse(self, loader: ElasticLoader) -> Iterator[Any]:
        session = self._session
        yield from rehearse(session, loader, self._issue, max(1, self._expected_world_size()))
        session.state.capture()  # what can't be carried to a joiner is said now, not when one comes
        if session.member is not None:
            session.member.warm_up()
        gc.collect()
        gc.freeze()  # a full collection over all that was imported takes longer than any resize

    def _expected_world_size(self) -> int:
        member = self._session.member
        return member.expected_world_size if member is not None else 1

    def _issue(self, loader: ElasticLoader, piece: Piece, micro: MicroBatch) -> Iterator[Any]:
        session = self._session
        batch = loader.take(piece)
        session.sync_gradients = session.asked = False
        session.micro, micro.piece = micro, piece
        try:
            yield batch
        except GeneratorExit:
            self._note_left(loader, micro)
            raise
        session.sync_gradients = self._only_looks = False
        if micro.rehearsal or micro.dropped:
            return
        if micro.broke:
            raise RuntimeError(f"{micro.broke}, and the loop body went on; {LEAVE_OUT}")
        if not micro.calls or (micro.last and not micro.synced):
            raise RuntimeError(
                f"the loop body ended without job.backward(loss); call it once for each micro-batch; {LEAVE_OUT}. "
                "A loop over a loader trains: what only looks at data, a test set say, is job.evaluate(fn, loader)"
            )

    # -- one step

    def _step(self, loader: ElasticLoader) -> Iterator[Any]:
        """Issues one optimizer step, again and again until it counts."""
        session = self._session
        while True:
            if session.stop_reason is not None:
                self._tell_stop()
                return
            try:
                self._resizer.before_step()
                session.need_place("a step").group.check()  # a step that can't be done has nothing loaded
                micro = yield from self._attempt(loader)
                if not micro.dropped:
                    self._complete(loader)
                    return
                if micro.error is not None:
                    raise micro.error
                session.micro = None
                if not micro.recovered:
                    self._end_together(loader)
                    return
            except GroupError as error:
                session.micro = None
                session.buffers.undo_step()
                session.reducer.renew()
                self._recovery.recover(error, At.STEP)

    def _attempt(self, loader: ElasticLoader) -> Generator[Any, None, MicroBatch]:
        """Issues a step's micro-batches of this rank once; returns the last of them."""
        session = self._session
        place = session.need_place("a step")
        position = session.position
        count = loader.step_size(position.step_in_epoch)
        start = position.step_in_epoch * session.global_batch_size
        rng.seed_all(rng.step_seed(session.seed, position.step, place.rank), session.device)
        self._backward.begin_step()
        self._plan.load(loader)
        mine = share_of_step(session, place, count)
        self._samples = mine.samples
        sizes = mine.micro_batches
        session.pace.begin_work(sizes or (SPARE_SAMPLES,), position.step)
        if not sizes:
            micro = MicroBatch(samples=0, count=count, last=True)
            yield from self._issue(loader, (position.order(), start, min(count, SPARE_SAMPLES)), micro)
            return micro
        offset = start + mine.start
        for number, size in enumerate(sizes):
            micro = MicroBatch(samples=size, count=count, last=number == len(sizes) - 1)
            session.buffers.begin_micro_batch()
            yield from self._issue(loader, (position.order(), offset, size), micro)
            if micro.dropped:
                return micro
            offset += size
        return micro

    def _complete(self, loader: ElasticLoader) -> None:
        """Moves on to the next step, and through a boundary if there is one."""
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
        self._advance(loader)
        if session.member is not None:
            self._refuse_what_stays()
        self._pass_boundary(loader)

    def _refuse_what_stays(self) -> None:
        """Refuses an optimizer whose state can't travel after its first step, not when somebody joins after hours."""
        state = self._session.state
        if len(state.optimizers) == self._carried:
            return
        self._carried = len(state.optimizers)
        try:
            state.capture()
        except TypeError as error:
            raise TypeError(f"{error}. It is there since its first step; joiners and checkpoints need it") from None

    def _advance(self, loader: ElasticLoader) -> None:
        session = self._session
        position = session.position
        position.step += 1
        position.samples += loader.step_size(position.step_in_epoch)
        position.step_in_epoch += 1
        position.calls = 0
        session.micro, session.lost, session.left_out = None, set(), set()

    def _pass_boundary(self, loader: ElasticLoader) -> None:
        self._progress.tell(loader)
        checkpoints = self._session.checkpoints
        if checkpoints is not None and checkpoints.after_step():
            self._resizer.check_due = self._session.need_place("a checkpoint").world_size > 1
        self._session.pace.tick(self._samples)
        self._resizer.after_step()

    # -- ends

    def _tell_stop(self) -> None:
        """Ends the training on all ranks before the next step."""
        self._exchange(stop=True)

    def _exchange(self, *, stop: bool) -> None:
        """Tells the other ranks, if there are any, that this one ends the training or has left the loop."""
        session = self._session
        while session.need_place("the end of the loop").world_size > 1:
            try:
                if stop:
                    self._resizer.before_step(ends=True)  # where peers are that go on
                self._backward.exchange(stop=stop, left_loop=not stop)
                return
            except GroupError as error:
                session.buffers.undo_step()
                session.reducer.renew()
                if self._recovery.recover(error, At.STEP).todo is not NextAction.AGAIN:
                    return
        session.over = session.over or stop

    def _end_together(self, loader: ElasticLoader) -> None:
        """Ends the epoch or the training where another rank's script did; the step that this rank had begun does not
        count.
        """
        self._session.buffers.undo_step()
        self._session.micro = None
        if not self._session.over:
            self._session.position.step_in_epoch = loader.steps_per_epoch

    def _note_left(self, loader: ElasticLoader, micro: MicroBatch) -> None:
        """The script left the loop: by ``break``, or by an exception, which can't be told apart here."""
        session = self._session
        if session.place is None or micro.rehearsal:
            self._left_early = micro.calls > 0
            self._give_loop_back()
            return
        self._left_complete = micro.last and micro.synced
        if self._left_complete:
            self._advance(loader)
        else:
            session.buffers.undo_step()
            if self._only_looks and not micro.calls:
                self._give_loop_back()  # next(iter(loader)), say: nothing was done with the batch
                return
        self._left = loader
        self._go_on_alike(*session.course.where)

    def _give_loop_back(self) -> None:
        self._session.course.give_loop_back()
        self._put_back()

    def sum(self, compute: Callable[[], Any]) -> Any:
        """Sums over all ranks; where the script has skipped what the job had done, it gets what came of it then."""
        session = self._session
        self.settle()
        if session.loader is not None:
            return compute()
        key = session.course.key_of_sum()
        if session.place is None and session.course.is_ahead(session.position):
            with contextlib.suppress(KeyError):
                return session.sums.take(key)
        result = compute()
        session.sums.note(key, result)
        if not session.course.counted and session.need_place("a sum").rank == 0:
            session.report("summed", sums=session.sums.lasting())  # a joiner skips the loops that are done
        return result

    def settle(self) -> None:
        """The script comes back after it left the loop, so it was by ``break``: tells the peers, who must have done the
        same.

        Raises:
            RuntimeError: If they have not, or it left the loop in the rehearsal, so that nothing was trained.
            SystemExit: With 0, on a rank that leaves the job.
        """
        self._refuse_left_early()
        loader, self._left = self._left, None
        if loader is None:
            return
        session = self._session
        if self._left_complete:
            self._pass_boundary(loader)
        session.sync_gradients = False
        if session.position.step_in_epoch < loader.steps_per_epoch and not session.over:
            self._exchange(stop=session.stop_reason is not None)
        elif session.stop_reason is not None and session.need_place("the end of the loop").world_size == 1:
            session.over = True
        self._end_loop()

    def note_end(self) -> None:
        """The script ends, and may have left its loop: tells of the step that is complete.

        Peers are not waited for: this process may end with a code of its own, as by ``sys.exit(1)``, which nobody knows
        before it is gone. Where all end well and at different steps, the coordinator says so.

        Raises:
            RuntimeError: If the loop was left in the rehearsal, so that nothing was trained.
        """
        self._refuse_left_early()
        loader, self._left = self._left, None
        if loader is not None and self._left_complete:
            self._progress.tell(loader)
            self._resizer.after_step()

    def _refuse_left_early(self) -> None:
        if self._left_early:
            self._left_early = False
            raise RuntimeError(
                "the loop body left the training loop in its rehearsal, after job.backward, by break or by an "
                "exception that the script took: the first batches of a process are tried before it is admitted, and "
                "nothing of them is kept. Leave the loop where a step is complete (`if job.sync_gradients and ...: "
                "break`), or call job.stop()"
            )
