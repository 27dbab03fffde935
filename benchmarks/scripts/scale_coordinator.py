"""A coordinator whose nodes only exist for its caller, who plays their members over the control API.

Arguments: folder, nodes, ranks a node.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.coordinator import Coordinator
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.resume.resume_point import Origin
from elastic_launcher.coordinator.runtime.store import Store
from elastic_launcher.engines import NodeExit, NodeSpec
from elastic_launcher.events import EventLog


class PlayedNodes:
    """An engine that starts nothing."""

    def __init__(self) -> None:
        self._gone: list[NodeExit] = []

    def start(self, spec: NodeSpec) -> None:
        """The caller knows which members come."""

    def agent(self, node: int) -> None:
        """No agent is a process."""

    def notice(self, node: int) -> None:
        """The caller gives notices."""

    def kill(self, node: int) -> None:
        """Ends a node."""
        self._gone.append(NodeExit(node, -9))

    def poll(self) -> list[NodeExit]:
        """Returns the nodes that are gone."""
        gone, self._gone = self._gone, []
        return gone

    def close(self) -> None:
        """Nothing runs."""


class NoStore(Store):
    """No group meets."""

    async def serve(self) -> None:
        """Serves nothing."""


class Patient(Origin):
    """The beginning of a job whose groups may take long to form: all members are played by one process."""

    def first_state(self, config: JobConfig, store: str) -> State:
        """Returns what is known when the job begins."""
        state = super().first_state(config, store)
        return replace(state, rules=replace(state.rules, form_timeout=300.0))


def main() -> None:
    """Runs it until it is killed."""
    folder, nodes, nproc = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for name in ("logs", "nodes"):
        (folder / name).mkdir()
    patient = {"heartbeat_timeout": 300.0, "progress_timeout": 3000.0}
    config = JobConfig(script="train.py", min_nodes=max(1, nodes - 1), max_nodes=nodes, nproc_per_node=nproc, **patient)
    events = EventLog(folder / "events.jsonl")
    coordinator = Coordinator(config, folder, PlayedNodes(), events, store=NoStore(), origin=Patient())
    asyncio.run(coordinator.run())


if __name__ == "__main__":
    main()
