"""The state of a job that waits for quota or nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Lack(StrEnum):
    """The resource that a job waits for."""

    QUOTA = "quota"
    """The hints don't allow its minimum: nothing is asked for until they do."""
    NODES = "nodes"
    """The hints allow it, and fewer nodes than that are there: others are asked for."""


class Stage(StrEnum):
    """The stage of a job that pauses."""

    SAVING = "saving"
    ENDING = "ending"
    LOOKING = "looking"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class EarlierWait:
    """A wait for nodes that a launcher before this one had begun, and that goes on.

    Attributes:
        message: What took the nodes.
        seconds: For how long launchers have waited, by their events.
        cause: What the next generation gives as its cause; empty where that is what it would be anyway.
        away: Seconds since the last event of them, in which no launcher ran.
    """

    message: str
    seconds: float
    cause: str = ""
    away: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """The job lacks something: it is saved, its nodes end, and it waits.

    Attributes:
        message: What took it.
        stage: How far it is.
        until: When the first and the last stage are over at the latest.
        since: When it began to wait.
        lack: What it lacks.
        halted_at: When its training halted.
    """

    message: str
    stage: Stage
    until: float
    since: float = 0.0
    lack: Lack = Lack.QUOTA
    halted_at: float = 0.0

    @property
    def released(self) -> bool:
        """Whether none of the job's members trains any more."""
        return self.stage is not Stage.SAVING

    @property
    def asks(self) -> bool:
        """Whether nodes are asked for, as for a job that begins."""
        return self.stage is Stage.WAITING and self.lack is Lack.NODES
