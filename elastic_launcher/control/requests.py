"""The other requests and answers of the control API, by members and by nodes' agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from elastic_launcher.control.messages import name_on_wire


class Join(Struct, frozen=True):
    """A member's process called ``init``."""

    pid: int
    node: int | None = None
    local_rank: int = 0
    version: str = ""


class Standing(Struct, frozen=True):
    """The progress of the job, for a member that joins: phase and epoch of the next step, and how many steps are done.

    Attributes:
        sums: What sums over ranks came to, for those that begin with the script's first line.
        begun: Whether there was a generation.
        store: ``host:port`` of the store in which groups meet.
        checkpoint: The folder of the checkpoint that the job resumes from; "" for a new job.
        expected_world_size: How many ranks there will be when all wanted nodes have come.
        micro_batch_limits: By the kind of device, most samples of a micro-batch that fit where one did not.
        heartbeat_interval: Seconds within which the member is to ask for orders again.
    """

    phase: int = 0
    epoch: int = 0
    sums: Mapping[str, Any] = {}
    step: int = 0
    begun: bool = False
    store: str = ""
    term: int = 1
    checkpoint: str = ""
    expected_world_size: int = 1
    least_world_size: int = 0
    micro_batch_limits: Mapping[str, int] = {}
    heartbeat_interval: float = 2.0


class Welcome(Struct, frozen=True):
    """What a member that introduced itself needs to go on."""

    store: str
    term: int = 1


class Poll(Struct, frozen=True):
    """The query of a request for orders after one, which waits so many seconds for another, beside `Vitals`."""

    after: int = 0
    wait: float = 2.0
    term: int | None = None


class Orders(Struct, frozen=True):
    """The orders after that, each with its number ``seq``; of the coordinator of a term."""

    orders: list[dict[str, Any]]
    term: int | None = None


class Reports(Struct, frozen=True):
    """A member's reports; each has a number ``n``, by which a repeated one is recognized."""

    reports: list[dict[str, Any]]
    term: int | None = None


class NodeMessage(Struct, frozen=True, kw_only=True):
    """The base of all messages of an agent.

    Attributes:
        first_member: Of the node's ranks: by it the coordinator knows which of the node's pods it hears.
    """

    first_member: int | UnsetType = UNSET

    @classmethod
    def path(cls) -> str:
        """Returns its place under the node's."""
        return name_on_wire(cls.__name__)


class Heartbeat(NodeMessage, frozen=True, kw_only=True):
    """The agent lives, had so many notices, and answers for the members that it was asked about."""

    pid: int
    notices: int = 0
    cpu: Mapping[int, float] | UnsetType = UNSET


class HeartbeatAnswer(Struct, frozen=True, omit_defaults=True):
    """Whether the node has to end its workers and leave, and the members that the next heartbeat is asked about."""

    leave: bool = False
    about: tuple[int, ...] = ()


class Life(NodeMessage, frozen=True, kw_only=True):
    """Something happened to workers that are started again and again; see `agent.rank_exec.tell_life`.

    Attributes:
        n: Its number.
        started: Local rank of a worker that was started, as ``pid``, with ``rank`` and ``world_size``.
        ended: Local rank of one that ended, by ``exit_code`` or ``signal``.
        waits: The round after which the node waits for another.
    """

    n: int
    started: int | UnsetType = UNSET
    pid: int | UnsetType = UNSET
    rank: int | UnsetType = UNSET
    world_size: int | UnsetType = UNSET
    ended: int | UnsetType = UNSET
    exit_code: int | None | UnsetType = UNSET
    signal: int | None | UnsetType = UNSET
    waits: int | UnsetType = UNSET


class Notice(NodeMessage, frozen=True, kw_only=True):
    """The node received a termination notice."""

    source: str = "signal"


class RankEnded(NodeMessage, frozen=True, kw_only=True):
    """A rank's process ended, by itself or by a signal."""

    local_rank: int
    exit_code: int | None = None
    signal: int | None = None


class Log(NodeMessage, frozen=True, kw_only=True):
    """What a rank's script wrote after ``offset`` bytes, in base64."""

    local_rank: int
    offset: int
    data: str = ""


class Sample(NodeMessage, frozen=True, kw_only=True):
    """A file that the node has made in the folder of checkpoints, for the launcher to judge."""

    name: str = ""


class SampleAnswer(Struct, frozen=True):
    """What the launcher can't do with it; "" where there is nothing."""

    lack: str


class Unfit(NodeMessage, frozen=True, kw_only=True):
    """The node's machine lacks what the job needs."""

    message: str = ""


class NodeJob(Struct, frozen=True):
    """All that a node has to know before it starts, where it sees none of the launcher's files.

    Attributes:
        config: As in job.json, like ``content``.
        code: The files to run, by name, the script first.
        landmark: What is in the folder of checkpoints, if it is to be known by that.
    """

    id: str
    config: dict[str, Any]
    store: str
    content: dict[str, Any]
    code: dict[str, str]
    landmark: dict[str, str] | None
    first_member: int
    term: int


class Refused(Struct, frozen=True, omit_defaults=True):
    """Why a request was refused.

    Attributes:
        used: The last counter of its sender, where only that is wrong; None where the signature is.
        term: The coordinator's, where the request was one of another term.
    """

    error: str = ""
    used: int | None | UnsetType = UNSET
    term: int | None = None
