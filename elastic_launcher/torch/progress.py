"""Tells the coordinator how far the training is: rank 0 does, seldom enough that a long job's events stay small."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_launcher.torch.loader import ElasticLoader
    from elastic_launcher.torch.session import Session

FIRST_INTERVAL = 1.0  # seconds between two reports
REPORTS_PER_DOUBLING = 10_000  # the interval grows with the job's age, so that its events stay below 50 MB


class Progress:
    """Reports steps, loss and speed.

    Args:
        session: The job.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = time.monotonic()
        self._told = self._began
        self._told_samples = 0
        self._told_step = -1

    def tell(self, loader: ElasticLoader, *, at_epoch_end: bool = False) -> None:
        """Reports, if it is this rank's turn and it is time."""
        session = self._session
        position = session.position
        if (
            session.member is None
            or session.place is None
            or session.place.rank != 0
            or position.step == self._told_step
        ):
            return
        now = time.monotonic()
        interval = max(FIRST_INTERVAL, (now - self._began) / REPORTS_PER_DOUBLING)
        if not at_epoch_end and now - self._told < interval:
            return
        elapsed = max(now - self._told, 1e-9)
        rate = (position.samples - self._told_samples) / elapsed if self._told_step >= 0 else None
        total = loader.steps_per_epoch * session.epochs if session.epochs is not None else None
        session.report(
            "progress",
            step=position.step,
            epoch=position.epoch,
            loss=session.loss
            if session.loss == session.loss and abs(session.loss) != float("inf")
            else str(session.loss),
            samples_per_second=round(rate, 2) if rate is not None else None,
            steps_per_epoch=loader.steps_per_epoch,
            epochs=session.epochs,
            total_steps=total,
            samples=position.samples,
        )
        self._told, self._told_samples, self._told_step = now, position.samples, position.step

    def finish(self) -> None:
        """Reports that the training loop is over on this rank."""
        position = self._session.position
        reason = self._session.stop_reason
        self._session.report(
            "done", step=position.step, samples=position.samples, **({"reason": reason} if reason else {})
        )
