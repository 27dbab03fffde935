"""Reports the progress of the training from rank 0, seldom enough that a long job's events stay small."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from elastic_launcher.control import messages
from elastic_launcher.events import significant
from elastic_launcher.torch.membership.reports import FLUSH_SECONDS
from elastic_launcher.torch.statistical_epochs import expected_steps, phase_epochs
from elastic_launcher.torch.step.adaptive_values import adaptive_values

if TYPE_CHECKING:
    from elastic_launcher.torch.data.training_data import TrainingData
    from elastic_launcher.torch.session import Session

DIGITS = 5  # significant ones of an adaptive batch's values
FIRST_INTERVAL = 1.0  # seconds between two reports
REPORTS_PER_DOUBLING = 10_000  # the interval grows with the job's age, so that its events stay below 50 MB


class Progress:
    """Reports steps, loss and speed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = time.monotonic()
        self._reported_at = self._began
        self._reported_samples = 0
        self._reported_step = -1
        self._epoch = (0, 0)  # phase and epoch
        self._epoch_began = 0  # at which step
        self._epoch_steps = 0  # of the last whole epoch

    def end_epoch(self) -> None:
        """Notes that an epoch is over."""
        if self._knows_epoch:
            self._epoch_steps = self._session.position.step - self._epoch_began

    @property
    def _knows_epoch(self) -> bool:
        """Whether it is known where the present epoch began: not where this rank has come after its first loop."""
        return self._epoch == (self._session.position.phase, self._session.position.epoch)

    def _total(self, data: TrainingData, steps: int) -> int | None:
        """Returns the steps up to the end of this phase, if all its epochs are as long as the loop that runs."""
        position, epochs = self._session.position, self._session.epochs
        if epochs is None:
            return None
        if self._session.autoscaling is not None:
            return expected_steps(self._session, self._session.data_pass(data, position))
        loop_began = position.step - position.step_in_epoch
        began = self._epoch_began if self._knows_epoch else loop_began
        this_epoch = max(self._epoch_steps, loop_began - began + steps)
        return began + this_epoch * (epochs - position.epoch)

    def report(self, data: TrainingData, *, at_epoch_end: bool = False) -> None:
        """Reports, if it is this rank's turn and it is time; called after each step on all ranks."""
        session = self._session
        position = session.position
        if not position.loop:
            self._epoch = (position.phase, position.epoch)
            self._epoch_began = position.step - position.step_in_epoch
        if (
            session.member is None
            or session.membership is None
            or session.membership.rank != 0
            or position.step == self._reported_step
        ):
            return
        now = time.monotonic()
        interval = max(FIRST_INTERVAL, (now - self._began) / REPORTS_PER_DOUBLING)
        if not at_epoch_end and now - self._reported_at < interval:
            return
        steps = session.data_pass(data, position).steps
        elapsed = max(now - self._reported_at, 1e-9)
        rate = (position.samples - self._reported_samples) / elapsed if self._reported_step >= 0 else None
        session.report(
            messages.Progress(
                step=position.step,
                epoch=position.epoch,
                loss=session.loss if math.isfinite(session.loss) else str(session.loss),
                samples_per_second=round(rate, 2) if rate is not None else None,
                steps_per_epoch=steps,
                epochs=session.epochs,
                total_steps=self._total(data, steps),
                samples=position.samples,
                phase=position.phase,
                adaptive={name: _short(one) for name, one in adaptive_values(session).items()} or None,
                statistical_epoch=None if session.autoscaling is None else round(phase_epochs(session), 4),
            )
        )
        self._reported_at, self._reported_samples, self._reported_step = now, position.samples, position.step

    def finish(self) -> None:
        """Reports that the training loop is over on this rank."""
        position = self._session.position
        reason = self._session.stop_reason or None
        self._session.report(messages.Done(position.step, position.samples, reason, position.phase))
        if self._session.member is not None:
            self._session.member.reports.flush(FLUSH_SECONDS)  # from here on os._exit may end the process


def _short(value: float) -> float:
    return value if value == int(value) else significant(value, DIGITS)  # a batch is whole
