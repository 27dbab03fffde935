"""Nodes that their queue takes back before they have trained: the same Job waits for its next admission.

Invariant: each pod of a node has members of its own, with numbers that none had before, and what is heard of an earlier
pod is ignored.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_launcher.control.messages import End
from elastic_launcher.coordinator.model.actions import Action, Order
from elastic_launcher.coordinator.model.observations import NodeRegistered, NodeStands
from elastic_launcher.coordinator.model.roster import Exit, Member, Node, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.model.tables import Members
from elastic_launcher.coordinator.rules.ending import Decision, emit, then
from elastic_launcher.coordinator.rules.formation import fail_formation
from elastic_launcher.coordinator.rules.pending import take_standing


def is_earlier_pod(node: Node, pod: str) -> bool:
    """Returns whether what is heard of a pod (empty where nobody can know) is not about the node's present one."""
    return bool(pod) and node.pod not in ("", pod)


def take_back(state: State, node: Node, waits: str, now: float) -> Decision:
    """A queue takes a node's pod back, or has done so: the node waits to be admitted again.

    Args:
        state: The state before.
        node: The node; see `State.untrained`.
        waits: What it waits for.
        now: Monotonic seconds.
    """
    state, actions = _renew(state, node, now) if _is_used(state, node) else (state, ())
    return state.with_node(node.number, waits=waits, queued=True, since=now), actions


def take_registration(state: State, observation: NodeRegistered) -> Decision:
    """A node's pod begins: it takes the node's members, unless an earlier pod has had them."""
    node, pod, now = state.nodes[observation.node], observation.pod, observation.now
    if node.pod == pod:
        return state, ()
    decision: Decision = (state, ())
    if _is_used(state, node):
        if not state.untrained(node):
            return state, ()
        decision = _renew(state, node, now)  # nobody has told of the earlier pod's end yet
    state, actions = decision
    decision = state.with_node(node.number, pod=pod), actions
    return then(decision, take_standing, NodeStands(now, node.number, ""))


def _is_used(state: State, node: Node) -> bool:
    """Whether a pod has got the numbers of a node's members."""
    return bool(node.pod) or state.begun(node)


def _renew(state: State, node: Node, now: float) -> Decision:
    """Gives a node members for its next pod; those that it had are not wanted any more."""
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
