"""The handlers of the control API: they turn requests into observations, and answer from the job's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elastic_launcher.config import JobConfig
from elastic_launcher.control import requests
from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Report
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.api.live_status import live_status, phase
from elastic_launcher.coordinator.api.worker_events import WorkerEvents
from elastic_launcher.coordinator.health.monitor import Watch
from elastic_launcher.coordinator.model import observations
from elastic_launcher.coordinator.model.roster import Exit, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.workdir import Layout, job_id

HEARTBEAT_SECONDS = 2.0  # members are ordered to ask for orders at least this often
STOPPED_BY_COMMAND = "stopped by `elastic-launcher stop`"


class Job(Protocol):
    """The job's current state, as the handlers need it."""

    @property
    def state(self) -> State:
        """The state of the job."""

    @property
    def watch(self) -> Watch:
        """The monitor of its members."""

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint that its members start from; None for the beginning."""


@dataclass(eq=False)
class JobHandlers:
    """Answers members, agents and the command line: at once, or by ``LookupError`` for a member or node that never was.

    Args:
        lives: Takes what happens to workers that are started again and again.
        store: ``host:port`` of the store in which groups meet.
        monotonic: The clock of observations.
    """

    config: JobConfig
    layout: Layout
    job: Job
    observe: Callable[[observations.Observation], None]
    lives: WorkerEvents
    store: str
    term: int
    monotonic: Callable[[], float]

    def join(self, member: int, asked: requests.Join) -> requests.Standing:
        """Takes a member's call of ``init``; returns the job's progress."""
        self.hear(member)
        self.observe(observations.MemberJoined(self.monotonic(), member, asked.pid, asked.version))
        state = self.job.state
        return requests.Standing(
            phase=state.phase,
            epoch=state.epoch,
            sums=state.sums,
            step=state.step,
            begun=state.generation > 0,
            store=self.store,
            term=self.term,
            checkpoint=str(self.job.checkpoint or ""),
            expected_world_size=self._expected_world_size(),
            least_world_size=self.config.min_nodes * self.config.nproc_per_node,
            micro_batch_limits=state.micro_batches.limits,
            heartbeat_interval=HEARTBEAT_SECONDS,
        )

    def welcome(self) -> requests.Welcome:
        """Returns what a member needs to go on with this coordinator."""
        return requests.Welcome(self.store, self.term)

    def introduce(self, member: int, introduction: Introduction) -> requests.Welcome:
        """A member comes late that the coordinator before this one knew."""
        self.hear(member)
        if self.job.state.nodes[self.job.state.members[member].node].phase in (Phase.ENDING, Phase.GONE):
            raise LookupError(f"member {member} was given up")
        self.observe(observations.MemberJoined(self.monotonic(), member, introduction.pid))
        for report in introduction.reports:
            self.report(member, report)
        return self.welcome()

    def _expected_world_size(self) -> int:
        """Returns how many ranks there will be when all wanted nodes have come: joiners rehearse that share."""
        nodes = self.job.state.target.nodes if self.job.state.target is not None else self.config.min_nodes
        return max(1, nodes) * self.config.nproc_per_node

    def report(self, member: int, report: Report) -> None:
        """A member reported."""
        self.observe(observations.MemberReported(self.monotonic(), member, report))

    def hear(self, member: int, vitals: Vitals | None = None) -> None:
        """A member lives, and says what it does."""
        if member not in self.job.state.members:
            raise LookupError(f"there is no member {member}")
        if self.job.state.superseded(member):
            raise LookupError(f"member {member} is not wanted any more")
        self.job.watch.hear(member, self.monotonic(), vitals)

    def register(self, node: int, pod: str) -> int:
        """A node's agent begins: returns its first member, which no pod before this one had."""
        self._check_node(node)
        if pod:
            self.observe(observations.NodeRegistered(self.monotonic(), node, pod))
        found = self.job.state.nodes[node]
        if pod and found.pod != pod:
            raise LookupError(f"node {node} trains in another pod: pod {pod} is not wanted any more")
        self.job.watch.hear_node(self.job.state, node, self.monotonic(), {})
        return found.members[0]

    def is_superseded(self, node: int, member: int) -> bool:
        """Returns whether a member was of a pod of the node that its queue has taken back."""
        found = self.job.state.nodes.get(node)
        return found is not None and member not in found.members

    def heartbeat(self, node: int, told: requests.Heartbeat) -> requests.HeartbeatAnswer:
        """Takes an agent's heartbeat; the answer asks about silent members."""
        self._check_node(node)
        if told.notices:
            self.observe(observations.NodeNoticed(self.monotonic(), node, "signal"))
        about = self.job.watch.hear_node(self.job.state, node, self.monotonic(), told.cpu or {})
        return requests.HeartbeatAnswer(node in self.lives.let_go, tuple(about))

    def take(self, node: int, message: requests.NodeMessage) -> None:
        """Takes a message of a node's agent."""
        self._check_node(node)
        now = self.monotonic()
        match message:
            case requests.Life():
                self._check_place(node, message.started or message.ended or 0)
                self.lives.take(node, message)
            case requests.Notice():
                self.observe(observations.NodeNoticed(now, node, message.source))
            case requests.Unfit():
                self.observe(observations.NodeUnfit(now, node, message.message))
            case requests.RankEnded():
                self._check_place(node, message.local_rank)
                ended = Exit(message.exit_code, message.signal)
                self.observe(observations.RankEnded(now, node, message.local_rank, ended))

    def save(self) -> dict[str, Any]:
        """Has the job saved after its next step; returns its step.

        Raises:
            ValueError: If there is no training under way.
        """
        now = phase(self.job.state)
        if now != "training":
            raise ValueError(f"the job is {now}: there is no step after which it could be saved")
        self.observe(observations.SaveAsked(self.monotonic()))
        return {"step": self.job.state.step}

    def stop(self) -> dict[str, Any]:
        """Has the job saved and ended; returns its step, and whether it was stopping before."""
        found = {"step": self.job.state.step, "stopping": self.job.state.stopping is not None}
        self.observe(observations.StopAsked(self.monotonic(), STOPPED_BY_COMMAND))
        return found

    def status(self) -> dict[str, Any]:
        """Returns the status document."""
        return {
            "job_id": job_id(self.layout),
            "name": self.config.name,
            "term": self.term,
            **live_status(self.job.state),
        }

    def _check_node(self, node: int) -> None:
        if node not in self.job.state.nodes:
            raise LookupError(f"there is no node {node}")

    def _check_place(self, node: int, local_rank: int) -> None:
        if local_rank not in range(self.config.nproc_per_node):
            raise LookupError(f"node {node} has no local rank {local_rank}")
