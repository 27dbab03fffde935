"""The training loop of a script: a generator over a loader that drives the step engine, and the epochs around it.

A script iterates over the loader, or calls `Job.run_step` once for each step, which iterates over it for the script.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from elastic_launcher.control.messages import Summed
from elastic_launcher.torch import rng
from elastic_launcher.torch.data.loader import ElasticLoader
from elastic_launcher.torch.data.micro_batches import MicroBatch
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.statistical_epochs import count_empty, is_over
from elastic_launcher.torch.step.engine import StepEngine
from elastic_launcher.torch.step.memory import LeftAt


class StepLoop:
    """Runs the loops of one script in one process."""

    def __init__(self, session: Session, engine: StepEngine) -> None:
        self._session = session
        self._engine = engine
        self._left_at: LeftAt | None = None  # where the script left its last loop, if it did before its end
        self._left: ElasticLoader | None = None
        self._left_complete = False
        self._left_early = False
        self._put_back = rng.keep()  # the random generators, to where they were before the loop
        self._only_looks = True  # whether the script has not asked yet for the loop's second micro-batch
        self._pushed: Generator[Any, None, None] | None = None  # the loop that `run_step` runs
        self._pushed_over: ElasticLoader | None = None
        self._pushing = False  # whether a `run_step` runs
        self._outgrown: MicroBatch | None = None  # the last one in which a `run_step` ran out of memory

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the epochs that are left, the first one at once, at any position of the job; none of a phase that is
        done.
        """
        session, course = self._session, self._session.course
        engine, phases = self._engine, self._engine.phases
        self.settle()
        phases.begin(total)
        phase = course.phase
        if session.position.phase > phase:
            phases.end()
            return
        try:
            while not self._is_over():
                yield phases.begin_epoch()
                self.leave_pushed()
                if session.data is not None:
                    raise RuntimeError("job.epochs() was asked for the next epoch from inside the training loop")
                if course.phase != phase:
                    raise RuntimeError("job.epochs() was asked for the next epoch after another job.epochs() had begun")
                self.settle()
                count_empty(session)
                engine.progress.end_epoch()
                phases.end_epoch()
        finally:
            if course.phase == phase:
                phases.end()
        if session.position.phase == phase:  # else the job has ended it while this rank waited for admission
            engine.finish()

    def _is_over(self) -> bool:
        session = self._session
        if session.position.phase > session.course.phase:
            return True
        if session.stop_reason is not None and not session.over and not is_over(session):
            self._engine.exchange(stop=True)
        return session.over or is_over(session)

    def run_step(self, loader: ElasticLoader, body: Callable[[Any], object]) -> bool:
        """Works on the micro-batches of the next step, up to its gradient; returns False where the loop is over.

        Raises:
            RuntimeError: As `train` does, or if it is called by ``body``.
            SystemExit: With 0, on a rank that leaves the job.
        """
        if self._pushing:
            raise RuntimeError("job.run_step was called by its own body, which works on one micro-batch")
        if self._pushed_over is not loader:
            self.leave_pushed()
        if self._pushed is None:
            self._pushed, self._pushed_over = self.train(loader), loader
        self._pushing, self._outgrown = True, None
        try:
            for batch in self._pushed:
                with self._engine.redone_smaller():
                    body(batch)
                if self._session.sync_gradients:
                    return True
            self._pushed = self._pushed_over = None
            return False
        except BaseException as error:
            self._outgrown = self._session.micro if isinstance(error, torch.OutOfMemoryError) else None
            self._pushing = False
            self.leave_pushed()  # as an exception leaves a loop over the loader
            raise
        finally:
            self._pushing = False

    def leave_pushed(self) -> None:
        """Leaves the loop that `run_step` runs, if it is still open, as a ``break`` leaves a loop over the loader."""
        if self._pushed is not None and not self._pushing:
            pushed, self._pushed, self._pushed_over = self._pushed, None, None
            pushed.close()

    def outgrown_by(self, error: BaseException) -> MicroBatch | None:
        """Returns the micro-batch in which an error for lack of memory left the loop; None where it did not."""
        if self._pushed is not None:
            return self._session.micro
        return self._outgrown or (self._left_at.micro_batch_of(error) if self._left_at is not None else None)

    def train(self, loader: ElasticLoader) -> Generator[Any, None, None]:
        """Yields this rank's micro-batches until the loop over this loader is over; none where the job has done it.

        Raises:
            RuntimeError: If two training loaders are used at once, or a rank leaves the loop alone.
            SystemExit: With 0, on a rank that leaves the job.
        """
        yield from self._train(loader)
        self._engine.phases.draw_alike(*self._session.course.where)

    def _train(self, loader: ElasticLoader) -> Generator[Any, None, None]:
        session, engine = self._session, self._engine
        self.settle()
        put_back = rng.keep()
        if not engine.begin_loop(loader):
            return
        self._put_back, self._only_looks = put_back, True
        try:
            for micro in engine.rehearse():
                yield from self._issue(loader, micro)
            if not engine.admit():
                return
            self._only_looks |= session.position.step_in_epoch == 0  # as on the ranks that have trained there
            while engine.begin_step():
                for micro in engine.micro_batches():
                    yield from self._issue(loader, micro)
                engine.end_step()
            engine.end_loop()
        finally:
            engine.close_loop()

    def _issue(self, loader: ElasticLoader, micro: MicroBatch) -> Iterator[Any]:
        batch = loader.take(micro.piece)
        self._engine.begin_micro_batch(micro)
        try:
            yield batch
        except GeneratorExit:
            self._left_at = LeftAt(micro)
            self._note_left(loader, micro)
            raise
        self._only_looks = False
        self._engine.end_micro_batch(micro)

    # -- leaving a loop

    def _note_left(self, loader: ElasticLoader, micro: MicroBatch) -> None:
        """Handles that the script left the loop: by ``break``, or by an exception, which look the same here."""
        session = self._session
        if session.membership is None or micro.rehearsal:
            self._left_early = micro.calls > 0
            self._give_loop_back()
            return
        self._left_complete = micro.last and micro.synced
        if self._left_complete:
            self._engine.advance()
        else:
            session.buffers.drop_step()
            if self._only_looks and not micro.calls:
                self._give_loop_back()  # next(iter(loader)), say: nothing was done with the batch
                return
        self._left = loader
        self._engine.phases.draw_alike(*session.course.where)

    def _give_loop_back(self) -> None:
        self._session.course.give_loop_back()
        self._put_back()

    def sum(self, compute: Callable[[], Any]) -> Any:
        """Sums over all ranks; where the script has skipped what the job had done, it gets what came of it then."""
        session = self._session
        if session.data is not None:
            return compute()
        self.settle()
        key = session.course.key_of_sum()
        if session.membership is None and session.course.is_ahead(session.position):
            with contextlib.suppress(KeyError):
                return session.sums.take(key)
        result = compute()
        session.sums.note(key, result)
        if not session.course.counted and session.membership is not None and session.membership.rank == 0:
            session.report(Summed(session.sums.lasting()))  # a joiner skips the loops that are done
        return result

    def settle(self) -> None:
        """Handles a ``break`` out of the loop, known once the script returns: the peers must have left it, too.

        Raises:
            RuntimeError: If they have not, or it left the loop in the rehearsal, so that nothing was trained.
            SystemExit: With 0, on a rank that leaves the job.
        """
        self.leave_pushed()
        self._refuse_left_early()
        loader, self._left = self._left, None
        if loader is None:
            return
        if self._left_complete:
            self._engine.pass_boundary(loader)
        self._engine.leave_loop(loader)

    def note_end(self) -> None:
        """Handles the end of the script, which may have left its loop: reports the complete step.

        It does not wait for peers: this process may end with an exit code of its own, as by ``sys.exit(1)``. Where all
        end well at different steps, the coordinator reports that.

        Raises:
            RuntimeError: If the loop was left in the rehearsal, so that nothing was trained.
        """
        self.leave_pushed()
        self._refuse_left_early()
        loader, self._left = self._left, None
        if loader is not None and self._left_complete:
            self._engine.note_last_step(loader)

    def _refuse_left_early(self) -> None:
        if self._left_early:
            self._left_early = False
            raise RuntimeError(
                "the loop body left the training loop in its rehearsal, after job.backward, by break or by an "
                "exception that the script took: the first batches of a process are tried before it is admitted, and "
                "nothing of them is kept. Leave the loop where a step is complete (`if job.sync_gradients and ...: "
                "break`), or call job.stop()"
            )
