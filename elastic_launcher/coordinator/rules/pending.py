"""Decides about nodes that wait for a place to run, or that their queue takes back before they have trained.

Invariants: what a node waits for counts neither as its start nor as its failure, and only ``--pending-timeout`` ends
it, or ``--node-timeout`` where the job had trained. Places that are too few for a job to begin are held for at most
``--min-wait``. Each pod of a node has members of its own, with numbers that none had before; reports of an earlier pod
are ignored.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import End
from elastic_launcher.coordinator.model.actions import Action, KillNode, Order
from elastic_launcher.coordinator.model.observations import NodeRegistered, NodeStands
from elastic_launcher.coordinator.model.roster import Exit, Member, Node, Phase
from elastic_launcher.coordinator.model.roster_tables import Members
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import Decision, emit, finish, then
from elastic_launcher.coordinator.rules.formation import fail_formation
from elastic_launcher.coordinator.rules.nodes import dismiss

LONGEST_PAUSE = 60.0
"""Seconds until nodes are asked for again that were given back, at most."""

QUEUE_SECONDS = 5.0
"""After which an admission is its queue's own doing, and no part of an ordinary start."""


def take_standing(state: State, observation: NodeStands) -> Decision:
    """Takes what a node waits for, or that it has begun, from when its time to be ready counts."""
    node = state.nodes.get(observation.node)
    if node is None or node.phase is not Phase.STARTING or node.waits == observation.waits:
        return state, ()
    began: dict[str, Any] = {} if observation.waits else {"began_at": observation.now}
    if node.queued and not observation.queued and observation.now - node.started_at > QUEUE_SECONDS:
        began["cause"] = "queue"  # it comes now because of that, and not of what it was asked for
    return state.with_node(
        node.number, waits=observation.waits, queued=observation.queued, unplaced=observation.unplaced, **began
    ), ()


def check_pending(state: State, now: float) -> Decision:
    """Gives up nodes that have waited too long; no more are started until the target is raised."""
    decision: Decision = (state, ())
    if state.pause is not None:
        return decision  # a job that had trained waits for all of them, as long as it may
    for node in state.in_phase(Phase.STARTING):
        if node.waits and now - _asked_at(node) > state.rules.pending_timeout:
            decision = then(decision, _give_up, node, now)
    return decision


def check_held(state: State, now: float) -> Decision:
    """Gives back the places that a job holds in vain, so that two jobs that each hold half of their need don't block.

    It asks again after a pause that differs from job to job and from time to time. Nodes in a queue hold no place, and
    keep theirs in the queue.
    """
    there = state.in_phase(Phase.STARTING, Phase.WARM)
    waiting = [node for node in there if node.waits]
    held = [node for node in there if not node.waits and not node.leave]
    if state.generation or state.formation is not None or not waiting or not held:
        return state, ()
    if len(held) >= state.rules.min_nodes or now - max(map(_asked_at, there)) <= state.rules.min_wait:
        return state, ()
    draw = random.Random(f"{state.rules.store}/{len(state.nodes)}").uniform(0.5, 1.5)
    pause = min(LONGEST_PAUSE, state.rules.min_wait * draw)
    given = "these are" if any(node.queued for node in waiting) else "all are"
    message = (
        f"{len(held)} of at least {state.rules.min_nodes} nodes run after {state.rules.min_wait:g} s (--min-wait), the "
        f"others are pending: {waiting[0].waits}; {given} given back, and asked for again in {pause:.0f} s"
    )
    decision: Decision = (replace(state, start_not_before=now + pause), (emit(state, "warning", message=message),))
    for node in there:
        if not node.queued:
            decision = then(decision, dismiss, node, "pending", now)
    return decision


def is_earlier_pod(node: Node, pod: str) -> bool:
    """Returns whether a report names a pod (empty if unknown) that is not the node's present one."""
    return bool(pod) and node.pod not in ("", pod)


def take_back(state: State, node: Node, waits: str, now: float) -> Decision:
    """Returns a node to its queue, which has taken its pod back.

    Args:
        state: The state before.
        node: The node; see `State.untrained`.
        waits: What it waits for.
        now: Monotonic seconds.
    """
    state, actions = _renew(state, node, now) if _is_used(state, node) else (state, ())
    return state.with_node(node.number, waits=waits, queued=True, unplaced=True, since=now), actions


def take_registration(state: State, observation: NodeRegistered) -> Decision:
    """Takes the start of a node's pod, which gets the node's members unless an earlier pod has had them."""
    node, pod, now = state.nodes[observation.node], observation.pod, observation.now
    if node.pod == pod:
        return state, ()
    decision: Decision = (state, ())
    if _is_used(state, node):
        if not state.untrained(node):
            return state, ()
        decision = _renew(state, node, now)  # the earlier pod's end is not reported yet
    state, actions = decision
    decision = state.with_node(node.number, pod=pod), actions
    return then(decision, take_standing, NodeStands(now, node.number, ""))


def _asked_at(node: Node) -> float:
    """Returns when a node began to look for its place: it may have been taken back from one that it had."""
    return max(node.started_at, node.since) if node.phase is Phase.STARTING else node.started_at


def _give_up(state: State, node: Node, now: float) -> Decision:
    waited = f"node {node.number} was pending for {state.rules.pending_timeout:g} s (--pending-timeout): {node.waits}"
    left = emit(state, "node_left", node=node.number, cause="pending")
    actions: tuple[Action, ...] = (KillNode(node.number), left)
    state = state.with_node(node.number, phase=Phase.ENDING, since=now, leave="pending")
    state = replace(state, gave_up=True)
    if not state.generation and len(state.staying()) < state.rules.min_nodes:
        message = f"{waited}; fewer than the minimum of {state.rules.min_nodes} can start"
        return then((state, actions), finish, ExitCode.NO_QUOTA, message)
    warning = emit(state, "warning", message=f"{waited}; no more are started until the target is raised")
    return state, (*actions, warning)


def _is_used(state: State, node: Node) -> bool:
    """Whether a pod has got the numbers of a node's members."""
    return bool(node.pod) or state.begun(node)


def _renew(state: State, node: Node, now: float) -> Decision:
    """Gives a node new members for its next pod."""
    decision: Decision = (state, ())
    if state.forming(node):
        decision = then(decision, fail_formation, f"node {node.number} was taken back by its queue", (), now, True)
    state, actions = decision
    before = [state.members[number] for number in node.members]
    joined = tuple(one.number for one in before if one.pid is not None and one.exit is None)
    for one in before:
        state = state.with_member(one.number, exit=one.exit or Exit())
    first = state.next_member
    own = tuple(range(first, first + len(before)))
    added = {number: Member(number, node.number, place) for place, number in enumerate(own)}
    state = replace(state, members=Members({**state.members, **added}))
    state = state.with_node(node.number, members=own, phase=Phase.STARTING, since=now, began_at=now, pod="")
    orders: tuple[Action, ...] = (Order(joined, End("not wanted any more")),) if joined else ()
    requeued = emit(state, "node_requeued", node=node.number, members=list(own), pod=node.pod)
    return state, (*actions, *orders, requeued)
