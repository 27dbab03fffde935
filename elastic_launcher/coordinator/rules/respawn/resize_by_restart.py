"""Resizes a job whose script uses our library by a restart: it saves, all its nodes end, others start.

It trains under the same rules as a job that changes its size in process, but for one: where those would begin a resize,
the training saves and halts, and then restarts from that checkpoint. Where that can't be written it trains on
as it is, and restarts after the next one that is.
"""

from __future__ import annotations

import math
from dataclasses import replace

from elastic_launcher.control.messages import GoOn, Halted, Save, Saved
from elastic_launcher.coordinator.model.actions import Action, Finish, Order
from elastic_launcher.coordinator.model.deadlines import time_to_save
from elastic_launcher.coordinator.model.ending import Halting, Restart, Stopping
from elastic_launcher.coordinator.model.observations import (
    MemberReported,
    NodeNoticed,
    Observation,
    TargetChanged,
    Tick,
)
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.checkpoint_restart import (
    end_all_nodes,
    record_restart_cause,
    restart_if_curable,
)
from elastic_launcher.coordinator.rules.decide import decide
from elastic_launcher.coordinator.rules.ending import RESTART, Decision, emit, then
from elastic_launcher.coordinator.rules.notice import take_notice
from elastic_launcher.coordinator.rules.respawn.round_state import gathered


def decide_restarts(state: State, observation: Observation) -> Decision:
    """Returns what is known after an observation, and what to do about it, in order."""
    if state.finished:
        return state, ()
    before, now = state, observation.now
    if _trains(state) and isinstance(observation, TargetChanged) and _is_another(state, observation):
        decision = _begin(replace(state, target=observation.target), "hint", now)
    elif _trains(state) and isinstance(observation, NodeNoticed) and _can_spare(state, observation.node):
        decision = then(take_notice(state, observation), _begin, "notice", now)
    elif state.put_off and _trains(state):
        decision = _train_on(state, observation)
    elif _saves(state) and _can_not(state, observation):
        decision = then(_decide_together(_in_time(state, now), observation), _put_off)
    else:
        decision = _decide_together(_in_time(state, now), observation)
        if _trains(decision[0]) and decision[0].to_replace:
            decision = then(decision, _begin, "failure", now)
    decision = _let_all_go(*decision, now)
    return record_restart_cause(before, *restart_if_curable(*decision, now), now)


def _decide_together(state: State, observation: Observation) -> Decision:
    """Decides as in process, but has a job begin with all nodes that come soon, since it does not take in any later."""
    ready = [node for node in state.in_phase(Phase.WARM) if not node.leave]
    waits = not state.generation and not (ready and gathered(state, ready, observation.now))
    if state.target is None or not waits or not isinstance(observation, (MemberReported, Tick)):
        return decide(state, observation)
    rules = state.rules
    minimum = max(rules.min_nodes, state.target.nodes)
    decided, actions = decide(replace(state, rules=replace(rules, min_nodes=minimum)), observation)
    return replace(decided, rules=rules), actions


def _trains(state: State) -> bool:
    ends = state.over or state.finished or state.halts or state.verdict is not None
    return state.generation > 0 and not ends


def _is_another(state: State, observation: TargetChanged) -> bool:
    """Whether a target is one to change to; below the minimum the job ends."""
    assert state.target is not None
    nodes = observation.target.nodes
    return nodes >= state.rules.min_nodes and (nodes != state.target.nodes or bool(state.put_off))


def _can_spare(state: State, number: int) -> bool:
    """Whether a node of the group may go without the job falling below its minimum."""
    node = state.nodes[number]
    return node.phase is Phase.ADMITTED and not node.leave and len(state.staying()) > state.rules.min_nodes


def _begin(state: State, cause: str, now: float) -> Decision:
    """Has the training save and halt, unless that failed lately."""
    if state.put_off:
        return _as_it_is(state), ()
    stopping = Stopping(RESTART, f"restarting ({cause})", now + _patience(state))
    state = replace(state, stopping=stopping, restart=Restart(cause, now))
    return state, (Order(state.survivors(), Save(halt=True)),)


def _patience(state: State) -> float:
    """Returns the seconds that a training may halt for a checkpoint."""
    return time_to_save(math.inf, state.save_seconds)


def _saves(state: State) -> bool:
    """Whether the training is being saved for a new start."""
    stopping = state.stopping
    restarts = stopping is not None and stopping.exit_code == RESTART
    return restarts and not state.halted and state.verdict is None and not state.halting.at_once


def _can_not(state: State, observation: Observation) -> bool:
    """Whether it has halted and can't be saved: the saver reports that, or nothing for too long."""
    assert state.stopping is not None
    if isinstance(observation, MemberReported) and isinstance(observation.report, Halted):
        is_saver = observation.member in (state.group[0], state.halting.saver)
        return is_saver and not observation.report.saved
    return bool(state.halting.standing) and observation.now >= state.stopping.until


def _in_time(state: State, now: float) -> State:
    """Returns a state in which a new start has time left: without a checkpoint of this step there is none."""
    stopping = state.stopping
    if stopping is None or not _saves(state) or now < stopping.until:
        return state
    return replace(state, stopping=replace(stopping, until=now + _patience(state)))


def _put_off(state: State) -> Decision:
    """Has the training go on as it is: all of it since the last checkpoint would be lost by a new start."""
    restart = state.restart
    if restart is None or not _saves(state):
        return state, ()
    state = _as_it_is(replace(state, stopping=None, restart=None, halting=Halting(), put_off=restart.cause))
    message = f"no new start ({restart.cause}) before a checkpoint could be written: until then, the training goes on"
    return state, (emit(state, "warning", message=message), Order(state.survivors(), GoOn()))


def _as_it_is(state: State) -> State:
    """Returns a state in which no node is to leave, or to be replaced."""
    for node in state.in_phase(Phase.ADMITTED):
        state = state.with_node(node.number, leave="", leave_by=math.inf)
    return replace(state, to_replace=0)


def _train_on(state: State, observation: Observation) -> Decision:
    """Decides about a job whose new start is put off; it has the size that it is to have, until it is saved."""
    wanted, gave_up = state.target, state.gave_up
    assert wanted is not None
    own = replace(wanted, nodes=len(state.staying()))
    state, actions = decide(replace(state, target=own, gave_up=True), observation)  # no node is started
    state = replace(state, target=wanted if state.target == own else state.target, gave_up=gave_up)
    if not _trains(state):
        return state, actions
    state = _as_it_is(state)
    if not isinstance(observation, MemberReported) or not isinstance(observation.report, Saved):
        return state, actions
    cause, state = state.put_off, replace(state, put_off="")
    if len(state.staying()) == wanted.nodes:
        return state, actions
    return then((state, actions), _begin, cause, observation.now)


def _let_all_go(state: State, actions: tuple[Action, ...], now: float) -> Decision:
    """Turns the end of a job that has saved for a restart, and halted, into the restart."""
    restart, told = state.restart, list[Action]()
    for action in actions:
        if restart is not None and isinstance(action, Finish) and action.exit_code == RESTART:
            saved = state.saved
            saving = saved.seconds if state.halted and saved is not None and saved.step == state.step else 0.0
            state = replace(state, restart=replace(restart, since=now - saving))  # no step was done meanwhile
            told += end_all_nodes(state, restart.cause)
        else:
            told.append(action)
    return state, tuple(told)
