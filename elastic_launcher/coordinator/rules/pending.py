"""Nodes that wait for a place to run: nobody is to blame, and the others go on without them.

Invariants: what a node waits for counts neither as its start nor as its failure, and only ``--pending-timeout`` ends
it, or ``--node-timeout`` where the job had trained; places that are too few for a job to begin are not held for longer
than ``--min-wait``.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.coordinator.model.actions import Action, KillNode
from elastic_launcher.coordinator.model.observations import NodeStands
from elastic_launcher.coordinator.model.roster import Node, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import Decision, emit, finish, then
from elastic_launcher.coordinator.rules.nodes import dismiss

LONGEST_PAUSE = 60.0
"""Seconds until nodes are asked for again that were given back, at most."""

QUEUE_SECONDS = 5.0
"""After which an admission is its queue's own doing, and no part of an ordinary start."""


def take_standing(state: State, observation: NodeStands) -> Decision:
    """A node waits for something, or has begun: then its time to be ready begins."""
    node = state.nodes.get(observation.node)
    if node is None or node.phase is not Phase.STARTING or node.waits == observation.waits:
        return state, ()
    began: dict[str, Any] = {} if observation.waits else {"began_at": observation.now}
    if node.queued and not observation.queued and observation.now - node.started_at > QUEUE_SECONDS:
        began["cause"] = "queue"  # it comes now because of that, and not of what it was asked for
    return state.with_node(node.number, waits=observation.waits, queued=observation.queued, **began), ()


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
    """Gives all places back that a job holds in vain: two that each hold half of what they need both get done.

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
