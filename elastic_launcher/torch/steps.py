"""The training loop: issues each step's micro-batches, does a step again that a lost peer spoiled, and ends epochs and
training on all ranks together. What `job.backward` does in it is in `backward`.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from typing import Any

from elastic_launcher.batch import share
from elastic_launcher.torch import rng
from elastic_launcher.torch.backward import Backward
from elastic_launcher.torch.faults import point
from elastic_launcher.torch.fingerprint import fingerprint
from elastic_launcher.torch.loader import ElasticLoader, Piece
from elastic_launcher.torch.pieces import SPARE_SAMPLES, LoadPlan, share_of_step
from elastic_launcher.torch.progress import Progress
from elastic_launcher.torch.recover import Recovery
from elastic_launcher.torch.resize import Resizer
from elastic_launcher.torch.session import MicroBatch, Session
from elastic_launcher.torch.standing import At, Todo
from elastic_launcher.torch.work import GroupError


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
        self._epoch_done = False
        self._samples = 0
        self._left: ElasticLoader | None = None
        self._left_complete = False

    # -- epochs

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the epochs that are left, the first one at once, wherever the job stands."""
        session = self._session
        session.epochs = total
        while True:
            self.settle()
            self._turn_epoch()
            if session.stop_reason is not None and not session.over and session.position.epoch < total:
                self._tell_stop()
            if session.over or session.position.epoch >= total:
                break
            yield session.position.epoch
            if session.loader is not None:
                raise RuntimeError("job.epochs() was asked for the next epoch from inside the training loop")
            self._epoch_done = True  # also where the script ran no loop in it
        self._recovery.confirm_end()
        self._resizer.tell_active()
        self._progress.finish()

    def _turn_epoch(self) -> None:
        if self._epoch_done:
            position = self._session.position
            position.epoch, position.step_in_epoch, self._epoch_done = position.epoch + 1, 0, False

    # -- the loop over one loader

    def train(self, loader: ElasticLoader) -> Iterator[Any]:
        """Yields this rank's micro-batches until the epoch is over.

        Raises:
            RuntimeError: If two training loaders are used at once, or a rank leaves the loop alone.
            SystemExit: With 0, on a rank that leaves the job.
        """
        session = self._session
        if session.loader is not None:
            raise RuntimeError(
                "two training loaders are iterated at once; combine the data sets in one, e.g. with torch's "
                "StackDataset or ConcatDataset"
            )
        if not session.state.optimizers:
            raise RuntimeError("no optimizer was prepared: call job.prepare(model, optimizer) before the training loop")
        self.settle()
        self._turn_epoch()
        session.loader = loader
        try:
            if session.place is None:
                yield from self._rehearse(loader)
                self._resizer.admit(fingerprint(session, loader))
            elif session.unequal:
                self._resizer.start(session.place.formation, session.place.member)
                session.unequal = False
            while not session.over and session.position.step_in_epoch < loader.steps_per_epoch:
                yield from self._step(loader)
            self._epoch_done = not session.over
            self._progress.tell(loader, at_epoch_end=True)
        finally:
            session.loader, session.micro = None, None
            session.pace.end_loop()

    def _rehearse(self, loader: ElasticLoader) -> Iterator[Any]:
        """Runs the script's loop body on the largest and on the smallest micro-batch, of which nothing is kept, so that
        all that is slow the first time, and the first time at another size, is done before peers wait.
        """
        session = self._session
        position = session.position
        count = loader.step_size(position.step_in_epoch)
        ranks = max(1, self._expected_world_size())
        largest = max(share(count, session.max_batch_per_gpu, ranks, 0).micro_batches)
        start = position.step_in_epoch * session.global_batch_size
        session.buffers.begin_step()
        still = session.buffers.still()
        for size in {largest: None, min(count, SPARE_SAMPLES): None}:
            micro = MicroBatch(samples=0, count=count, last=True, rehearsal=True)
            yield from self._issue(loader, (position.epoch, start, size), micro)
            session.buffers.check()
            session.buffers.refuse_changed(still)
        session.buffers.undo_step()
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
        session.sync_gradients = False
        session.micro = micro
        try:
            yield batch
        except GeneratorExit:
            self._note_left(loader, micro)
            raise
        session.sync_gradients = False
        if micro.rehearsal or micro.dropped:
            return
        if micro.last and not micro.synced:
            raise RuntimeError("the loop body ended without job.backward(loss); call it once for each micro-batch")

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
            yield from self._issue(loader, (position.epoch, start, min(count, SPARE_SAMPLES)), micro)
            return micro
        offset = start + mine.start
        for number, size in enumerate(sizes):
            micro = MicroBatch(samples=size, count=count, last=number == len(sizes) - 1)
            session.buffers.begin_micro_batch()
            yield from self._issue(loader, (position.epoch, offset, size), micro)
            if micro.dropped:
                return micro
            offset += size
        return micro

    def _complete(self, loader: ElasticLoader) -> None:
        """Moves on to the next step, and through a boundary if there is one."""
        point("stepped", self._session.position.step)
        self._advance(loader)
        self._pass_boundary(loader)

    def _advance(self, loader: ElasticLoader) -> None:
        position = self._session.position
        position.step += 1
        position.samples += loader.step_size(position.step_in_epoch)
        position.step_in_epoch += 1
        position.calls = 0
        self._session.micro, self._session.lost = None, set()

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
                self._backward.exchange(stop=stop, left_loop=not stop)
                return
            except GroupError as error:
                session.buffers.undo_step()
                session.reducer.renew()
                if self._recovery.recover(error, At.STEP).todo is not Todo.AGAIN:
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
        if self._session.place is None or micro.rehearsal:
            return
        self._left, self._left_complete = loader, micro.last and micro.synced
        if self._left_complete:
            self._advance(loader)
        else:
            self._session.buffers.undo_step()

    def settle(self) -> None:
        """The script comes back after it left the loop, so it was by ``break``: tells the peers, who must have done the
        same.

        Raises:
            RuntimeError: If they have not.
            SystemExit: With 0, on a rank that leaves the job.
        """
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
        self._epoch_done = not session.over
