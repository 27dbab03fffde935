"""The nodes of a job and their members, each with its phase."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Failed


class Phase(StrEnum):
    """The phase of a node. It only moves down this list, though it may skip; until the node has trained, it may go
    back to the first.
    """

    STARTING = "starting"
    """Its processes come up; not all of its members are warm."""
    WARM = "warm"
    """All its members wait for admission."""
    ADMITTED = "admitted"
    """Its members train."""
    LEAVING = "leaving"
    """Its members left the training at a boundary; its processes are about to end."""
    ENDING = "ending"
    """It was killed, by us; its processes are about to be gone."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Node:
    """One agent and its members.

    Attributes:
        number: Never used again.
        members: Its members, by local rank; where its queue takes it back before it trained, its next pod has others.
        started_at: When it was asked for (monotonic seconds).
        cause: Why it comes: ``start``, ``hint``, ``failure`` (in the place of one that was lost), ``notice`` (of one
            whose machine is wanted), or ``queue`` where its queue admitted it only a while after it was asked for.
        since: When it came to this phase.
        leave: Why it has to leave at the next boundary (``hint``, ``notice``); empty if it has not.
        leave_by: When it may be killed, where a notice or a hint says so.
        waits: What it waits for before it can begin; empty where that is nothing.
        queued: Whether it waits for its queue to admit it: it holds no place then.
        unplaced: Whether it waits for that, for quota, or for a machine with room.
        began_at: When it was seen to begin, where it had waited.
        pod: The pod that its members are in, in a cluster; empty until that has begun.
        over_quota: Whether it was made above the job's guarantee, where such nodes differ from the others.
    """

    number: int
    members: tuple[int, ...]
    started_at: float
    cause: str
    phase: Phase = Phase.STARTING
    since: float = 0.0
    leave: str = ""
    leave_by: float = math.inf
    waits: str = ""
    queued: bool = False
    unplaced: bool = False
    began_at: float = -math.inf
    pod: str = ""
    over_quota: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: by itself with a code, or by a signal."""

    code: int | None = None
    signal: int | None = None

    @property
    def clean(self) -> bool:
        """Whether it ended by itself and well."""
        return self.code == 0


@dataclass(frozen=True, slots=True)
class Member:
    """One worker process.

    Attributes:
        number: Never used again.
        pid: Its process, once it has joined.
        fingerprint: What must be equal among members; None until it is warm.
        step: Optimizer steps that it has reported.
        left: Whether it left the training at a boundary.
        lost: Whether its node was lost without notice while it trained.
        done: Whether its training loop is over.
        ended: Whether its script has ended.
        exit_by: Until when the coordinator waits for its exit code then, which separates a failure from a normal end.
        lingers: Whether a warning was given that its process does not end after that; its siblings still run.
        failure: The exception that ended its script.
        borne: What its script failed with, where that cost its node only; empty if it has not.
        place: Rank and world size that torchrun gave it, where the script does not use our library.
        wait: Which of its waits for admission it reported last.
        outgrown: Whether its process ends since its micro-batches were too large: the next one's are smaller.
    """

    number: int
    node: int
    local_rank: int
    pid: int | None = None
    fingerprint: Mapping[str, Any] | None = None
    step: int = 0
    left: bool = False
    lost: bool = False
    done: bool = False
    ended: bool = False
    exit_by: float = -math.inf
    lingers: bool = False
    failure: Failed | None = None
    borne: str = ""
    exit: Exit | None = None
    place: tuple[int, int] | None = None
    wait: int = 0
    outgrown: bool = False

    @property
    def gave_up(self) -> bool:
        """Whether our library ended its process, without a launcher, or without a state to go on from."""
        by_code = self.exit is not None and self.exit.code == ExitCode.STOPPED
        return by_code and self.failure is None and not self.ended
