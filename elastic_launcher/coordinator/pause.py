"""What is known of a job that has lost its quota, and waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """How far a job is that has lost its quota, and waits for it."""

    SAVING = "saving"
    ENDING = "ending"
    LOOKING = "looking"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Pause:
    """The job has lost its quota: it is saved, its nodes end, and it waits.

    Attributes:
        message: What took the quota.
        stage: How far it is.
        until: When the first and the last stage are over at the latest.
        since: When it began to wait.
    """

    message: str
    stage: Stage
    until: float
    since: float = 0.0

    @property
    def released(self) -> bool:
        """Whether none of the job's members trains any more."""
        return self.stage is not Stage.SAVING
