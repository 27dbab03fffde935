"""Agents that an earlier launcher has started: found by their environment, watched although they are no children."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_launcher import variables
from elastic_launcher.engines import NodeSpec
from elastic_launcher.host import processes


class AdoptedAgent:
    """A process that an earlier launcher has started.

    Attributes:
        returncode: None: only its parent learns how it ended.

    Raises:
        ProcessLookupError: If there is none.
    """

    returncode = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)  # stays that process's, also once another one has its id

    def has_ended(self) -> bool:
        """Returns whether it has."""
        watch = select.poll()
        watch.register(self._descriptor, select.POLLIN)
        return bool(watch.poll(0))

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if not self.has_ended():
            signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Forgets the process."""
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node whose agent lives, in a slot: one of the places on this machine."""

    spec: NodeSpec
    agent: AdoptedAgent
    slot: int

    def has_ended(self) -> bool:
        """Returns whether its agent has ended since."""
        return self.agent.has_ended()


def find_nodes(work_dir: str, nproc_per_node: int) -> list[FoundNode]:
    """Returns the nodes of a job that live on this machine, by number."""
    found: dict[int, FoundNode] = {}
    for process in processes.find(work_dir):
        try:
            agent = AdoptedAgent(process.pid)
        except ProcessLookupError:
            continue
        environment = environment_of(process.pid)
        if not agent.has_ended() and _is_agent(process.pid, environment):
            spec = NodeSpec(int(environment[variables.NODE]), int(environment[variables.FIRST_MEMBER]), nproc_per_node)
            found[spec.node] = FoundNode(spec, agent, int(environment.get(variables.SLOT, "0")))
        else:
            agent.close()
    return [found[number] for number in sorted(found)]


def environment_of(pid: int) -> Mapping[str, str]:
    """Returns the variables that a process was started with; none where it has ended, or is another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        return {}


def _is_agent(pid: int, environment: Mapping[str, str]) -> bool:
    """Whether a process is a node's first one: it leads its session, and ranks know an agent above them."""
    try:
        leads = os.getsid(pid) == pid
    except ProcessLookupError:
        return False
    return leads and variables.FIRST_MEMBER in environment and variables.AGENT_PID not in environment
