"""The interface of engines, which create and end a job's nodes; the coordinator does not know where nodes live."""

from __future__ import annotations

from dataclasses import dataclass
from subprocess import Popen
from typing import Protocol

__all__ = ["Engine", "EngineAway", "NodeExit", "NodeSpec"]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to start.

    Attributes:
        node: Its number, never used again.
        first_member: Number of its first rank's member; the others follow.
        respawn: Whether it restarts its workers when the job changes its size.
        over_quota: Whether it is above the job's guarantee, where such nodes differ from the others.
    """

    node: int
    first_member: int
    nproc_per_node: int
    respawn: bool = False
    over_quota: bool = False


@dataclass(frozen=True, slots=True)
class NodeExit:
    """A node that is gone, with everything it had started; or that waits for another place, with ``again``.

    Attributes:
        exit_code: Its agent's exit code; minus the signal's number when a signal ended it; None if nobody can know.
        why: How it ended, where the engine knows more; else empty.
        taken: Whether it was taken from outside, and did not fail by itself.
        last_line: The last of its agent's log, where the engine has kept that for one that failed; else empty.
        again: What it waits for before it starts again under the same number, unless it is killed; else empty.
        pod: The pod that is gone, of one that waits so.
    """

    node: int
    exit_code: int | None
    why: str = ""
    taken: bool = False
    last_line: str = ""
    again: str = ""
    pod: str = ""


class EngineAway(OSError):
    """No node can be started at the moment; this does not count as a failure of the node."""


class Engine(Protocol):
    """Creates and ends nodes. No call waits for a node but ``close``."""

    def start(self, spec: NodeSpec) -> None:
        """Starts a node.

        Raises:
            EngineAway: If nothing can be started at the moment.
            OSError: If it can't be started.
        """

    def agent(self, node: int) -> Popen[bytes] | None:
        """Returns the process of a node's agent where it is a child of this one, so that its end can be watched."""

    def notice(self, node: int) -> None:
        """Sends a termination notice to a node: SIGTERM to its agent."""

    def kill(self, node: int) -> None:
        """Ends a node at once, with everything it started."""

    def poll(self) -> list[NodeExit]:
        """Returns the nodes that are gone since the last call, each once."""

    def close(self) -> None:
        """Ends all nodes and waits until they are gone."""
