"""The state of a job, as the coordinator knows it: frozen, without a clock, changed only by ``decide``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from elastic_launcher.checkpoint.changes import Resumed
from elastic_launcher.control.messages import Active, Progress, Saved
from elastic_launcher.coordinator.model.batch_record import BatchRecord
from elastic_launcher.coordinator.model.deadlines import NOTICE_SECONDS
from elastic_launcher.coordinator.model.ending import Halting, Restart, Stopping, StopRequest, Verdict
from elastic_launcher.coordinator.model.micro_batch_record import MicroBatchRecord
from elastic_launcher.coordinator.model.pause import EarlierWait, Pause
from elastic_launcher.coordinator.model.restart_budget import RestartBudget, Taken
from elastic_launcher.coordinator.model.roster import Exit, Node, Phase
from elastic_launcher.coordinator.model.roster_tables import THERE, Members, Nodes, Ranks
from elastic_launcher.logged import Logged
from elastic_launcher.resume_advice import SAME_COMMAND


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of the whole job.

    Attributes:
        min_nodes: Fewest nodes that the job trains with.
        nproc_per_node: Members on each node.
        store: ``host:port`` of the TCPStore in which groups meet.
        start_timeout: Seconds within which a node must be warm.
        form_timeout: Seconds within which a group must form.
        wait_for_quota: Seconds that a job which loses its quota waits for it, unless a hint says so; 0 ends it.
        node_timeout: Seconds that a job which loses its nodes waits for others; 0 ends it.
        max_failures: Failures of the script within an hour that cost a node instead of the job.
        grace_period: Seconds from a node's notice until it may be killed.
        first_node: Number of the first node that is started: numbers of an earlier run are not used again.
        first_member: Number of the first member that is added: numbers of an earlier run are not used again.
        generations_before: Generations of earlier runs.
        resumes: The checkpoint that the job resumes from, if any.
        waits: The wait for nodes in which the launcher before this one was.
        own_saves: Whether the script is known to save by itself: the step that it resumes from is unknown.
        c10d: Whether torchrun alone decides when its workers restart.
        pending_timeout: Seconds that a node may wait for a place to run.
        replaces_noticed: Whether a node with a notice is replaced at once: its machine, or its place there, is
            wanted, and the job's size stays as it was.
        resume_advice: The end of messages about the last checkpoint: how the job resumes from there.
        min_wait: Seconds that fewer nodes than the minimum may hold their places while others wait.
    """

    min_nodes: int
    nproc_per_node: int
    store: str
    start_timeout: float = 600.0
    form_timeout: float = 10.0
    wait_for_quota: float = 0.0
    node_timeout: float = 0.0
    max_failures: int = 0
    grace_period: float = NOTICE_SECONDS
    first_node: int = 1
    first_member: int = 1
    generations_before: int = 0
    resumes: Resumed | None = None
    waits: EarlierWait | None = None
    own_saves: bool = False
    c10d: bool = False
    pending_timeout: float = math.inf
    min_wait: float = math.inf
    replaces_noticed: bool = False
    resume_advice: str = SAME_COMMAND


@dataclass(frozen=True, slots=True)
class Target:
    """The number of nodes that the job should have, and the numbers of GPUs that it comes from.

    Attributes:
        nodes: The number; 0 where the job may not even have its minimum.
        cause: What changed it: ``start`` or ``hint``.
        guaranteed: GPUs that are the job's own, if known.
        allowed: GPUs that the job may hold now, if known.
        limit: GPUs that it may never exceed, if known.
        by: When nodes above the number may be killed.
        within: How many nodes are within the guarantee, if that is known and the others differ from them.
        wait: Seconds that the job waits for quota, where the hint says it and the user has not; else None.
        leave: Numbers of the nodes that go first where there are too many.
    """

    nodes: int
    cause: str = "hint"
    guaranteed: int | None = None
    allowed: int | None = None
    limit: int | None = None
    by: float = math.inf
    within: int | None = None
    wait: float | None = None
    leave: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Formation:
    """One attempt to form a generation.

    Attributes:
        number: Never used again.
        mode: ``start``, ``grow``, ``shrink`` or ``recover``.
        members: The new group, in rank order.
        joiners: Those of them that are not in the current group.
        leavers: Members of the current group that are not in the new one.
        cause: Why.
        asked_at: When it was ordered.
        formed: Members that have reported the group as formed.
        active: What members reported after their first step on it.
        first_active_at: When the first of them did.
    """

    number: int
    mode: str
    members: Ranks
    joiners: Ranks
    leavers: Ranks
    cause: str
    asked_at: float
    formed: frozenset[int] = frozenset()
    active: Mapping[int, Active] = field(default_factory=_nothing)
    first_active_at: float | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery: members whose step broke off wait for a new formation.

    Attributes:
        reason: What broke it: the first loss, or else what the first member said.
        explained: Whether it was a loss.
        counted: Whether it was counted that this step broke.
        steps: Optimizer steps done, by the members that wait.
        others: Members that hold the state and are not in the current group: they joined in a formation given up since.
        given_up: The last formation of this recovery that failed: its members report once more.
        not_before: They are not formed before this time.
        failures: How often in a row they could not be formed, and nobody is known to have died.
        cause: ``failure``, or ``notice`` or ``hint`` where a node left within the step after its notice.
    """

    reason: str
    explained: bool = False
    counted: bool = False
    steps: Mapping[int, int] = field(default_factory=_nothing)
    others: tuple[int, ...] = ()
    given_up: int = 0
    not_before: float = 0.0
    failures: int = 0
    cause: str = "failure"


@dataclass(frozen=True, slots=True)
class State:
    """The state of a job.

    Attributes:
        rules: What stays the same.
        target: How many nodes there should be; None until the first hint is read.
        nodes: All nodes that ever were, by number.
        members: All members that ever were, by number.
        generation: The current generation, 0 before the first.
        group: Its members, in rank order.
        group_formation: The formation that it was.
        formation: The one under way.
        formations: How many were tried.
        abandoned: Formations given up since the current generation formed, and their leavers: members may have
            swapped to them, or left.
        recovery: Members that wait after a broken step.
        broke_at: The step that broke off last.
        broke: How often in a row it did.
        losses: Nodes lost without notice, one soon after the other.
        lost_at: When the last of them was.
        borne: When failures of the script cost a node only.
        to_replace: Nodes that were lost and not replaced yet.
        to_move: Nodes whose machines are wanted, and in whose place none was started yet.
        not_before: No formation is begun before this time, but to recover.
        unformed: Formations in a row that failed and nobody was to blame.
        failures: Nodes in a row that failed to come up.
        taken: How often in a row nodes were taken from outside before they had trained, without a step in between.
        start_not_before: No node is started before this time.
        gave_up: Whether no more nodes are started, since too many failed.
        broken: Members of the current group whose step broke off.
        over: Whether the training loop is over on some member: nothing is changed any more.
        reason: Why the script stopped it, if it did.
        verdict: Why and when the job ends.
        stop_request: A request to stop that came after the verdict.
        stopping: Why and when at the latest the job ends although nothing is wrong.
        pause: What the job waits for, if it does.
        halting: How far its training has halted for one of these.
        halted: Whether it has halted, and is saved.
        restart: Why its workers are not there, or are about to go.
        put_off: Why they are to go once a checkpoint could be written; "" if they are not.
        restart_budget: How often it restarted from a checkpoint without getting further.
        saved: The last checkpoint.
        finished: Whether it has.
        step: Optimizer steps known to be done.
        phase: Which `job.epochs` of the script they are in, from 0.
        epoch: Which epoch of that.
        sums: What sums over ranks came to between two of these, and between loops outside of any.
        samples: Samples trained on.
        redone: The last step that is known to have been done again.
        batches: The recorded changes of the global batch.
        micro_batches: Where micro-batches were too large for memory.
        progress: The last report of rank 0.
        logged: The values of ``job.log`` that count.
    """

    rules: Rules
    target: Target | None = None
    nodes: Nodes = field(default_factory=Nodes)
    members: Members = field(default_factory=Members)
    generation: int = 0
    group: Ranks = field(default_factory=Ranks)
    group_formation: int = 0
    formation: Formation | None = None
    formations: int = 0
    abandoned: Mapping[int, tuple[int, ...]] = field(default_factory=_nothing)
    recovery: Recovery | None = None
    broke_at: int = -1
    broke: int = 0
    losses: int = 0
    lost_at: float = 0.0
    borne: tuple[float, ...] = ()
    to_replace: int = 0
    to_move: int = 0
    not_before: float = 0.0
    unformed: int = 0
    failures: int = 0
    taken: Taken = field(default_factory=Taken)
    start_not_before: float = 0.0
    gave_up: bool = False
    broken: frozenset[int] = frozenset()
    over: bool = False
    reason: str = ""
    verdict: Verdict | None = None
    stop_request: StopRequest | None = None
    stopping: Stopping | None = None
    pause: Pause | None = None
    halting: Halting = field(default_factory=Halting)
    halted: bool = False
    restart: Restart | None = None
    put_off: str = ""
    restart_budget: RestartBudget = field(default_factory=RestartBudget)
    saved: Saved | None = None
    finished: bool = False
    step: int = 0
    phase: int = 0
    epoch: int = 0
    sums: Mapping[str, Any] = field(default_factory=_nothing)
    samples: int | None = None
    redone: int | None = None
    batches: BatchRecord = BatchRecord()
    micro_batches: MicroBatchRecord = MicroBatchRecord()
    progress: Progress | None = None
    logged: Logged = field(default_factory=Logged)

    @property
    def generation_number(self) -> int:
        """The current generation's number over all runs of the job, 0 before the first of this run."""
        return self.rules.generations_before + self.generation if self.generation else 0

    def carried_to(self, first: State) -> State:
        """Returns the state of a restart as ``first``: what counts over the whole job is kept."""
        return replace(
            first,
            rules=replace(first.rules, own_saves=self.rules.own_saves),
            formations=self.formations,
            logged=self.logged,
            batches=self.batches.at_restart(first.step),
            micro_batches=self.micro_batches,
            borne=self.borne,
            taken=self.taken.at_most(first.step),
            start_not_before=self.start_not_before if self.taken.times > 1 else first.start_not_before,
        )

    @property
    def wait_for_quota(self) -> float:
        """Seconds that the job waits for quota; with 0 it ends instead."""
        hint = None if self.target is None else self.target.wait
        return self.rules.wait_for_quota if hint is None else hint

    @property
    def next_member(self) -> int:
        """The number of the next member: none had it, nor any above it."""
        return max(self.rules.first_member, max(self.members, default=0) + 1)

    @property
    def halts(self) -> bool:
        """Whether its training is to halt, and to be saved there."""
        return self.stopping is not None or (self.pause is not None and not self.pause.released)

    @property
    def halts_by(self) -> float:
        """The deadline for its halt and save; infinite where it may train on."""
        if self.stopping is not None:
            return math.inf if self.restart is not None else self.stopping.until
        return self.pause.until if self.pause is not None and not self.pause.released else math.inf

    @property
    def save_seconds(self) -> float:
        """The seconds that this run's last checkpoint took to write; 0 before the first."""
        return 0.0 if self.saved is None else self.saved.seconds

    def in_phase(self, *phases: Phase) -> list[Node]:
        """Returns the nodes in one of ``phases``, oldest first."""
        return [self.nodes[number] for number in sorted(one for phase in phases for one in self.nodes.phases[phase])]

    def staying(self) -> list[Node]:
        """Returns the nodes that are there and need not leave, oldest first."""
        return [one for one in self.in_phase(*THERE) if not one.leave]

    def forming(self, node: Node) -> bool:
        """Returns whether a formation under way has members of ``node``."""
        return self.formation is not None and any(member in self.formation.members for member in node.members)

    def begun(self, node: Node) -> bool:
        """Returns whether a process of one of the node's members was seen."""
        members = [self.members[number] for number in node.members]
        return any(one.pid is not None or one.exit is not None for one in members)

    def untrained(self, node: Node) -> bool:
        """Returns whether a node has not trained, nor is to leave: nothing is lost if it waits for another pod."""
        formation, recovery = self.formation, self.recovery
        taking_part = formation.members if formation is not None and formation.active else ()
        holders = recovery.others if recovery is not None else ()
        trains = any(one in self.group or one in taking_part or one in holders for one in node.members)
        return node.phase in (Phase.STARTING, Phase.WARM) and not node.leave and not trains

    def superseded(self, member: int) -> bool:
        """Returns whether a member was of a pod that its node's queue has taken back."""
        return member not in self.nodes[self.members[member].node].members

    def exits(self, node: Node) -> list[Exit | None]:
        """Returns how the processes of a node's members ended; None for those that have not."""
        return [self.members[number].exit for number in node.members]

    def exited(self, node: Node) -> bool:
        """Returns whether a process of one of the node's members has ended."""
        return any(end is not None for end in self.exits(node))

    def may_leave(self, member: int) -> bool:
        """Returns whether a formation let ``member`` go, be it one that was given up."""
        current = self.formation.leavers if self.formation is not None else ()
        return member in current or any(member in leavers for leavers in self.abandoned.values())

    def survivors(self) -> tuple[int, ...]:
        """Returns the members of the current group that have neither left nor been lost, in rank order."""
        departed = self.members.departed
        if not any(number in self.group for number in departed):
            return self.group
        return tuple(number for number in self.group if number not in departed)

    def lost(self) -> tuple[int, ...]:
        """Returns the members of the current group that were lost, in rank order."""
        departed = self.members.departed
        return tuple(number for number in self.group if number in departed and self.members[number].lost)

    def nodes_of(self, members: Iterable[int]) -> list[int]:
        """Returns the nodes of ``members``, each once, in order."""
        return list(dict.fromkeys(self.members[number].node for number in members))

    def name(self, number: int) -> str:
        """Returns how a message calls a member: ``member 3 (rank 1, node 2)``."""
        member = self.members[number]
        ranks = self.group or (self.formation.members if self.formation else ())
        rank = f"rank {ranks.index(number)}, " if number in ranks else ""
        return f"member {number} ({rank}node {member.node})"

    def at_epoch(self, phase: int, epoch: int) -> State:
        """Returns the state in which the job is known to have come to an epoch."""
        return replace(self, epoch=max(self.epoch, epoch)) if phase == self.phase else self

    def with_node(self, number: int, **changes: Any) -> State:
        """Returns the state in which one node differs."""
        return replace(self, nodes=self.nodes.replaced(replace(self.nodes[number], **changes)))

    def with_member(self, number: int, **changes: Any) -> State:
        """Returns the state in which one member differs."""
        return replace(self, members=self.members.replaced(replace(self.members[number], **changes)))
