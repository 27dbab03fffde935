"""The steps of a training, as Lightning's loops ask for them: epoch by epoch, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from elastic_launcher.torch import Job

ENDLESS = 1_000_000_000  # epochs
LEFT = (
    "Lightning has left a step that has begun on all ranks. If on_train_batch_start returns -1, use "
    "Trainer(limit_train_batches=...), or set trainer.should_stop in on_train_batch_end. If the module has an "
    "optimizer_step, let it call optimizer.step(closure=optimizer_closure) each time"
)


class Stream:
    """This rank's micro-batches in one call of `fit`.

    A step begins where Lightning asks for its next batch, so that all that is between two steps (a resize, a
    checkpoint, the end of this rank) comes while Lightning's loops are at rest.

    Args:
        job: The job.
        loader: A loader of the job.
        epochs: Epochs of the whole `fit`.
        spare: Works on a micro-batch of which nothing is kept: of the rehearsal, and those of a rank that joins.
        before_step: Called between two steps.
        leave: Called where this process leaves the job.

    Attributes:
        batch: The micro-batch to work on next; None where the step's gradient is there already.
        in_step: Whether a step has begun that is not done.
        over: Whether the job has ended before its last epoch.
    """

    def __init__(
        self,
        job: Job,
        loader: Any,
        epochs: int,
        spare: Callable[[Any], None],
        before_step: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self.batch: Any = None
        self.in_step = self.over = False
        self._leave = leave
        self._job = job
        self._loader = loader
        self._epochs = job.epochs(epochs)
        self._spare = spare
        self._before_step = before_step
        self._micros: Iterator[Any] | None = None
        self._ahead = False  # whether a step has begun for which Lightning has not asked yet

    def begin_epoch(self) -> bool:
        """Begins the next epoch with its first step; returns False where the training is over.

        Raises:
            RuntimeError: If Lightning has left the last epoch in a step.
        """
        if self.in_step:
            raise RuntimeError(LEFT)
        self._leave_epoch()
        for _ in self._epochs:
            self._micros = iter(self._loader)
            self._ahead = self.begin_step()
            if self._ahead:
                return True
            if self._job.over:
                self.over = True
                break
        return False

    def _leave_epoch(self) -> None:
        """Ends the loop over the loader: after its last step, or before that, as all ranks do."""
        if self._micros is not None and self._job.step_in_epoch >= self._loader.steps_per_epoch:
            self.next()
        if self._micros is not None:
            self._micros.close()  # type: ignore[attr-defined]
        self._micros = None

    def begin_step(self) -> bool:
        """Begins the next step, if it has not begun; returns False where there is none left of the epoch.

        Raises:
            RuntimeError: If Lightning has left the last one before its end.
        """
        if self._ahead:
            self._ahead = False
            return True
        if self.in_step:
            raise RuntimeError(LEFT)
        self._before_step()
        joins = self._job.rank is None
        while self.next():
            micro = self._job.micro
            assert micro is not None
            if not micro.rehearsal and not (joins and self._job.samples == 0):
                self.in_step = True
                return True
            self._spare(self.batch)
            if self._job.sync_gradients:  # this rank has joined with this step
                self.batch, self.in_step = None, True
                return True
        self.over |= self._job.over
        return False

    def next(self) -> bool:
        """Asks for the next micro-batch; returns False where the epoch or the job is over."""
        try:
            self.batch = next(self._micros or iter(()))
        except StopIteration:
            self.batch = self._micros = None
            self.over |= self.in_step
            self.in_step = False
            return False
        except SystemExit:
            self._leave()
            raise
        return True

    def end_step(self) -> None:
        """Notes that the step is done."""
        self.in_step = False

    def finish(self, stop: bool) -> None:
        """Ends the training on all ranks, after the last step of `fit`.

        Args:
            stop: Whether epochs are left.
        """
        if stop and not self._job.over:
            self._job.stop("ended by Lightning's Trainer")
            self.next()
        self._leave_epoch()
        for _ in self._epochs:
            pass


class Steps:
    """What Lightning's loops take for the training loader: its batches are optimizer steps."""

    def __init__(
        self, dataset: Any, steps: int, begin_epoch: Callable[[], None], begin_step: Callable[[], Any]
    ) -> None:
        self.dataset = dataset
        self.sampler = EpochStart(begin_epoch)
        self._steps = steps
        self._begin_step = begin_step

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._begin_step()


class EpochStart:
    """Stands where Lightning looks for a sampler, which it tells the number of each epoch."""

    def __init__(self, begin_epoch: Callable[[], None]) -> None:
        self._begin_epoch = begin_epoch

    def set_epoch(self, epoch: int) -> None:
        """Begins the next epoch."""
        self._begin_epoch()
