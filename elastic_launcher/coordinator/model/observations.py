"""The inputs of ``decide``. Each observation carries the monotonic time at which it was made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from elastic_launcher.control.messages import Report
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.model.state import State, Target


@dataclass(frozen=True, slots=True)
class Observation:
    """The base of all observations."""

    now: float


@dataclass(frozen=True, slots=True)
class Tick(Observation):
    """Time went on."""


@dataclass(frozen=True, slots=True)
class TargetChanged(Observation):
    """Hints, or the start, ask for another number of nodes; ``message`` says why it is below the minimum."""

    target: Target
    message: str = ""


@dataclass(frozen=True, slots=True)
class MemberJoined(Observation):
    """A member's process called ``init``."""

    member: int
    pid: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class MemberReported(Observation):
    """A member reported."""

    member: int
    report: Report


@dataclass(frozen=True, slots=True)
class MemberSilent(Observation):
    """A member was silent for so many seconds, although its process lives.

    Attributes:
        given_up: Whether that is too long.
        waited_for: Whether it is too long since others wait for it.
        over: Whether it reports again.
    """

    member: int
    seconds: float
    given_up: bool = False
    waited_for: bool = True
    over: bool = False


@dataclass(frozen=True, slots=True)
class NodeSilent(Observation):
    """A node's agent was silent for so many seconds, which is too long."""

    node: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MemberStuck(Observation):
    """A member lives, and has got no further inside a step for so many seconds while others wait for it."""

    member: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupHangs(Observation):
    """A member has been in a collective operation of the script's own for so many seconds while the others wait."""

    member: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MembersApart(Observation):
    """All living members wait for each other in different operations: each with its operation."""

    waits: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class MemberAwaited(Observation):
    """A member has kept another one, the ``waiter``, waiting for long.

    Attributes:
        busy: Seconds for which the member has been ``doing`` something else.
        waits: Seconds for which the waiter has waited, in ``waits_in``.
        longest: Seconds after which the member is given up; infinite if it is not.
    """

    member: int
    doing: str
    busy: float
    waiter: int
    waits_in: str
    waits: float
    longest: float


@dataclass(frozen=True, slots=True)
class MemberSlow(Observation):
    """A member has become a straggler, or (``over``) is none any more.

    Attributes:
        factor: How many times the median its own time of a step is.
        seconds: Its own time of a step.
    """

    member: int
    factor: float
    over: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class NoticeExpires(Observation):
    """Nodes with a notice can't wait for the next boundary."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeNotStarted(Observation):
    """The engine could not start a node; ``away``: nor any other at the moment."""

    node: int
    message: str
    away: bool = False


@dataclass(frozen=True, slots=True)
class NodeUnfit(Observation):
    """A node's machine lacks what the job needs, and the node has started nothing; ``message`` says what to mend."""

    node: int
    message: str


@dataclass(frozen=True, slots=True)
class NodeNoticed(Observation):
    """A node received a termination notice.

    Attributes:
        source: Who said so.
        within: Seconds after which it may be killed, if known; never more than ``--grace-period`` counts.
        again: Whether its queue has taken it back, and may admit it again.
        pod: The pod that received it, if known.
    """

    node: int
    source: str
    within: float = math.inf
    again: bool = False
    pod: str = ""


@dataclass(frozen=True, slots=True)
class NodeRegistered(Observation):
    """A node's agent begins in a pod, and asks what it is to run."""

    node: int
    pod: str


@dataclass(frozen=True, slots=True)
class NodeWaits(Observation):
    """A node's torchrun waits for a round to start its workers in (restart-based resize)."""

    node: int


@dataclass(frozen=True, slots=True)
class RankStarted(Observation):
    """torchrun started a worker (restart-based resize)."""

    node: int
    local_rank: int
    pid: int
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class RankEnded(Observation):
    """A member's process ended."""

    node: int
    local_rank: int
    exit: Exit


@dataclass(frozen=True, slots=True)
class NodeExited(Observation):
    """A node's agent ended.

    Attributes:
        exit_code: The agent's, negative for a signal; None if nobody can know.
        ranks: How its members' processes ended, by local rank, where that is known.
        why: How it ended, where the engine knows more; else empty.
        taken: Whether it was taken from outside: that is nobody's failure.
        last_line: The last of the agent's log, where the engine has kept that for one that failed; else empty.
        again: What it waits for before it starts again, unless it is killed; else empty.
        pod: Which of its pods is gone then, if that is known.
    """

    node: int
    exit_code: int | None
    ranks: tuple[tuple[int, Exit], ...] = ()
    why: str = ""
    taken: bool = False
    last_line: str = ""
    again: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class AgentKilled(Observation):
    """A signal ended a node's agent, and the node's other processes are ending with it; ``NodeExited`` follows.

    Attributes:
        ranks: How its members' processes ended, by local rank, where that is known.
    """

    node: int
    signal: int
    ranks: tuple[tuple[int, Exit], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStands(Observation):
    """The reason why a node's agent has not begun; empty once it has.

    ``queued`` means that it waits for its queue, ``unplaced`` that it holds no place, for that or another reason.
    """

    node: int
    waits: str
    queued: bool = False
    unplaced: bool = False


@dataclass(frozen=True, slots=True)
class SaveAsked(Observation):
    """Somebody asks for a checkpoint."""


@dataclass(frozen=True, slots=True)
class StopAsked(Observation):
    """The job is to be saved and to end; ``within`` seconds later the launcher is killed, if that is finite."""

    why: str
    within: float = math.inf


@dataclass(frozen=True, slots=True)
class ResumePointFound(Observation):
    """The search has found the state in which a job without nodes resumes, and checkpoints that it can't use."""

    first: State
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interrupted(Observation):
    """The launcher got SIGINT or SIGTERM."""

    signal: int
