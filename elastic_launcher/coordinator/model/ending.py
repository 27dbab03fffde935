"""How a job comes to an end, or to stand still: what it is stopped, halted or ended for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """How much a piece of evidence says about why a job fails; the heaviest is named."""

    DEATH = 1
    """A process ended that should not have."""
    PEER = 2
    """The script said that it lost a peer."""
    SCRIPT = 3
    """The script said what is wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job will end; for a moment yet, until ``until``, better evidence of the cause is collected.

    Attributes:
        message: What happened, to what, and what to do.
        weight: What the message rests on.
        log_of: Node and local rank whose last lines are shown with the message.
        traceback: The script's own account, if it gave one.
        uncaught: Whether an exception that only the log shows is likely to be the cause.
        curable: Whether the job could go on from its newest checkpoint.
        excusable: Whether it would be, if it came of the loss of another node.
    """

    exit_code: int
    message: str
    weight: Weight
    until: float
    log_of: tuple[int, int] | None = None
    traceback: str = ""
    uncaught: bool = False
    curable: bool = False
    excusable: bool = False


@dataclass(frozen=True, slots=True)
class Stopping:
    """The job ends as soon as it is saved.

    Attributes:
        exit_code: What the launcher exits with.
        cause: What it was stopped by.
        until: When it ends, saved or not.
        joint: The text between the cause and the step, which is the last one before the save.
    """

    exit_code: int
    cause: str
    until: float
    joint: str = " "


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to stop that came while a verdict was open: the job may go on after it, and is to end then.

    Attributes:
        why: What it is stopped by.
        until: When the launcher is killed, in monotonic seconds; infinite if it is not.
    """

    why: str
    until: float


@dataclass(frozen=True, slots=True)
class Halting:
    """The training halts, and is saved.

    Attributes:
        at_once: Whether members were ordered not to wait for the end of the step.
        standing: Members whose training has halted.
        saver: The member that was asked to save in the place of the first, which is gone; 0 for none.
    """

    at_once: bool = False
    standing: frozenset[int] = frozenset()
    saver: int = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart of the workers, by a ``hint``, ``notice`` or ``failure``, since the training halted for it."""

    cause: str
    since: float
