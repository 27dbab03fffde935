"""Nodes that wait for a place to run: nobody is to blame, and the others go on without them.

The law: what a node waits for counts neither as its start nor as its failure. Only ``--pending-timeout`` ends it.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_launcher.config import ExitCode
from elastic_launcher.coordinator.actions import Action, KillNode
from elastic_launcher.coordinator.decide_end import Decision, emit, finish, then
from elastic_launcher.coordinator.observations import NodeStands
from elastic_launcher.coordinator.state import Node, Phase, State


def take_standing(state: State, observation: NodeStands) -> Decision:
    """A node waits for something, or has begun: then its time to be ready begins."""
    node = state.nodes.get(observation.node)
    if node is None or node.phase is not Phase.STARTING or node.waits == observation.waits:
        return state, ()
    began = {} if observation.waits else {"began_at": observation.now}
    return state.with_node(node.number, waits=observation.waits, **began), ()


def check_pending(state: State, now: float) -> Decision:
    """Gives up nodes that have waited too long; no more are started until the target is raised."""
    decision: Decision = (state, ())
    for node in state.in_phase(Phase.STARTING):
        if node.waits and now - node.started_at > state.rules.pending_timeout:
            decision = then(decision, _give_up, node, now)
    return decision


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
