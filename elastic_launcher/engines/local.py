"""The engine for this machine: each node is a session of processes under its own agent, with its own GPUs if any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elastic_launcher import variables
from elastic_launcher.config import JobConfig
from elastic_launcher.engines import NodeExit, NodeSpec
from elastic_launcher.engines.adopted import AdoptedAgent, FoundNode, environment_of, find_nodes
from elastic_launcher.host import processes
from elastic_launcher.host.machine import cores, threads_per_rank
from elastic_launcher.workdir import Layout

POLL = 0.02
"""Seconds between looks while all nodes are being ended."""
LONGEST_LINE = 4096
"""Bytes of a node's log in which its last line is looked for."""
LAST_PATIENCE = 10.0
"""Seconds for killed processes to be gone; what outlasts that is held by the kernel, and waiting on would not help."""


@dataclass(slots=True)
class _Node:
    """A node under way.

    Attributes:
        slot: Which of the places on this machine it has.
        ended: When its agent was first seen to have ended, or None.
    """

    agent: subprocess.Popen[bytes] | AdoptedAgent
    slot: int
    ended: float | None = field(default=None)

    def has_ended(self) -> bool:
        """Returns whether its agent has ended."""
        return self.agent.has_ended() if isinstance(self.agent, AdoptedAgent) else self.agent.poll() is not None


class LocalEngine:
    """Starts nodes as processes of this machine.

    Args:
        layout: Its work directory, with ``control.json`` in it before the first node is started.
        gpus: Ids of the GPUs to divide; empty hides them all; None leaves devices to the scripts.
        environment: What nodes inherit.
    """

    def __init__(
        self,
        config: JobConfig,
        layout: Layout,
        gpus: Sequence[str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._config = config
        self._layout = layout
        self._gpus = gpus
        self._environment = node_environment(config, layout, environment)
        self._nodes: dict[int, _Node] = {}

    def find(self) -> list[FoundNode]:
        """Returns the nodes of this job that an earlier launcher has left."""
        return find_nodes(str(self._layout.path), self._config.nproc_per_node)

    def adopt(self, found: Sequence[FoundNode]) -> None:
        """Takes nodes for its own that an earlier launcher has started, and ends what is left of others."""
        self._nodes |= {one.spec.node: _Node(one.agent, one.slot) for one in found}
        work_dir = str(self._layout.path)
        nodes = {environment_of(process.pid).get(variables.NODE) for process in processes.find(work_dir)}
        for node in nodes - {None, *map(str, self._nodes)}:
            processes.kill_until_none(work_dir, int(str(node)))

    def start(self, spec: NodeSpec) -> None:
        """Starts a node.

        Raises:
            OSError: If its process can't be started, or this machine has no GPUs left for it.
        """
        used = {entry.slot for entry in self._nodes.values()}
        slot = next(number for number in range(len(used) + 1) if number not in used)
        environment = self._environment | {
            variables.NODE: str(spec.node),
            variables.FIRST_MEMBER: str(spec.first_member),
            variables.SLOT: str(slot),
            variables.RESIZE: "respawn" if spec.respawn else "in-process",
        }
        if self._gpus is not None:
            own = self._gpus[slot * spec.nproc_per_node : (slot + 1) * spec.nproc_per_node]
            if self._gpus and len(own) < spec.nproc_per_node:
                raise OSError(f"node {spec.node} needs {spec.nproc_per_node} GPUs, {len(own)} are left on this machine")
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        with open(self._layout.node_log(spec.node), "ab") as log:
            # a notice that comes before the agent can take it waits in its signal mask
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            try:
                # no pipe, no tie to this process's life: the node goes on without us until its orphan time-out
                agent = subprocess.Popen(
                    [sys.executable, "-P", "-m", "elastic_launcher.agent"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._nodes[spec.node] = _Node(agent, slot)

    def agent(self, node: int) -> subprocess.Popen[bytes] | None:
        """Returns a node's agent; None if there is none, or an earlier launcher has started it."""
        entry = self._nodes.get(node)
        return None if entry is None or isinstance(entry.agent, AdoptedAgent) else entry.agent

    def notice(self, node: int) -> None:
        """Sends SIGTERM to the node's agent."""
        if node in self._nodes:
            self._nodes[node].agent.send_signal(signal.SIGTERM)

    def kill(self, node: int) -> None:
        """Sends SIGKILL to all of the node's processes; ``poll`` returns when they are gone."""
        entry = self._nodes.get(node)
        if entry is not None:
            root = None if entry.has_ended() else entry.agent.pid  # another process may have its id by now
            processes.kill(str(self._layout.path), node, root=root)

    def poll(self) -> list[NodeExit]:
        """Returns the nodes whose agent has ended and of which nothing is left."""
        gone = []
        for node, entry in list(self._nodes.items()):
            if not entry.has_ended():
                continue
            now = time.monotonic()
            entry.ended = now if entry.ended is None else entry.ended
            if processes.kill(str(self._layout.path), node) and now - entry.ended < LAST_PATIENCE:
                continue
            self._layout.remove_tmp(node)
            del self._nodes[node]
            if isinstance(entry.agent, AdoptedAgent):
                entry.agent.close()
            code = entry.agent.returncode
            gone.append(NodeExit(node, code, last_line=self._last_line(node) if code else ""))
        return gone

    def _last_line(self, node: int) -> str:
        """Returns the last line that a node's agent, or its torchrun, wrote; "" if there is none."""
        try:
            with open(self._layout.node_log(node), "rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LONGEST_LINE))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip(" =")), "")

    def close(self) -> None:
        """Kills all nodes and waits until they are gone."""
        for node in self._nodes:
            self.kill(node)
        deadline = time.monotonic() + 2 * LAST_PATIENCE
        while self._nodes and time.monotonic() < deadline:
            self.poll()
            time.sleep(POLL if self._nodes else 0)


def node_environment(config: JobConfig, layout: Layout, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that all nodes of a job have in common."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(variables.PREFIX) or name == variables.FAULT
    }
    return {
        "OMP_NUM_THREADS": str(threads_per_rank(cores(), config.max_ranks)),
        **kept,
        "PYTHONUNBUFFERED": "1",
        variables.CONTROL: str(layout.control),
        variables.WORK_DIR: str(layout.path),
        variables.ORPHAN_TIMEOUT: f"{config.orphan_timeout:g}",
        **config.environment(),
    }
