"""The training loop: issues each step's micro-batches, ends each step with the reduction, and does a step again that a
lost peer spoiled.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from typing import Any

import torch

from elastic_launcher.batch import Share, share
from elastic_launcher.torch import rng
from elastic_launcher.torch.fingerprint import fingerprint
from elastic_launcher.torch.group import GroupError
from elastic_launcher.torch.loader import ElasticLoader, Piece
from elastic_launcher.torch.place import Place
from elastic_launcher.torch.progress import Progress
from elastic_launcher.torch.resize import Resizer
from elastic_launcher.torch.session import MicroBatch, Session
from elastic_launcher.torch.signals import Agreement, Signals
from elastic_launcher.torch.verify import ChecksumTask, name_differences, name_positions

SPARE_SAMPLES = 2  # a rank without a share runs on two samples, since batch norm refuses one


class StepLoop:
    """Runs the steps of one job in one process.

    Args:
        session: The job.
        resizer: Changes this rank's place between steps.
    """

    def __init__(self, session: Session, resizer: Resizer) -> None:
        self._session = session
        self._resizer = resizer
        self._progress = Progress(session)
        self._check: ChecksumTask | None = None
        self._epoch_done = False
        self._error: RuntimeError | None = None

    # -- epochs

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the epochs that are left, the first one at once, wherever the job stands."""
        session = self._session
        session.epochs = total
        while True:
            self._raise_error()
            self._turn_epoch()
            if session.stop_reason is not None and not session.over and session.position.epoch < total:
                self._tell_stop()
            if session.over or session.position.epoch >= total:
                break
            yield session.position.epoch
            if session.loader is not None:
                raise RuntimeError("job.epochs() was asked for the next epoch from inside the training loop")
            self._epoch_done = True  # also where the script ran no loop in it
        self._resizer.finish()
        self._progress.finish()

    def _raise_error(self) -> None:
        """Raises what went wrong while the script left its loop."""
        if self._error is not None:
            raise self._error

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
        self._raise_error()
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
        for size in {largest: None, min(count, SPARE_SAMPLES): None}:
            micro = MicroBatch(samples=0, count=count, last=True, rehearsal=True)
            yield from self._issue(loader, (position.epoch, start, size), micro)
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
            try:
                self._left_loop(loader)
            except RuntimeError as error:  # nothing can be raised out of a generator that is being dropped
                self._error = error
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
                if micro.error is None:
                    self._end_together(loader)
                    return
                raise micro.error
            except GroupError as error:
                session.micro = None
                session.buffers.undo_step()
                session.reducer.renew()
                if not self._resizer.recover(error):
                    return  # a peer had completed the step, and this rank took its state

    def _attempt(self, loader: ElasticLoader) -> Generator[Any, None, MicroBatch]:
        """Issues a step's micro-batches of this rank once; returns the last of them."""
        session = self._session
        place = session.need_place("a step")
        position = session.position
        count = loader.step_size(position.step_in_epoch)
        start = position.step_in_epoch * session.global_batch_size
        mine = self._share(place, count)
        rng.seed_all(rng.step_seed(session.seed, position.step, place.rank), session.device)
        session.buffers.begin_step()
        session.reducer.begin_step()
        if self._resizer.check_due:
            self._check, self._resizer.check_due = ChecksumTask(session.state), False
        self._load_ahead(loader, place)
        sizes = mine.micro_batches
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

    def _share(self, place: Place, count: int) -> Share:
        if place.rank >= place.dividing:
            return Share(count, ())
        return share(count, self._session.max_batch_per_gpu, place.dividing, place.rank)

    def _complete(self, loader: ElasticLoader) -> None:
        """Moves on to the next step, and through a boundary if there is one."""
        session = self._session
        position = session.position
        position.step += 1
        position.samples += loader.step_size(position.step_in_epoch)
        position.step_in_epoch += 1
        position.calls = 0
        loader.forget_before(position.epoch, position.step_in_epoch * session.global_batch_size)
        session.micro = None
        self._progress.tell(loader)
        self._resizer.after_step(session.pace.tick())

    # -- loading ahead

    def _load_ahead(self, loader: ElasticLoader, place: Place) -> None:
        """Has the workers load this rank's next micro-batches, also those of a generation that is being formed."""
        if not loader.ahead:
            return
        if place.rank < place.dividing:
            loader.ask(self._pieces(loader, place.rank, place.dividing, 0, loader.ahead + 1))
        if place.dividing < place.world_size:  # joiners get their share from the next step on
            loader.ask(self._pieces(loader, place.rank, place.world_size, 1, loader.ahead))
        coming = self._resizer.coming()
        if coming is not None:
            rank = coming["members"].index(place.member)
            loader.ask(self._pieces(loader, rank, len(coming["members"]), 1, loader.ahead))

    def _pieces(self, loader: ElasticLoader, rank: int, ranks: int, skip: int, limit: int) -> list[Piece]:
        """Returns the micro-batches that a rank needs from ``skip`` steps after the current one on."""
        session = self._session
        pieces: list[Piece] = []
        epoch, step = session.position.epoch, session.position.step_in_epoch + skip
        while len(pieces) < limit:
            if step >= loader.steps_per_epoch:
                epoch, step = epoch + 1, 0
                if session.epochs is not None and epoch >= session.epochs:
                    break
            mine = share(loader.step_size(step), session.max_batch_per_gpu, ranks, rank)
            start = step * session.global_batch_size + mine.start
            for size in mine.micro_batches:
                pieces.append((epoch, start, size))
                start += size
            if not mine.micro_batches:
                break
            step += 1
        return pieces

    # -- the end of a step

    def backward(self, loss: torch.Tensor, weight: float | None, only: list[torch.Tensor] | None, owner: int) -> None:
        """Adds a micro-batch's gradient and, when it completes the step, reduces (see `Job.backward`)."""
        session = self._session
        micro = session.micro
        if micro is None:
            raise RuntimeError("job.backward() was called outside the training loop (for batch in loader: ...)")
        if micro.dropped:
            return
        call, micro.calls = micro.calls, micro.calls + 1
        session.sync_gradients = False
        if micro.rehearsal:
            session.reducer.rehearse(loss, call, only, owner)
            return
        try:
            self._accumulate(loss, weight, call, only, owner, micro)
            if micro.last:
                self._reduce(call, only, owner, micro)
        except GroupError as error:
            micro.dropped, micro.error = True, error
            session.sync_gradients = False
            for parameter in session.parameters():
                parameter.grad = None

    def _accumulate(
        self,
        loss: torch.Tensor,
        weight: float | None,
        call: int,
        only: list[torch.Tensor] | None,
        owner: int,
        micro: MicroBatch,
    ) -> None:
        session = self._session
        place = session.need_place("job.backward")
        counted = 0.0 if micro.samples == 0 else float(micro.samples if weight is None else weight)
        if counted == 0:
            if micro.samples:
                session.buffers.undo_micro_batch()
            elif not self._resizer.joining:  # a joiner's are being replaced by its peer's
                session.buffers.undo_step()
            return
        session.reducer.accumulate(
            session.reducer.slot(call, only, owner),
            loss,
            scale=counted / micro.count,
            weight=counted,
            logged=getattr(loss, "elastic_unscaled", loss),
            group=place.group if micro.last and call >= session.position.calls else None,
        )

    def _reduce(self, call: int, only: list[torch.Tensor] | None, owner: int, micro: MicroBatch) -> None:
        session = self._session
        place = session.need_place("job.backward")
        if call < session.position.calls:
            return  # this rank's optimizer took this part of the step before the step had to be done again
        if self._resizer.take_state():
            session.buffers.begin_step()  # the step's beginning is what the peer sent, not what was here before
            session.reducer.begin_step()  # parameters may have been added or frozen before this rank came
        slot = session.reducer.slot(call, only, owner)
        share_samples = self._share(place, micro.count).samples
        signals = self._signals(first=call == 0)
        agreement = session.reducer.reduce(slot, place.group, signals, samples=share_samples, count=micro.count)
        self._resizer.complete_reduction()
        if session.device.type == "cuda":
            torch.cuda.synchronize(
                session.device
            )  # an aborted NCCL reduction shows only when the host has seen its end
        if not self._accept(agreement, signals):
            micro.dropped = True
            return
        session.loss = agreement.loss if call == 0 else session.loss + agreement.loss
        session.position.calls = call + 1
        micro.synced = True
        session.sync_gradients = True

    def _signals(self, *, first: bool = True, stop: bool = False, left_loop: bool = False) -> Signals:
        session = self._session
        ready = None
        if first and not stop and not left_loop:
            ready = self._ready()
        check = 0
        if self._check is not None:
            check = self._check.combined()
        return Signals(position=session.position.mark(), ready=ready, stop=stop, left_loop=left_loop, check=check)

    def _ready(self) -> int | None:
        coming, loader = self._resizer.coming(), self._session.loader
        pieces: list[Piece] = []
        if coming is not None and loader is not None and loader.ahead:
            rank = coming["members"].index(self._session.need_place("a step").member)
            pieces = self._pieces(loader, rank, len(coming["members"]), 1, 1)
        formation = self._resizer.ready(loader, pieces)
        return formation.number if formation is not None else None

    def _accept(self, agreement: Agreement, signals: Signals) -> bool:
        """Acts on what the ranks agreed on; returns whether the step counts.

        Raises:
            RuntimeError: If ranks stand at different steps, differ in their parameters, or one has left the loop alone.
        """
        session = self._session
        group = session.need_place("a step").group
        if not agreement.same_position:
            raise RuntimeError(name_positions(group, session.position))
        check, self._check = self._check, None
        if check is not None and not agreement.same_check:
            raise RuntimeError(name_differences(group, check))
        if agreement.stop:
            session.over = True
        elif agreement.left_loop:
            if agreement.left_loop != group.world_size:
                raise RuntimeError(name_positions(group, session.position, left_loop=signals.left_loop))
        elif agreement.formation is not None:
            self._resizer.agree(agreement.formation)
        dropped = bool(agreement.stop or agreement.left_loop)
        if dropped:
            for parameter in session.parameters():
                parameter.grad = None
        return not dropped

    # -- ends

    def _exchange(self, *, stop: bool = False, left_loop: bool = False) -> None:
        """Takes part in the reduction of the next step without working on it, to tell the peers that there is none."""
        session = self._session
        place = session.need_place("the end of the training")
        session.reducer.begin_step()
        signals = self._signals(stop=stop, left_loop=left_loop)
        agreement = session.reducer.reduce(session.reducer.first_slot(), place.group, signals, samples=0, count=1)
        self._accept(agreement, signals)

    def _tell_stop(self) -> None:
        """Ends the training on all ranks before the next step."""
        if self._session.need_place("job.stop").world_size == 1:
            self._session.over = True
        else:
            self._exchange(stop=True)

    def _end_together(self, loader: ElasticLoader) -> None:
        """Ends the epoch or the training where another rank's script did; the step that this rank had begun does not
        count.
        """
        self._session.buffers.undo_step()
        self._session.micro = None
        if not self._session.over:
            self._session.position.step_in_epoch = loader.steps_per_epoch

    def _left_loop(self, loader: ElasticLoader) -> None:
        """The script broke out of the loop: tells the peers, who must have done the same."""
        session = self._session
        micro = session.micro
        if sys.is_finalizing() or session.dying or micro is None or session.place is None or micro.rehearsal:
            return
        if micro.last and micro.synced:
            self._complete(loader)
        session.micro, session.sync_gradients = None, False
        at_end = session.position.step_in_epoch >= loader.steps_per_epoch
        if not at_end and not session.over and session.place.world_size > 1:
            self._exchange(stop=session.stop_reason is not None, left_loop=session.stop_reason is None)
        elif session.stop_reason is not None:
            session.over = session.over or session.place.world_size == 1
        self._epoch_done = not session.over
