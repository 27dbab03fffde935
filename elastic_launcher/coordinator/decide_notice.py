"""Nodes that were told to go and can't wait for the next boundary: they leave within the step, the others do it again.

Nobody failed: it is not counted as a break of that step. On one machine nothing is started in their place but under the
rule for growth; in a cluster, where it is their machine that is wanted, they are replaced at once. Where nobody stays,
or the job stops in a hurry, what the training had reached before this step is saved.
"""

from __future__ import annotations

import math
from dataclasses import replace

from elastic_launcher.control.messages import Abandon, End, Save
from elastic_launcher.coordinator.actions import Order
from elastic_launcher.coordinator.decide_end import Decision, then
from elastic_launcher.coordinator.decide_formation import check_minimum, fail_formation, form_if_active, let_go
from elastic_launcher.coordinator.decide_loss import break_off
from elastic_launcher.coordinator.observations import NoticeExpires
from elastic_launcher.coordinator.roster import Phase
from elastic_launcher.coordinator.state import State


def take_expired_notice(state: State, observation: NoticeExpires) -> Decision:
    """The next boundary is too far for nodes that were told to go."""
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
    orders = (Order(leavers, Abandon(state.group_formation)), Order(leavers, End("its node was told to go")))
    return then((state, (*actions, *orders)), break_off, message, True, leaving[-1].leave)


def _save_now(state: State) -> Decision:
    """Has a job that stops save what it had reached before the present step, whose end is too far."""
    if not state.halts or state.halting.at_once:
        return state, ()
    state = replace(state, halting=replace(state.halting, at_once=True))
    return state, (Order(state.survivors(), Save(halt=True, at_once=True)),)
