"""Decides about nodes with a termination notice: they leave at the next boundary, or within the step.

In the latter case the others redo the step, and it does not count as broken. On one machine nothing is started in
their place until growth is due; in a cluster, where their machine is wanted, they are replaced at once. Where no node
stays, or the job's deadline is near, the state before this step is saved.
"""

from __future__ import annotations

import math
from dataclasses import replace

from elastic_launcher.control.messages import Abandon, End, Save
from elastic_launcher.coordinator.model.actions import Action, NoteNotice, Order
from elastic_launcher.coordinator.model.observations import NodeNoticed, NoticeExpires
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import Decision, emit, then
from elastic_launcher.coordinator.rules.formation import check_minimum, fail_formation, form_if_active, let_go
from elastic_launcher.coordinator.rules.loss import break_off
from elastic_launcher.coordinator.rules.nodes import dismiss, hold_back
from elastic_launcher.coordinator.rules.pending import is_earlier_pod, take_back

BY_SIGNAL = "signal"  # what an agent says of a notice


def take_notice(state: State, observation: NodeNoticed) -> Decision:
    """Has a node with a termination notice leave at the next boundary.

    Where its machine is wanted, and not a smaller job, another one is started as soon as it is gone.
    """
    node = state.nodes[observation.node]
    if is_earlier_pod(node, observation.pod):
        return state, ()
    if state.untrained(node):
        if observation.again:
            return take_back(state, node, observation.source, observation.now)
        if observation.source == BY_SIGNAL and state.rules.replaces_noticed:
            return state, ()  # its engine will report whether it goes, or waits in its queue
    if not state.generation and any(end is not None and end.clean for end in state.exits(node)):
        return state, ()  # `nodes.check_untrained` judges a script that ended by itself, on nodes that do not leave
    by = min(node.leave_by, observation.now + min(state.rules.grace_period, observation.within))
    if node.leave not in ("", "hint") or node.phase in (Phase.LEAVING, Phase.ENDING, Phase.GONE):
        sooner = node.leave == "notice" and node.phase is Phase.ADMITTED  # the last notice may know better
        return state.with_node(node.number, leave_by=by) if sooner else state, ()
    noticed: tuple[Action, ...] = (emit(state, "notice", node=node.number, source=observation.source),)
    if state.over or state.target is None:
        return state, noticed
    decision: Decision = (state, noticed)
    if node.phase is Phase.ADMITTED or state.forming(node):
        moves = state.rules.replaces_noticed and node.phase is Phase.ADMITTED
        state = replace(state, to_move=state.to_move + moves)
        decision = state.with_node(node.number, leave="notice", leave_by=by), noticed
    else:
        decision = then(then(decision, dismiss, node, "notice", observation.now), hold_back, node, observation.now)
    return decision if state.rules.replaces_noticed else then(decision, _lower_target)


def _lower_target(state: State) -> Decision:
    """Lowers the target so that a node with a notice is not replaced before growth is due, except up to the minimum."""
    assert state.target is not None
    left = max(len(state.staying()), state.rules.min_nodes)
    state = replace(state, target=replace(state.target, nodes=min(state.target.nodes, left), cause="notice"))
    return state, (NoteNotice(),)


def take_expired_notice(state: State, observation: NoticeExpires) -> Decision:
    """Has nodes leave within the step, since the next boundary is too far for their notice."""
    if state.over or state.verdict is not None or not state.generation:
        return state, ()
    decision = form_if_active(state, observation.now)
    state = decision[0]
    nodes = [state.nodes[number] for number in observation.nodes]
    leaving = [node for node in nodes if node.leave_by < math.inf and node.phase is Phase.ADMITTED]
    leavers = tuple(number for node in leaving for number in node.members)
    if not leavers or (state.halts and not set(state.nodes_of(state.survivors())) - {*observation.nodes}):
        return then(decision, _save_now)
    decision = then(decision, check_minimum, leaving, observation.now)
    if not set(state.survivors()) - set(leavers):
        return then(decision, _save_now)
    message = f"{' and '.join(f'node {node.number}' for node in leaving)} had to leave within the step"
    if decision[0].formation is not None:
        decision = then(decision, fail_formation, message, (), observation.now, True)
    for node in leaving:
        decision = then(decision, let_go, node.members[0], observation.now)
    state, actions = decision
    orders = (
        Order(leavers, Abandon(state.group_formation)),
        Order(leavers, End("its node received a termination notice")),
    )
    return then((state, (*actions, *orders)), break_off, message, True, leaving[-1].leave)


def _save_now(state: State) -> Decision:
    """Has a stopping job save the state before the present step, whose end is too far."""
    if not state.halts or state.halting.at_once:
        return state, ()
    state = replace(state, halting=replace(state.halting, at_once=True))
    return state, (Order(state.survivors(), Save(halt=True, at_once=True)),)
