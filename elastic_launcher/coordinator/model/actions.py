"""The actions that ``decide`` returns for the coordinator to execute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_launcher.control import messages


@dataclass(frozen=True, slots=True)
class Action:
    """The base of all actions."""


@dataclass(frozen=True, slots=True)
class StartNode(Action):
    """Ask the engine for a node; one above the job's guarantee if ``over_quota``."""

    node: int
    first_member: int
    nproc_per_node: int
    over_quota: bool = False


@dataclass(frozen=True, slots=True)
class KillNode(Action):
    """Have the engine kill a node's whole tree."""

    node: int


@dataclass(frozen=True, slots=True)
class OpenRound(Action):
    """Have torchrun start workers on these nodes, in rank order (restart-based resize)."""

    number: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseRound(Action):
    """Have torchrun end the workers of a round."""

    number: int


@dataclass(frozen=True, slots=True)
class LetGo(Action):
    """Tell a node to end its workers, with SIGTERM at first, and to go."""

    node: int


@dataclass(frozen=True, slots=True)
class RestartAll(Action):
    """End all nodes, and restart the job from its last checkpoint."""


@dataclass(frozen=True, slots=True)
class Order(Action):
    """Give an order to members."""

    members: tuple[int, ...]
    order: messages.Order


@dataclass(frozen=True, slots=True)
class Emit(Action):
    """Write an event."""

    kind: str
    generation: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoteNotice(Action):
    """Tell the rule for growth that the job shrinks, or a node goes, in answer to a notice."""


@dataclass(frozen=True, slots=True)
class FindResumePoint(Action):
    """Find the checkpoint that the job resumes from: all its nodes are gone."""


@dataclass(frozen=True, slots=True)
class Finish(Action):
    """End the job.

    Attributes:
        exit_code: What the launcher exits with.
        message: What happened.
        log_of: Node and local rank whose last lines belong to the message.
        traceback: The script's own account, if it gave one.
        uncaught: Whether an exception that only the log shows is likely to be the cause.
        curable: Whether the job could go on from its newest checkpoint.
    """

    exit_code: int
    message: str
    log_of: tuple[int, int] | None = None
    traceback: str = ""
    uncaught: bool = False
    curable: bool = False
